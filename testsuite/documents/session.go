package documents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Session is one shell in which the examples of a page are run, one after the other.
type Session struct {
	Dir      string   // the folder that the reader is in
	Env      []string // of the shell
	Prelude  string   // shell functions that come before the first command
	Scratch  string   // an empty folder for outputs; not a reader's
	Deadline time.Duration
}

// Result is what one command has printed.
type Result struct {
	Command Command
	Output  string // standard output and standard error, as on a terminal
}

// errEnded reports a command that ended the shell with status 0, so that what follows was not run.
var errEnded = errors.New("the shell has ended with status 0 before the page did")

// Script returns the commands of those examples that are for a substrate and for this user. It
// writes the programs into their files first.
func (s Session) Script(examples []Example, substrate string) ([]Command, error) {
	var all []Command
	for _, e := range examples {
		if e.Mark.NotRun != "" || e.Mark.On != "" && e.Mark.On != substrate || e.Mark.Root && os.Getuid() != 0 {
			continue
		}
		if e.Mark.File != "" {
			file := filepath.Join(s.Dir, e.Mark.File)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(e.Text), 0o644)); err != nil {
				return nil, fmt.Errorf("%s: %w", e, err)
			}
			continue
		}
		commands, err := e.Commands()
		if err != nil {
			return nil, err
		}
		all = append(all, commands...)
	}
	return all, nil
}

// Run types the commands into the shell and returns what they printed. Each must end with status 0,
// and so must each part of a pipeline and each line of a block sh. The error names the command that
// did not.
func (s Session) Run(ctx context.Context, commands []Command) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Deadline)
	defer cancel()
	current := filepath.Join(s.Scratch, "current")
	var script strings.Builder
	fmt.Fprintf(&script, "%s\nset -e -o pipefail\n", s.Prelude)
	for i, c := range commands {
		fmt.Fprintf(&script, "echo %d >%q; exec >%q 2>&1\n%s\n", i, current, s.output(i), strings.TrimSuffix(c.Text, "\n"))
	}
	fmt.Fprintf(&script, "echo done >%q\n", current)
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Dir, cmd.Env = s.Dir, s.Env
	// What the shell has started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var noise strings.Builder // of the shell itself: a script that it cannot read
	cmd.Stderr = &noise
	ended := cmd.Run()
	if ctx.Err() != nil {
		ended = ctx.Err()
	}
	if ended == nil {
		ended = errEnded
	}
	return s.results(commands, current, ended, noise.String())
}

func (s Session) output(i int) string { return filepath.Join(s.Scratch, strconv.Itoa(i)+".out") }

// results reads what the commands have printed, up to the one at which the shell ended.
func (s Session) results(commands []Command, current string, ended error, noise string) ([]Result, error) {
	word, err := os.ReadFile(current)
	if err != nil {
		return nil, fmt.Errorf("the shell did not begin: %w\n%s", errors.Join(ended, err), noise)
	}
	reached, all := len(commands), strings.TrimSpace(string(word)) == "done"
	if !all {
		if reached, err = strconv.Atoi(strings.TrimSpace(string(word))); err != nil {
			return nil, err
		}
	}
	var results []Result
	for i, c := range commands[:min(reached+1, len(commands))] {
		text, err := os.ReadFile(s.output(i))
		if err != nil {
			return results, err
		}
		if i == reached {
			return results, fmt.Errorf("%s:%d: %s: %w\n%s%s", c.Example.Page, c.Line, strings.TrimSpace(c.Text), ended, text, noise)
		}
		results = append(results, Result{Command: c, Output: string(text)})
	}
	return results, nil
}
