// Package line carries out command lines of margay: it makes the commands that a line needs,
// refuses unknown ones and suggests one to users of other systems, and words errors of flags.
//
// Two programs are margay. The user's, margay, has the commands of clients, which ask the serve of
// a machine. For all other lines it becomes margayd, which has all commands and is the daemons. A
// client starts faster with fewer packages, so this package and all below it import none that makes
// machines.
package line

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/launch"
	"margay/cluster/site"
	"margay/internal/printable"
	"margay/tools/margay/alloc"
	"margay/tools/margay/command"
	"margay/tools/margay/ext"
	"margay/tools/margay/job"
	"margay/tools/margay/observe"
	"margay/tools/margay/show"
)

// Group makes the commands of a group.
type Group func(*command.App) []*cobra.Command

// Clients are the groups of commands that ask the serve of a machine. The group of margay run is
// the first, because a line of it needs no other.
var Clients = []Group{job.Commands, alloc.Commands, observe.Commands, ext.Commands}

// Program is a program that is margay.
type Program struct {
	Version string // of this build
	Groups  []Group
	// Rest completes the tree of all commands, for lines that are about more than one command:
	// help, completion, errors. It is nil in a program that lacks commands.
	Rest func(*command.App, *cobra.Command)
	// Else becomes another program, which carries out a line that this one lacks.
	Else func() error
}

// Main executes the command line of this process and exits.
func (p *Program) Main() {
	command.KeepIgnored()
	args, err := fromSeed(filepath.Base(os.Args[0]), os.Args[1:], show.IsTerminal(os.Stdin) && show.IsTerminal(os.Stdout))
	if err != nil {
		fmt.Fprintf(os.Stderr, "margay: %s\n", printable.Lines(err.Error()))
		os.Exit(launch.ExitMargay)
	}
	status := p.execute(context.Background(), args, os.Stdin, os.Stdout, os.Stderr)
	if status.Signal != 0 {
		command.DieOf(status.Signal)
	}
	os.Exit(status.Code)
}

// Run carries out one command and returns the exit status.
func (p *Program) Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return p.execute(ctx, args, stdin, stdout, stderr).Code
}

// execute executes one command, prints its error and returns the exit status.
func (p *Program) execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) *command.ExitStatus {
	began := time.Now()
	out := &command.Output{Writer: stdout}
	app := &command.App{Stdin: stdin, Stdout: out, Stderr: stderr, Version: p.Version, Began: began}
	var err error
	if tree, has := p.Tree(app, args); has {
		tree.SetArgs(args)
		err = tree.ExecuteContext(ctx)
	} else {
		err = p.Else()
	}
	if err == nil {
		err = out.Failed()
	}
	if err == nil {
		return new(command.ExitStatus)
	}
	status := new(command.ExitStatus)
	if !errors.As(err, &status) {
		status = &command.ExitStatus{Code: launch.ExitMargay, Err: err}
	}
	if status.Err != nil {
		fmt.Fprintf(app.Stderr, "margay: %s\n", printable.Lines(err.Error()))
	}
	return status
}

// Tree makes the tree of commands, and reports whether the program can carry out the line. It makes
// groups up to the one that has the command: making all of them is a tenth of the processor time of
// margay run.
func (p *Program) Tree(a *command.App, args []string) (root *cobra.Command, has bool) {
	root = newRoot(a)
	root.AddCommand(versionCommand(a), command.GuardCommand(a))
	has = names(root, args)
	for i := 0; !has && i < len(p.Groups); i++ {
		root.AddCommand(p.Groups[i](a)...)
		has = names(root, args)
	}
	if !has && p.Rest != nil {
		p.Rest(a, root)
		has = true
	}
	root.CompletionOptions.DisableDefaultCmd = true
	closeGroups(root)
	fitHelp(root, a.Stdout)
	return root, has
}

// names reports whether a line names a command, and not only a group of them.
func names(root *cobra.Command, args []string) bool {
	c, _, _ := root.Find(args)
	return c != root && !c.HasSubCommands()
}

// newRoot makes the command margay itself.
func newRoot(a *command.App) *cobra.Command {
	root := &cobra.Command{
		Use:           "margay",
		Short:         "Run parallel applications on machines of lightweight compute nodes",
		Version:       a.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Long: `margay makes machines out of compute nodes and runs parallel applications on them, one process per core.

Machines are in the folder that MARGAY_DIR names in the environment; without it in the folder margay in XDG_RUNTIME_DIR, or in
/tmp/margay-UID.

Exit status: the status of the job for margay run; 125 when margay itself fails or ends a job whose ranks cannot continue,
126 when a program cannot be executed, 127 when it is not found, 128+N when signal N ended it. A command that SIGINT,
SIGTERM or SIGHUP has ended dies of that signal itself, which shells show as 128+N as well: Ctrl-C ends loops around it.`,
		Example: `  margay machine up                      # 4 virtual nodes with 2 application cores each
  margay run -n 8 ./app                  # one process on each core
  margay nodes                           # the nodes and their jobs
  margay machine down`,
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.PersistentFlags().StringVarP(&a.Machine, "machine", "m", cmp.Or(os.Getenv(site.MachineVariable), site.DefaultName), "the machine to use, or OWNER:MACHINE of another user (environment: MARGAY_MACHINE)")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(helpCommand())
	return root
}
