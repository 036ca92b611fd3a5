package job

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
)

func (a commands) logsCommand() *cobra.Command {
	var remove, all bool
	var label string
	c := a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:   "logs JOB",
		Short: "Show or remove the output of a detached job",
		Long: `Show the output of a detached job until it ends. If the job failed, the reason is printed on standard error, but not with -q. Exit
status: 0 when all output was shown, whatever the status of the job (margay wait JOB has that); 125 when some of it is missing.

The output is kept in the machine's folder, in output/job-N, until the machine ends. --remove removes the output of the named jobs, or
with --all of all jobs that have ended. The output of a job that margay ps --all no longer lists is removed as well. Of each
job ` + keptOutput + ` are kept; a mark shows that there was more.`,
		Example: "  margay logs 7\n  margay logs --remove 7 8\n  margay logs --remove --all",
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case all && !remove:
				return fmt.Errorf("logs: --all is for --remove: margay logs --remove --all")
			case label != "" && remove:
				return fmt.Errorf("logs: --label is for output that is shown, and --remove shows none")
			case all:
				return command.NoArguments(c, args)
			case remove:
				return command.Arguments(1, -1)(c, args)
			}
			return command.Arguments(1, 1)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			jobs, err := command.ParseJobs(args)
			if err != nil {
				return err
			}
			if remove {
				return a.removeLogs(c.Context(), jobs)
			}
			socket, err := a.Socket()
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
			defer stop()
			return launch.Replay(ctx, launch.ReplayOptions{
				Socket: socket, Job: jobs[0], Label: labels[label], Quiet: a.Quiet, Stdout: a.Stdout, Stderr: a.Stderr,
			})
		},
	}))
	c.Flags().Lookup("quiet").Usage = "print nothing but errors and the output of ranks"
	labelFlag(c.Flags(), &label)
	c.Flags().BoolP("follow", "f", true, "continue while the job runs; always on")
	c.Flags().BoolVar(&remove, "remove", false, "remove the output instead of showing it; several jobs may be named")
	c.Flags().BoolVar(&all, "all", false, "with --remove: the output of all jobs that have ended")
	return c
}

// removeLogs removes the kept output of jobs, or without any of all jobs that have ended.
func (a commands) removeLogs(ctx context.Context, jobs []uint32) error {
	removed, err := command.Ask[*control.OutputRemoved](ctx, a.App, &control.RemoveOutput{Jobs: jobs})
	switch {
	case err != nil:
		return err
	case len(removed.Jobs) == 0:
		a.Detail("no output is kept")
	case len(removed.Jobs) == 1:
		a.Detail("the output of job %d is removed, %d KiB", removed.Jobs[0], removed.Bytes>>10)
	default:
		a.Detail("the output of jobs %s is removed, %d KiB", nodeset.Ranges(removed.Jobs), removed.Bytes>>10)
	}
	return nil
}
