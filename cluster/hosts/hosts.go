// Package hosts finds the hosts of a machine and the ways to them: it reads lists of hosts as
// people and batch systems write them, recognises the allocation of a batch system, and chooses the
// command that starts programs on a host.
package hosts

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Most bounds the number of hosts in a list.
const Most = 1000

// valid is what a host may be called: a name or an IPv4 address, for ssh after a user and an @. No
// launcher takes it for an option, and no shell changes it.
var valid = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,253}$`) })

// Check returns an error unless name can be a host's.
func Check(name string) error {
	if !valid().MatchString(name) {
		return fmt.Errorf("%q is not the name of a host", name)
	}
	return nil
}

// Parse reads a list such as a,b[01-03,7].example.org, as Slurm and people write it. It keeps the
// order. A host that is in the list twice is an error.
func Parse(text string) ([]string, error) {
	names, err := expand(text)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, name := range names {
		if seen[name] {
			return nil, fmt.Errorf("%s is in the list twice: a host has one node", name)
		}
		seen[name] = true
	}
	return names, nil
}

// ParseFile reads a file with a host, or a list of hosts, at the beginning of each line. What
// follows, such as a number of slots, and lines that begin with # have no meaning here. A host that
// is repeated, as in the files of PBS, counts once.
func ParseFile(text string) (all []string, err error) {
	seen := make(map[string]bool)
	number := 0
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		first, _, _ := strings.Cut(fields[0], ":") // host:slots
		names, err := expand(first)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		for _, name := range names {
			if !seen[name] {
				all = append(all, name)
			}
			seen[name] = true
		}
		if len(all) > Most {
			return nil, errTooMany
		}
	}
	if len(all) == 0 {
		return nil, errors.New("it names no host")
	}
	return all, nil
}

var errTooMany = fmt.Errorf("it names more than %d hosts", Most)

// expand reads a list, whose hosts may be repeated.
func expand(text string) (names []string, err error) {
	for rest := text; ; {
		end := itemEnd(rest)
		expanded, err := expandItem(rest[:end], Most-len(names))
		if err != nil {
			return nil, err
		}
		names = append(names, expanded...)
		if end == len(rest) {
			break
		}
		rest = rest[end+1:]
	}
	for _, name := range names {
		if err := Check(name); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// itemEnd returns the index of the first comma outside brackets, or the length of text.
func itemEnd(text string) int {
	inside := false
	for i := range len(text) {
		switch {
		case text[i] == '[':
			inside = true
		case text[i] == ']':
			inside = false
		case text[i] == ',' && !inside:
			return i
		}
	}
	return len(text)
}

// longest bounds an item of a list, in bytes.
const longest = 512

// expandItem expands the brackets of an item, the last ones fastest, to at most so many names.
func expandItem(text string, most int) ([]string, error) {
	if len(text) > longest {
		return nil, fmt.Errorf("%.20q...: it is longer than %d bytes", text, longest)
	}
	before, rest, found := strings.Cut(text, "[")
	if !found {
		if most < 1 {
			return nil, errTooMany
		}
		return []string{text}, nil
	}
	inside, after, found := strings.Cut(rest, "]")
	if !found {
		return nil, fmt.Errorf("%q: its brackets do not match", text)
	}
	tails, err := expandItem(after, most)
	if err != nil {
		return nil, err
	}
	var names []string
	for part := range strings.SplitSeq(inside, ",") {
		numbers, err := expandRange(part, most)
		if err != nil {
			return nil, err
		}
		if len(names)+len(numbers)*len(tails) > most {
			return nil, errTooMany
		}
		for _, number := range numbers {
			for _, tail := range tails {
				names = append(names, before+number+tail)
			}
		}
	}
	return names, nil
}

// widest bounds the digits of a number in brackets.
const widest = 9

// expandRange reads 7, or 01-03, whose numbers have the digits of the first.
func expandRange(text string, most int) ([]string, error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, err1 := strconv.ParseUint(from, 10, 32)
	last, err2 := strconv.ParseUint(to, 10, 32)
	if err1 != nil || err2 != nil || first > last || max(len(from), len(to)) > widest {
		return nil, fmt.Errorf("%q in brackets is not a number or a range of numbers", text)
	}
	if last-first >= uint64(max(0, most)) {
		return nil, errTooMany
	}
	var numbers []string
	for n := first; n <= last; n++ {
		numbers = append(numbers, fmt.Sprintf("%0*d", len(from), n))
	}
	return numbers, nil
}

// Launcher is a command that starts a program on a host: its words, then the host, then the program
// and its arguments.
type Launcher []string

// SSH is the launcher where the user has none and no batch system brings one. It asks for nothing,
// and ends when the host no longer answers.
var SSH = Launcher{"ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"}

// ParseLauncher reads a launcher as a user writes it: words without quotes.
func ParseLauncher(text string) (Launcher, error) {
	l := Launcher(strings.Fields(text))
	if len(l) == 0 {
		return nil, errors.New("the command is empty")
	}
	return l, nil
}

// word is an argument that no shell between the launcher and the program changes.
var word = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`) })

// Command returns the words that start a program on a host. Launchers such as ssh pass what they
// run to a shell of the host, so words that a shell would change are refused.
func (l Launcher) Command(host string, program ...string) ([]string, error) {
	if err := Check(host); err != nil {
		return nil, err
	}
	for _, w := range program {
		if !word().MatchString(w) {
			return nil, fmt.Errorf("%q cannot be passed to another host: it has characters that a shell would change", w)
		}
	}
	return slices.Concat(l, []string{host}, program), nil
}
