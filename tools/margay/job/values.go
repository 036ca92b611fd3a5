package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/tools/margay/command"
)

// maxTime bounds the parts of a time, so that their sum does not wrap.
const maxTime = 1 << 20

// parseTime reads a time as Go writes it (90s, 5m, 1h30m), or as Slurm does: MM:SS, HH:MM:SS, D-HH,
// D-HH:MM or D-HH:MM:SS.
func parseTime(text string) (time.Duration, error) {
	if d, err := time.ParseDuration(text); err == nil && text != "0" {
		if d < time.Millisecond {
			return 0, errors.New("it must be more than 0")
		}
		return d, nil
	}
	days, clock, ok := strings.Cut(text, "-")
	if !ok {
		days, clock = "0", text
	}
	fields := strings.Split(clock, ":")
	if !ok && len(fields) == 1 {
		if _, err := strconv.ParseUint(text, 10, 64); err == nil {
			return 0, fmt.Errorf("it has no unit: %ss are seconds, %[1]sm are minutes", text)
		}
	}
	units := []time.Duration{time.Hour, time.Minute, time.Second}
	if !ok {
		units = units[3-min(3, len(fields)):] // the last one is seconds
	}
	if len(fields) > len(units) {
		return 0, errTime
	}
	day, err := strconv.ParseUint(days, 10, 32)
	if err != nil || day > maxTime/24 {
		return 0, errTime
	}
	sum := time.Duration(day) * 24 * time.Hour
	for i, field := range fields {
		n, err := strconv.ParseUint(field, 10, 32)
		if err != nil || n > maxTime {
			return 0, errTime
		}
		sum += time.Duration(n) * units[i]
	}
	if sum == 0 {
		return 0, errors.New("it must be more than 0")
	}
	return sum, nil
}

var errTime = errors.New("it is a time such as 30s, 5m or 2h30m, or MM:SS, HH:MM:SS or D-HH:MM:SS")

// parseWarning reads the signal that warns of a time limit, and how long before: USR1@30s, or
// USR1@30 with seconds as Slurm has them.
func parseWarning(text string) (sig unix.Signal, before time.Duration, err error) {
	name, when, ok := strings.Cut(text, "@")
	if !ok {
		when = "60"
	}
	if sig, err = command.ParseSignal(name); err != nil {
		return 0, 0, err
	}
	if seconds, err := strconv.ParseUint(when, 10, 31); err == nil {
		return sig, time.Duration(seconds) * time.Second, nil
	}
	if before, err = time.ParseDuration(when); err != nil || before < 0 {
		return 0, 0, fmt.Errorf("%q is not a time before the limit: SIGNAL@TIME, such as USR1@30s", when)
	}
	return sig, before, nil
}

// forever is the value of --wait without one.
const forever = "forever"

// parseWait reads how long to wait for cores, in milliseconds: 0 for not at all, -1 for no limit.
func parseWait(text string) (int64, error) {
	switch text {
	case "":
		return 0, nil
	case forever:
		return -1, nil
	}
	d, err := parseTime(text)
	return d.Milliseconds(), err
}

// environment returns the environment of the ranks: the variables that --export selects, changed by
// --env.
func environment(all []string, export string, set []string) ([]string, error) {
	kept := all
	if export != "" && export != "ALL" {
		kept = nil
		for word := range strings.SplitSeq(export, ",") {
			switch name, _, given := strings.Cut(word, "="); {
			case word == "ALL":
				kept = append(kept, all...)
			case word == "NONE" && export == word:
			case name == "":
				return nil, fmt.Errorf("--export %s: it is ALL, NONE, or a list of NAME and NAME=VALUE", export)
			case given:
				set = append([]string{word}, set...)
			default:
				kept = append(kept, slices.DeleteFunc(slices.Clone(all), func(entry string) bool { return !strings.HasPrefix(entry, name+"=") })...)
			}
		}
	}
	kept = slices.Clone(kept)
	for _, entry := range set {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--env %s: it is NAME=VALUE; without the flag ranks have the whole environment of margay run", entry)
		}
		kept = SetVariable(kept, entry)
	}
	return kept, nil
}

// SetVariable adds a variable to an environment, which it changes, in place of those with the same
// name.
func SetVariable(env []string, entry string) []string {
	name, _, _ := strings.Cut(entry, "=")
	return append(slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") }), entry)
}

// threads adds the variables that make OpenMP use all cores of a rank and bind each thread to one,
// unless the user has set them. Linux does not spread threads over isolated cores.
func threads(env []string, cores int) []string {
	for _, entry := range []string{fmt.Sprintf("OMP_NUM_THREADS=%d", cores), "OMP_PROC_BIND=true"} {
		name, _, _ := strings.Cut(entry, "=")
		if !slices.ContainsFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") }) {
			env = append(env, entry)
		}
	}
	return env
}

// workingDir returns the working directory of the ranks: the directory of margay run, or the one
// that --chdir names.
func workingDir(chdir string) (string, error) {
	dir, err := filepath.Abs(chdir)
	if err != nil {
		return "", fmt.Errorf("the current folder cannot be used: %w; --chdir names another one, by an absolute path", err)
	}
	if chdir == "" {
		return dir, nil
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "chdir", Path: dir, Err: unix.ENOTDIR}
	}
	if err != nil {
		return "", fmt.Errorf("--chdir: %w", err)
	}
	return dir, nil
}
