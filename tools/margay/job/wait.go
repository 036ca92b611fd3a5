package job

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// waitPause is the time between two questions whether a job has ended.
const waitPause = 300 * time.Millisecond

// ended is the end of a job, as margay wait --json prints it.
type ended struct {
	Job      uint32 `json:"job"`
	ExitCode int    `json:"exit_code"`
	Error    string `json:"error"`
}

func (a commands) waitCommand() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:   "wait JOB...",
		Short: "Wait until jobs have ended, and return their exit status",
		Long: `Wait until jobs have ended. The exit status is the status of the job, as margay run returns it; of several jobs, the largest. If a job
failed, the reason is printed on standard error.

Ctrl-C ends the waiting and not the jobs. Waiting continues when serve restarts.`,
		Example: `  job=$(margay run --detach -n 8 ./app) && margay wait $job
  margay wait 7 8 9 --json`,
		Args: command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			jobs, err := command.ParseJobs(args)
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
			defer stop()
			return a.wait(ctx, jobs)
		},
	})
}

// wait waits for all of the jobs. An unknown job is an error at once.
func (a commands) wait(ctx context.Context, jobs []uint32) error {
	list := make([]ended, 0, len(jobs))
	for _, job := range jobs {
		if _, err := a.summary(ctx, job); err != nil {
			return err
		}
	}
	worst := 0
	for _, job := range jobs {
		j, err := a.awaitEnd(ctx, job)
		if err != nil {
			return err
		}
		list = append(list, ended{Job: job, ExitCode: int(j.ExitCode), Error: j.Error})
		worst = max(worst, int(j.ExitCode))
		if j.ExitCode != 0 && !a.JSON {
			j.Missing = "" // nothing else here says it
			fmt.Fprintf(a.Stderr, "margay: %s\n", printable.Lines(launch.HowEnded(j)))
		}
	}
	if a.JSON {
		if err := show.Value(a.Stdout, list); err != nil {
			return err
		}
	}
	if worst != 0 {
		return &command.ExitStatus{Code: worst}
	}
	return nil
}

// awaitEnd waits until a job has ended.
func (a commands) awaitEnd(ctx context.Context, job uint32) (*control.JobSummary, error) {
	for {
		j, err := a.summary(ctx, job)
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		if err != nil || j.Phase == control.JobPhase_JOB_DONE {
			return j, err
		}
		if err := a.Pause(ctx, waitPause); err != nil {
			return nil, err
		}
	}
}

// summary asks for one job.
func (a commands) summary(ctx context.Context, job uint32) (*control.JobSummary, error) {
	jobs, err := command.Ask[*control.Jobs](ctx, a.App, &control.ListJobs{Job: job})
	if err != nil {
		return nil, err
	}
	if len(jobs.Jobs) != 1 {
		return nil, fmt.Errorf("serve has answered with %d jobs for job %d", len(jobs.Jobs), job)
	}
	return jobs.Jobs[0], nil
}
