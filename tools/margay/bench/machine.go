package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"margay/cluster/launch"
	"margay/cluster/machine"
	"margay/tools/margay/command"
	"margay/tools/margay/job"
)

// benchMachine is a machine that exists for a measurement.
type benchMachine struct {
	command.App
	place     string
	scheduler string // what shares cores there
	output    bytes.Buffer
}

// newMachine names a machine for a place.
func (a commands) newMachine(place string) *benchMachine {
	m := &benchMachine{place: place}
	m.App = command.App{Stdin: a.Stdin, Stdout: &m.output, Stderr: a.Stderr, Quiet: a.Quiet, Machine: machineName(place)}
	return m
}

// machineName is the name of this process's machine for a place.
func machineName(place string) string { return fmt.Sprintf("bench-%s-%d", place, os.Getpid()) }

// up makes the machine.
func (m *benchMachine) up(ctx context.Context, spec machine.Spec) error {
	spec.Name = m.Machine
	return machine.Up(ctx, machine.UpOptions{
		Spec:     spec,
		Holder:   []string{"/proc/self/exe", "holder"},
		Told:     func(format string, args ...any) { m.Report(m.place+": "+format, args...) },
		Progress: m.Progress(),
	})
}

func (m *benchMachine) end(ctx context.Context) error {
	d, err := m.Dir()
	if err != nil {
		return err
	}
	return machine.Down(ctx, machine.Dir(d), m.Loss)
}

// run runs one job, whose output replaces the last one's.
func (m *benchMachine) run(ctx context.Context, f job.Flags, argv []string) error {
	m.output.Reset()
	err := job.Run(ctx, &m.App, f, argv)
	if status := new(command.ExitStatus); errors.As(err, &status) && status.Code != launch.ExitMargay {
		err = fmt.Errorf("%s has failed: %w", argv[0], err)
	}
	return err
}

// margayRun runs margay run as a process of its own, and returns its output, and how long it has
// taken.
func (m *benchMachine) margayRun(ctx context.Context, words ...string) (string, time.Duration, error) {
	margay, err := command.Beside("margay")
	if err != nil {
		return "", 0, err
	}
	cmd := exec.CommandContext(ctx, margay, append([]string{"-m", m.Machine, "run", "-q"}, words...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals of a terminal are not for it
	var output, failure strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &failure
	begun := time.Now()
	err = cmd.Run()
	took := time.Since(begun)
	if err != nil {
		return "", 0, fmt.Errorf("margay run: %w: %s", err, strings.TrimSpace(failure.String()))
	}
	return output.String(), took, nil
}
