package line

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"margay/cluster/launch"
)

// seeds are launchers of other systems whose names margay can have, as links: each turns its
// command line into one of margay. terminal says that standard input and output are terminals.
var seeds = map[string]func(args []string, terminal bool) ([]string, error){
	"yod":    yod,
	"glurun": glurun,
}

// fromSeed returns the command line of margay that the command line of a program stands for.
func fromSeed(name string, args []string, terminal bool) ([]string, error) {
	if translate := seeds[name]; translate != nil {
		return translate(args, terminal)
	}
	return args, nil
}

// yodStages are the stages of -d, and the flags of margay run for them. Programs of yod
// find the files of its working directory.
var yodStages = map[string][]string{"load": {"--timing"}, "io": {"--files", ".", "--trace-io"}}

// yod is Cplant's launcher: yod [-size N] [-l NODES] [OPTION...] PROGRAM|LOADFILE [ARGUMENT...].
func yod(args []string, _ bool) ([]string, error) {
	line := []string{"run"}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		option := args[0]
		args = args[1:]
		switch option {
		case "-size", "-sz":
			size := "1"
			if len(args) > 0 {
				if _, err := strconv.ParseUint(args[0], 10, 32); err == nil {
					size, args = args[0], args[1:]
				}
			}
			line = append(line, "-n", size)
		case "-l", "-d", "-file":
			if len(args) == 0 {
				return nil, fmt.Errorf("yod: %s needs a value", option)
			}
			value := args[0]
			args = args[1:]
			flags := yodStages[value]
			switch {
			case option == "-l":
				line = append(line, "-w", value)
			case option == "-file":
				line = append(line, "--messages", value)
			case flags == nil:
				return nil, fmt.Errorf("yod: -d %s: there is nothing to show of it: -d load shows the phases of loading, -d io requests for files", value)
			default:
				line = append(line, flags...)
			}
		case "-D":
			line = append(line, "--verbose", "--timing")
		case "-attach":
			line = append(line, "--attach")
		case "-interactive":
			line = append(line, "--keep-going")
		case "-batch": // one that fails ends the others, as margay does
		case "-help", "--help":
			return []string{"run", "--help"}, nil
		default:
			return nil, fmt.Errorf("yod has no %s: its options are -size, -l, -attach, -batch, -interactive, -file, -D, -d load and -d io; margay run has more", option)
		}
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("yod: the program is missing: yod [-size N] [-l NODES] PROGRAM|LOADFILE [ARGUMENT...]")
	}
	if len(args) == 1 && isLoadfile(args[0]) {
		return append(line, "-f", args[0]), nil
	}
	return append(append(line, "--"), args...), nil
}

// isLoadfile reports whether a name is a file and not a program.
func isLoadfile(name string) bool {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 != 0 {
		return false
	}
	_, err = launch.LookUp(name)
	return err != nil
}

// glurun is GLUnix's launcher: glurun [-N|-n N] PROGRAM [ARGUMENT...]. Standard input goes to all
// processes; a sequential program on a terminal has one.
func glurun(args []string, terminal bool) ([]string, error) {
	size := uint64(1)
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		text := args[0][1:]
		if args = args[1:]; text == "n" && len(args) > 0 {
			text, args = args[0], args[1:]
		}
		n, err := strconv.ParseUint(text, 10, 24)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("glurun: %q is not a number of processes: glurun [-N|-n N] PROGRAM [ARGUMENT...]", text)
		}
		size = n
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("glurun: the program is missing: glurun [-N|-n N] PROGRAM [ARGUMENT...]")
	}
	line := []string{"run", "-n", fmt.Sprint(size)}
	if size == 1 && terminal {
		line = append(line, "--pty")
	} else {
		line = append(line, "--stdin", "all")
	}
	return append(append(line, "--"), args...), nil
}
