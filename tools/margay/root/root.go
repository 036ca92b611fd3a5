// Package root puts the groups of commands together to the one command margay, and carries out a
// line of it.
//
// It refuses unknown commands and suggests one to users of other systems, words errors of flags,
// completes lines for shells and writes the manual pages. A group (alloc, machine, job, observe,
// ext, nimble, bench, image) knows none of the others, but alloc and bench run jobs by job.
package root

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/launch"
	"margay/cluster/site"
	"margay/internal/printable"
	"margay/tools/margay/alloc"
	"margay/tools/margay/bench"
	"margay/tools/margay/command"
	"margay/tools/margay/ext"
	"margay/tools/margay/image"
	"margay/tools/margay/job"
	"margay/tools/margay/machine"
	"margay/tools/margay/nimble"
	"margay/tools/margay/observe"
	"margay/tools/margay/show"
)

// groups make the commands of each group. The group of margay run is the first.
var groups = []func(*command.App) []*cobra.Command{
	job.Commands, alloc.Commands, machine.Commands, observe.Commands, ext.Commands, nimble.Commands, bench.Commands, image.Commands,
}

// Main executes the command line of this process and exits. version is the version of this build.
func Main(version string) {
	command.KeepIgnored()
	args, err := fromSeed(filepath.Base(os.Args[0]), os.Args[1:], show.IsTerminal(os.Stdin) && show.IsTerminal(os.Stdout))
	if err != nil {
		fmt.Fprintf(os.Stderr, "margay: %s\n", printable.Lines(err.Error()))
		os.Exit(launch.ExitMargay)
	}
	status := execute(context.Background(), version, args, os.Stdin, os.Stdout, os.Stderr)
	if status.Signal != 0 {
		command.DieOf(status.Signal)
	}
	os.Exit(status.Code)
}

// Run carries out one command and returns the exit status.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return execute(ctx, "unknown", args, stdin, stdout, stderr).Code
}

// execute executes one command, prints its error and returns the exit status.
func execute(ctx context.Context, version string, args []string, stdin io.Reader, stdout, stderr io.Writer) *command.ExitStatus {
	began := time.Now()
	out := &command.Output{Writer: stdout}
	app := &command.App{Stdin: stdin, Stdout: out, Stderr: stderr, Version: version, Began: began}
	root := newRoot(app, args)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
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

// newRoot makes the tree of commands. If args begin with a command of the first group, the others
// are left out: making them is a tenth of the processor time of margay run.
func newRoot(a *command.App, args []string) *cobra.Command {
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
	first := groups[0](a)
	root.AddCommand(first...)
	if len(args) == 0 || !slices.ContainsFunc(first, func(c *cobra.Command) bool { return c.Name() == args[0] }) {
		for _, commands := range groups[1:] {
			root.AddCommand(commands(a)...)
		}
	}
	root.AddCommand(versionCommand(a), manCommand(a), command.GuardCommand(a))
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	completionExamples(root)
	closeGroups(root)
	complete(a, root)
	fitHelp(root, a.Stdout)
	return root
}
