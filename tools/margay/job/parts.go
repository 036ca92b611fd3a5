package job

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"margay/cluster/control"
	"margay/cluster/launch"
)

// part is one program of a job, with its ranks.
type part struct {
	ranks int
	env   []string // NAME=VALUE, added to the environment of the job
	argv  []string // the program first
}

// maxParts bounds the programs of a job.
const maxParts = 1024

// maxPartRanks bounds the ranks of a program, far below where a sum wraps.
const maxPartRanks = 1 << 24

// partsSeparator begins the next program if a number of ranks follows it.
const partsSeparator = ":"

// isRanks reports whether an argument is the flag that gives the number of ranks.
func isRanks(arg string) bool {
	digits, short := strings.CutPrefix(arg, "-n")
	_, err := strconv.ParseUint(strings.TrimPrefix(digits, "="), 10, 32)
	return short && (digits == "" || err == nil) || arg == "--ranks" || strings.HasPrefix(arg, "--ranks=")
}

// splitParts cuts a command line into the programs of a job. The first one has the given number of
// ranks.
func splitParts(ranks int, args []string) ([]part, error) {
	var parts []part
	next := part{ranks: ranks}
	begin := 0
	for i := 0; i+1 < len(args); i++ {
		if args[i] != partsSeparator || !isRanks(args[i+1]) || i == begin {
			continue
		}
		next.argv = args[begin:i]
		parts = append(parts, next)
		next = part{ranks: 1}
		fs := pflag.NewFlagSet("part", pflag.ContinueOnError)
		fs.SetOutput(io.Discard)
		fs.SetInterspersed(false)
		fs.IntVarP(&next.ranks, "ranks", "n", 1, "")
		fs.StringArrayVar(&next.env, "env", nil, "")
		if err := fs.Parse(args[i+1:]); err != nil {
			return nil, fmt.Errorf("run: program %d of the job: its flags are -n RANKS and --env NAME=VALUE, not %s", len(parts)+1, strings.Join(args[i+1:], " "))
		}
		begin = len(args) - fs.NArg()
		i = begin - 1
	}
	if begin == len(args) {
		return nil, fmt.Errorf("run: program %d of the job is missing after its flags", len(parts)+1)
	}
	next.argv = args[begin:]
	return checkParts(append(parts, next))
}

// checkParts refuses numbers of ranks and programs that are out of range.
func checkParts(parts []part) ([]part, error) {
	if len(parts) > maxParts {
		return nil, fmt.Errorf("run: a job has at most %d programs", maxParts)
	}
	for i, p := range parts {
		if p.ranks <= 0 || p.ranks > maxPartRanks {
			return nil, fmt.Errorf("run: program %d of the job has %d ranks; it is 1 to %d", i+1, p.ranks, maxPartRanks)
		}
	}
	return parts, nil
}

// readLoadfile reads the programs of a job from a file of Cplant: each line has -sz N, the program
// and its arguments. # begins a comment, and quotes keep words together as in a shell.
func readLoadfile(name string) ([]part, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("run: loadfile: %w", err)
	}
	defer f.Close()
	parts, err := parseLoadfile(f)
	if err != nil {
		return nil, fmt.Errorf("run: %s:%w", name, err)
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("run: %s: there is no program in it; a line is -sz N PROGRAM [ARGUMENT...]", name)
	}
	return checkParts(parts)
}

// maxLine bounds a line of a loadfile, in bytes.
const maxLine = 256 << 10

// parseLoadfile reads a loadfile. An error begins with the number of its line.
func parseLoadfile(r io.Reader) (parts []part, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	number := 0
	for lines.Scan() {
		number++
		words, err := splitWords(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
		if len(words) == 0 {
			continue
		}
		p, err := loadfilePart(words)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
		if parts = append(parts, p); len(parts) > maxParts {
			return nil, fmt.Errorf("%d: a job has at most %d programs", number, maxParts)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%d: %w", number+1, err)
	}
	return parts, nil
}

// loadfilePart reads one line of a loadfile. Without a number after -sz, and without -sz, the
// program has one rank.
func loadfilePart(words []string) (part, error) {
	p := part{ranks: 1}
	switch words[0] {
	case "-sz", "-size", "-n":
		flag := words[0]
		words = words[1:]
		if len(words) > 0 {
			if n, err := strconv.Atoi(words[0]); err == nil {
				p.ranks, words = n, words[1:]
			}
		}
		if p.ranks <= 0 || p.ranks > maxPartRanks {
			return p, fmt.Errorf("%s %d: it is 1 to %d", flag, p.ranks, maxPartRanks)
		}
	}
	switch {
	case len(words) == 0 || words[0] == "":
		return p, errors.New("the program is missing")
	case strings.HasPrefix(words[0], "-"):
		return p, fmt.Errorf("%s is not known: a line is -sz N PROGRAM [ARGUMENT...]", words[0])
	}
	p.argv = words
	return p, nil
}

// splitWords cuts a line into words, as a shell does without variables and patterns.
func splitWords(line string) (words []string, err error) {
	var word []byte
	var quote byte
	in := false // a word
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == 0:
			return nil, errors.New("a NUL byte")
		case quote == 0 && (c == ' ' || c == '\t' || c == '\r'):
			if in {
				words, word, in = append(words, string(word)), nil, false
			}
			continue
		case quote == 0 && c == '#' && !in:
			return words, nil
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(line):
			i++
			word = append(word, line[i])
		default:
			word = append(word, c)
		}
		in = true
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c has no end", quote)
	}
	if in {
		words = append(words, string(word))
	}
	return words, nil
}

// programsOf returns the programs of the parts.
func programsOf(parts []part) (programs []string) {
	for _, p := range parts {
		programs = append(programs, p.argv[0])
	}
	return programs
}

// programsByRank returns the file of each rank's program.
func programsByRank(parts []part, files *launch.Files) (programs []string) {
	for i, p := range parts {
		programs = append(programs, slices.Repeat(files.Programs[i:i+1], p.ranks)...)
	}
	return programs
}

// execOf describes what the parts execute. files are theirs, and env is the environment of the job.
func execOf(parts []part, files *launch.Files, env []string) (*control.Exec, error) {
	e := &control.Exec{Argv: launch.Bytes(parts[0].argv), Env: launch.Bytes(env)}
	first := parts[0].ranks
	for i, p := range parts[1:] {
		for _, entry := range p.env {
			if name, _, ok := strings.Cut(entry, "="); !ok || name == "" {
				return nil, fmt.Errorf("run: --env %s: it is NAME=VALUE", entry)
			}
		}
		e.Parts = append(e.Parts, &control.Part{
			First: uint32(first), Path: []byte(files.Programs[i+1]), Argv: launch.Bytes(p.argv), Env: launch.Bytes(p.env),
		})
		first += p.ranks
	}
	return e, nil
}
