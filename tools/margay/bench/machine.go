package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

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
