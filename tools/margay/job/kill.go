package job

import (
	"fmt"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/internal/printable"
	"margay/tools/margay/command"
)

func (a commands) killCommand() *cobra.Command {
	var name string
	var rank int32
	var force bool
	c := a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:   "kill JOB",
		Short: "Send a signal to a job, or end it",
		Long: `Send a signal to every rank of a job, or to the one that --rank names. With --force the job is ended, whatever
its ranks do with signals.

STOP stops everything of the job on all its nodes, and CONT lets it go on; a node kernel that is away gets them when it is back, and
margay ps shows a stopped job. TERM and HUP let a stopped job go on as well, so that it can end. A stopped job keeps its cores and memory,
its time limit goes on, and --init-timeout begins again when it goes on.`,
		Example: "  margay kill 7\n  margay kill -s USR1 7\n  margay kill -s STOP 7\n  margay kill --force 7",
		Args:    command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			job, err := command.ParseJob(args[0])
			if err != nil {
				return err
			}
			sig, err := command.ParseSignal(name)
			if err != nil {
				return err
			}
			if c.Flags().Changed("rank") && rank < 0 {
				return fmt.Errorf("kill: --rank %d: it must not be negative; without the flag all ranks get the signal", rank)
			}
			if _, err = command.Ask[*control.Done](c.Context(), a.App, &control.Kill{Job: job, Rank: rank, Signal: int32(sig), Force: force}); err != nil {
				return err
			}
			switch {
			case force:
				a.Detail("job %d is ended", job)
			case rank == control.None:
				a.Detail("%s is sent to all ranks of job %d", printable.Signal(sig), job)
			default:
				a.Detail("%s is sent to rank %d of job %d", printable.Signal(sig), rank, job)
			}
			return nil
		},
	}))
	c.Flags().StringVarP(&name, "signal", "s", "TERM", "the signal, by name or number")
	c.Flags().Int32Var(&rank, "rank", control.None, "only this rank")
	c.Flags().BoolVar(&force, "force", false, "end the job")
	return c
}
