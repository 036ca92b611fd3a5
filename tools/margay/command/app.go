// Package command holds the common parts of the groups of margay commands: standard streams, the
// selected machine and the connection to its serve, errors of wrong arguments, exit statuses,
// signals and terminals.
//
// Locks: RawTerminal.mu guards the state of the terminal, Output.mu the first error of the output,
// Catcher.mu the end of catching. None of them is held while another one is taken.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/folder"
	"margay/cluster/login"
	"margay/tools/margay/show"
)

// AnswerTimeout bounds how long a question to serve may take.
const AnswerTimeout = 10 * time.Second

// ChangeTimeout bounds how long a change of the extensions of nodes may take.
const ChangeTimeout = control.ChangeTimeout + AnswerTimeout

// App holds the common state of the commands.
type App struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Machine        string
	JSON           bool
	Verbose        bool
	Quiet          bool
	Color          show.When
	Version        string    // of this build
	Began          time.Time // this command
}

// Dir returns the folder of the machine, which is this user's.
func (a *App) Dir() (folder.Dir, error) {
	if owner, _, is := strings.Cut(a.Machine, ":"); is {
		return "", fmt.Errorf("machine %s: that is for %s alone, whose processes and files the machine is", a.Machine, owner)
	}
	d, err := folder.Of(a.Machine)
	if _, is := a.login(); is {
		return "", fmt.Errorf("machine %s is on another host (margay login): that can be done there only", a.Machine)
	}
	if err != nil && strings.Contains(a.Machine, "=") {
		err = fmt.Errorf("%w; -m names the machine, a flag of several letters has two dashes: --m%s", err, a.Machine)
	}
	return d, err
}

// login returns the folder of the login that the name of the machine stands for, and whether it is
// one: a machine of this host comes first.
func (a *App) login() (dir folder.Dir, is bool) {
	path, err := login.Dir(a.Machine)
	if err != nil || !login.Exists(path) {
		return "", false
	}
	here, err := folder.Of(a.Machine)
	return folder.Dir(path), err != nil || errors.Is(here.Check(), folder.ErrNoMachine)
}

// Remote reports whether the machine is one of another host.
func (a *App) Remote() bool {
	_, is := a.login()
	return is
}

// JSONFlag gives a command that lists something the flag for programs.
func (a *App) JSONFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.JSON, "json", false, "print JSON")
	return c
}

// ColorFlag gives a command that prints states the flag that says when they have colors.
func (a *App) ColorFlag(c *cobra.Command) *cobra.Command {
	c.Flags().Var(&a.Color, "color", "color states: auto, always or never; auto: on a terminal, unless NO_COLOR is in the environment")
	return c
}

// Table begins a table on the standard output.
func (a *App) Table(columns ...string) *show.Table {
	t := show.NewTable(a.Stdout, columns...)
	t.Colors = a.Color.On(a.Stdout)
	return t
}

// VerboseFlag gives a command that is silent on success the flag to print what it has done.
func (a *App) VerboseFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVarP(&a.Verbose, "verbose", "v", false, "print what was done")
	return c
}

// QuietFlag gives a command the flag to print nothing but errors. It refuses --quiet together with
// --verbose.
func (a *App) QuietFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVarP(&a.Quiet, "quiet", "q", false, "print nothing but errors")
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if a.Quiet && a.Verbose {
			return fmt.Errorf("%s: -q and -v exclude each other", Called(c))
		}
		return run(c, args)
	}
	return c
}

// Report prints a line about the progress of a command, unless it is quiet.
func (a *App) Report(format string, args ...any) {
	if !a.Quiet {
		fmt.Fprintf(a.Stderr, format+"\n", args...)
	}
}

// Loss prints a line about something that is lost, also if the command is quiet.
func (a *App) Loss(format string, args ...any) {
	fmt.Fprintf(a.Stderr, "margay: "+format+"\n", args...)
}

// Detail prints what a command has done, if Verbose is set.
func (a *App) Detail(format string, args ...any) {
	if a.Verbose {
		fmt.Fprintf(a.Stderr, "margay: "+format+"\n", args...)
	}
}

// Running returns the folder with the machine's socket: the machine's own, the door of another
// user's, or a login. It is an error when a machine of this host is not up.
func (a *App) Running() (folder.Dir, error) {
	if d, is, err := folder.Door(a.Machine); is {
		return d, err
	}
	if d, is := a.login(); is {
		return d, nil
	}
	d, err := a.Dir()
	if err != nil {
		return "", err
	}
	if err := d.Made(); err != nil {
		return "", err
	}
	switch pid, alive := d.Holder(); {
	case alive:
	case pid == 0:
		return "", fmt.Errorf("machine %s has no holder: it is being made or ended, or that was interrupted; margay machine down -m %[1]s removes the rest", a.Machine)
	default:
		return "", fmt.Errorf("machine %s is dead: its holder (process %d) was killed; margay machine down -m %[1]s removes the rest", a.Machine, pid)
	}
	return d, nil
}

// Socket returns where the machine's serve listens. It is an error when the machine is not up.
func (a *App) Socket() (string, error) {
	d, err := a.Running()
	if err != nil {
		return "", err
	}
	return d.Socket(), nil
}

// Pause waits between two requests to the machine's serve. It returns an error as soon as the
// machine goes down or ctx ends. A restart of serve does not matter.
func (a *App) Pause(ctx context.Context, d time.Duration) error {
	socket, err := a.Socket()
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if err := client.Await(waiting, socket); client.Gone(err) {
		return err
	}
	<-waiting.Done()
	return context.Cause(ctx)
}

// Ask makes one request to the machine's serve.
func Ask[Answer proto.Message](ctx context.Context, a *App, request proto.Message) (Answer, error) {
	return AskWithin[Answer](ctx, a, request, AnswerTimeout)
}

// AskWithin makes a request with a timeout.
func AskWithin[Answer proto.Message](ctx context.Context, a *App, request proto.Message, timeout time.Duration) (Answer, error) {
	var none Answer
	socket, err := a.Socket()
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return client.Ask[Answer](ctx, socket, request)
}

// Samples reads the counters of all nodes.
func (a *App) Samples(ctx context.Context) (*control.Samples, error) {
	socket, err := a.Socket()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, AnswerTimeout)
	defer cancel()
	return client.Ask[*control.Samples](ctx, socket, &control.TakeSamples{Node: control.None})
}
