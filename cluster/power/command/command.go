// Package command switches nodes by a program of the operator's, which is called with the action
// and the name of the node as its last arguments:
//
//	PROGRAM [ARGUMENT...] {on,off,reset,status} NODE
//
// It prints on or off for status, and nothing that matters for the others. A status other than 0 is
// an error, whose last line on the standard error is reported.
package command

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"margay/cluster/power"
	"margay/internal/printable"
)

// Bounds on the output of a program that is kept, and on its part in an error, in bytes.
const (
	mostOutput = 16 << 10
	mostShown  = 300
)

// endWait bounds how long the output of a program that was killed is waited for.
const endWait = 2 * time.Second

// Program switches a node. It implements power.Driver.
type Program struct {
	Args []string // the program and its first arguments
	Node string   // the name of the node
}

// On implements power.Driver.
func (p Program) On(ctx context.Context) error { return p.change(ctx, power.SwitchOn) }

// Off implements power.Driver.
func (p Program) Off(ctx context.Context) error { return p.change(ctx, power.SwitchOff) }

// Reset implements power.Driver.
func (p Program) Reset(ctx context.Context) error { return p.change(ctx, power.Reset) }

// Status implements power.Driver.
func (p Program) Status(ctx context.Context) (power.State, error) {
	out, err := p.run(ctx, power.Look)
	if err != nil {
		return power.Unknown, err
	}
	switch strings.TrimSpace(out) {
	case "on":
		return power.On, nil
	case "off":
		return power.Off, nil
	}
	return power.Unknown, fmt.Errorf("%s printed %q, not on or off", p.called(power.Look), printable.Short(strings.TrimSpace(out), mostShown))
}

func (p Program) change(ctx context.Context, a power.Action) error {
	_, err := p.run(ctx, a)
	return err
}

func (p Program) called(a power.Action) string {
	return fmt.Sprintf("%s %s %s", strings.Join(p.Args, " "), a, p.Node)
}

// run runs the program, in a process group of its own: when ctx ends, so do its children.
func (p Program) run(ctx context.Context, a power.Action) (string, error) {
	args := append(append([]string{}, p.Args[1:]...), string(a), p.Node)
	cmd := exec.CommandContext(ctx, p.Args[0], args...)
	var out, errs tail
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = endWait
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", p.called(a), context.Cause(ctx))
	case errors.Is(err, exec.ErrWaitDelay): // it has left a process that holds its output
		err = nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w%s", p.called(a), err, last(string(errs.text)))
	}
	return string(out.text), nil
}

// last returns the last line of a text as the end of an error.
func last(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if lines[len(lines)-1] == "" {
		return ""
	}
	return ": " + printable.Short(lines[len(lines)-1], mostShown)
}

// tail keeps the last mostOutput bytes that are written to it.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p[max(0, len(p)-mostOutput):]...)
	t.text = slices.Delete(t.text, 0, max(0, len(t.text)-mostOutput))
	return len(p), nil
}
