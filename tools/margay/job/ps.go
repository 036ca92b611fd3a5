package job

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

func (a commands) psCommand() *cobra.Command {
	var all bool
	c := a.ColorFlag(a.JSONFlag(&cobra.Command{
		Use:   "ps [JOB]",
		Short: "List jobs, or the ranks of one",
		Long: `List the jobs that run or wait for cores (margay run --wait), or the ranks of one job. A waiting job has no number yet; a line below
the table gives the reason. An allocation (margay alloc) is a job without processes on its nodes: its steps have its number after theirs.`,
		Example: `  margay ps
  margay ps --all              # jobs that have ended, too
  margay ps 7                  # the ranks of job 7, and what each has used
  margay ps --json | jq -r '.jobs[].job'`,
		Args: command.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			request := &control.ListJobs{All: all}
			if len(args) == 1 {
				job, err := command.ParseJob(args[0])
				if err != nil {
					return err
				}
				request.Job = job
			}
			jobs, err := command.Ask[*control.Jobs](c.Context(), a.App, request)
			if err != nil {
				return err
			}
			switch {
			case a.JSON:
				return show.Message(a.Stdout, jobs)
			case request.Job != 0:
				return a.printRanks(jobs.Jobs[0], a.used(c.Context(), jobs.Jobs[0]))
			}
			return a.printJobs(jobs)
		},
	}))
	c.Flags().BoolVarP(&all, "all", "a", false, "jobs that have ended, too")
	return c
}

func (a commands) printJobs(jobs *control.Jobs) error {
	t := a.Table("JOB", "USER", "RANKS", "NODES", "STATE", "TIME", "COMMAND")
	for _, j := range jobs.Jobs {
		t.Row(jobNumber(j), j.User, j.Ranks, nodeset.Ranges(j.Nodes), show.State{Text: State(j), Color: color(j)}, jobTime(j), commandOf(j.Command, j.Hidden))
	}
	for _, w := range jobs.Waiting {
		command := commandOf(w.Command, w.Hidden)
		if w.Tasks > 1 {
			command = fmt.Sprintf("%s (%d tasks of array %d)", command, w.Tasks, w.Array)
		}
		t.Row("-", w.User, w.Ranks, "-", show.State{Text: "waiting", Color: show.Passing}, since(w.SinceNs, time.Now()), command)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, w := range jobs.Waiting {
		if w.Why == "" {
			continue
		}
		what := commandOf(w.Command, w.Hidden)
		note := what + ": " + w.Why
		if rest, ok := strings.CutPrefix(w.Why, "waiting "); ok {
			note = what + " waits " + rest
		}
		if _, err := fmt.Fprintln(a.Stdout, show.Fold(printable.Line(note), show.Width(a.Stdout), 4)); err != nil {
			return err
		}
	}
	return nil
}

// commandOf is what a job runs, which another user does not see.
func commandOf(command string, hidden bool) string {
	if hidden {
		return "(hidden)"
	}
	return command
}

// jobNumber is the number of a job, of a step also its allocation, and of a task also its array and
// its number there.
func jobNumber(j *control.JobSummary) string {
	if j.Step != 0 {
		return fmt.Sprintf("%d (in %d)", j.Job, j.Step)
	}
	if j.Task == nil {
		return fmt.Sprint(j.Job)
	}
	return fmt.Sprintf("%d (%d_%d)", j.Job, j.Task.Array, j.Task.Id)
}

// used is what the ranks of a job that runs have used so far, by their numbers. Of nodes that do
// not answer nothing is known.
func (a commands) used(ctx context.Context, j *control.JobSummary) map[uint32]*control.RankSample {
	if j.Phase == control.JobPhase_JOB_DONE || j.Hidden {
		return nil
	}
	samples, err := a.Samples(ctx)
	if err != nil {
		return nil
	}
	used := make(map[uint32]*control.RankSample)
	for _, node := range samples.Nodes {
		for _, r := range node.Ranks {
			if r.Job == j.Job {
				used[r.Rank] = r
			}
		}
	}
	return used
}

func (a commands) printRanks(j *control.JobSummary, samples map[uint32]*control.RankSample) error {
	fmt.Fprintf(a.Stdout, "job %d of %s: %s, %s\n", j.Job, printable.Line(j.User), printable.Line(commandOf(j.Command, j.Hidden)), State(j))
	if j.Error != "" {
		fmt.Fprintln(a.Stdout, printable.Lines(j.Error))
	}
	if j.Missing != "" && j.Missing != j.Error {
		fmt.Fprintln(a.Stdout, "its output is not complete:", printable.Lines(j.Missing))
	}
	if text := launch.Unkept(j.Unkept); text != "" {
		fmt.Fprintln(a.Stdout, text)
	}
	t := a.Table("RANK", "NODE", "CORE", "CPU TIME", "MAJOR FAULTS", "PREEMPTED", "STATE")
	for _, r := range j.RankStates {
		node, used := fmt.Sprintf("node%d", r.Node), r.GetExit().GetUsage()
		if r.Ended && j.Hidden {
			t.Row(r.Rank, node, r.Core, "-", "-", "-", show.State{Text: "ended", Color: show.Past})
		} else if r.Ended {
			t.Row(r.Rank, node, r.Core, launch.Computed(used), used.GetMajorFaults(), used.GetPreemptions(), rankEnd(r.Exit))
		} else if now := samples[r.Rank]; now != nil {
			t.Row(r.Rank, node, r.Core, time.Duration(now.CpuNs).Round(time.Millisecond), now.MajorFaults, now.Involuntary, running)
		} else {
			t.Row(r.Rank, node, r.Core, "-", "-", "-", unknownEnd(j))
		}
	}
	return t.Flush()
}

// unknownEnd is the state of a rank whose end has not been reported. In a job that has ended none
// runs any more.
func unknownEnd(j *control.JobSummary) show.State {
	if j.Phase == control.JobPhase_JOB_DONE {
		return show.State{Text: "ended with the job", Color: show.Bad}
	}
	return running
}

// running is the state of a rank that has not ended.
var running = show.State{Text: "running", Color: show.Good}

// rankEnd is the state of a rank that has ended.
func rankEnd(e *control.ExitStatus) show.State {
	s := show.State{Text: launch.Describe(e), Color: show.Past}
	if e.GetCode() != 0 || e.GetSignal() != 0 || e.GetReason() != "" {
		s.Color = show.Bad
	}
	return s
}

// phaseNames are the states of jobs in words.
var phaseNames = map[control.JobPhase]string{
	control.JobPhase_JOB_PREPARED: "starting",
	control.JobPhase_JOB_RUNNING:  "running",
	control.JobPhase_JOB_ENDING:   "ending",
}

// State is the state of a job in words.
func State(j *control.JobSummary) string {
	if j.Stopped {
		return "stopped"
	}
	if j.Allocation && j.Phase == control.JobPhase_JOB_RUNNING {
		return "allocated"
	}
	if name, ok := phaseNames[j.Phase]; ok {
		return name
	}
	return fmt.Sprintf("ended (%d)", j.ExitCode)
}

// color is the color of a job's state.
func color(j *control.JobSummary) show.Color {
	switch {
	case j.Stopped:
		return show.Passing
	case j.Phase == control.JobPhase_JOB_RUNNING:
		return show.Good
	case j.Phase != control.JobPhase_JOB_DONE:
		return show.Passing
	case j.ExitCode == 0:
		return show.Past
	}
	return show.Bad
}

func jobTime(j *control.JobSummary) string {
	end := time.Now()
	if j.EndNs != 0 {
		end = time.Unix(0, j.EndNs)
	}
	return since(j.StartNs, end)
}

// since is the time from a moment to another.
func since(startNs int64, end time.Time) string {
	return end.Sub(time.Unix(0, startNs)).Round(time.Second).String()
}
