package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/internal/printable"
)

func (a *app) psCommand() *cobra.Command {
	var all bool
	c := a.jsonFlag(&cobra.Command{
		Use:   "ps [JOB]",
		Short: "List jobs, or the ranks of one",
		Args:  arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			request := &control.ListJobs{All: all}
			if len(args) == 1 {
				job, err := parseJob(args[0])
				if err != nil {
					return err
				}
				request.Job = job
			}
			jobs, err := ask[*control.Jobs](c.Context(), a, request)
			if err != nil {
				return err
			}
			switch {
			case a.json:
				return printJSON(a.stdout, jobs)
			case request.Job != 0:
				return a.printRanks(jobs.Jobs[0], a.used(c.Context(), jobs.Jobs[0]))
			}
			return a.printJobs(jobs)
		},
	})
	c.Flags().BoolVarP(&all, "all", "a", false, "jobs that have ended, too")
	return c
}

func (a *app) printJobs(jobs *control.Jobs) error {
	t := newTable(a.stdout, "JOB", "USER", "RANKS", "NODES", "STATE", "TIME", "COMMAND")
	for _, j := range jobs.Jobs {
		t.row(j.Job, j.User, j.Ranks, ranges(j.Nodes), jobState(j), jobTime(j), j.Command)
	}
	return t.flush()
}

// used is what the ranks of a job that runs have used so far, by their numbers. Of nodes that do not answer nothing is known.
func (a *app) used(ctx context.Context, j *control.JobSummary) map[uint32]*control.RankSample {
	if j.Phase == control.JobPhase_JOB_DONE {
		return nil
	}
	samples, err := a.samples(ctx)
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

func (a *app) printRanks(j *control.JobSummary, running map[uint32]*control.RankSample) error {
	fmt.Fprintf(a.stdout, "job %d of %s: %s, %s\n", j.Job, printable.Line(j.User), printable.Line(j.Command), jobState(j))
	if j.Error != "" {
		fmt.Fprintln(a.stdout, printable.Lines(j.Error))
	}
	if j.Missing != "" && j.Missing != j.Error {
		fmt.Fprintln(a.stdout, "its output is not complete:", printable.Lines(j.Missing))
	}
	if text := launch.Unkept(j.Unkept); text != "" {
		fmt.Fprintln(a.stdout, text)
	}
	t := newTable(a.stdout, "RANK", "NODE", "CORE", "CPU TIME", "MAJOR FAULTS", "PREEMPTED", "STATE")
	for _, r := range j.RankStates {
		node, used := fmt.Sprintf("node%d", r.Node), r.GetExit().GetUsage()
		if r.Ended {
			t.row(r.Rank, node, r.Core, launch.Computed(used), used.GetMajorFaults(), used.GetPreemptions(), launch.Describe(r.Exit))
		} else if now := running[r.Rank]; now != nil {
			t.row(r.Rank, node, r.Core, time.Duration(now.CpuNs).Round(time.Millisecond), now.MajorFaults, now.Involuntary, "running")
		} else {
			t.row(r.Rank, node, r.Core, "-", "-", "-", unknownEnd(j))
		}
	}
	return t.flush()
}

// unknownEnd is the state of a rank whose end has not been reported. In a job that has ended none runs any more.
func unknownEnd(j *control.JobSummary) string {
	if j.Phase == control.JobPhase_JOB_DONE {
		return "ended with the job"
	}
	return "running"
}

// phaseNames are the states of jobs in words.
var phaseNames = map[control.JobPhase]string{
	control.JobPhase_JOB_PREPARED: "starting",
	control.JobPhase_JOB_RUNNING:  "running",
	control.JobPhase_JOB_ENDING:   "ending",
}

func jobState(j *control.JobSummary) string {
	if name, ok := phaseNames[j.Phase]; ok {
		return name
	}
	return fmt.Sprintf("ended (%d)", j.ExitCode)
}

func jobTime(j *control.JobSummary) string {
	end := time.Now()
	if j.EndNs != 0 {
		end = time.Unix(0, j.EndNs)
	}
	return end.Sub(time.Unix(0, j.StartNs)).Round(time.Second).String()
}

func (a *app) killCommand() *cobra.Command {
	var name string
	var rank int32
	var force bool
	c := a.verboseFlag(&cobra.Command{
		Use:   "kill JOB",
		Short: "Send a signal to a job, or end it",
		Long: `Send a signal to every rank of a job, or to the one that --rank names. With --force the job is ended, whatever
its ranks do with signals.`,
		Example: "  margay kill 7\n  margay kill -s USR1 7\n  margay kill --force 7",
		Args:    arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			job, err := parseJob(args[0])
			if err != nil {
				return err
			}
			sig, err := parseSignal(name)
			if err != nil {
				return err
			}
			if c.Flags().Changed("rank") && rank < 0 {
				return fmt.Errorf("kill: --rank %d: it must not be negative; without the flag all ranks get the signal", rank)
			}
			if _, err = ask[*control.Done](c.Context(), a, &control.Kill{Job: job, Rank: rank, Signal: int32(sig), Force: force}); err != nil {
				return err
			}
			switch {
			case force:
				a.tell("job %d is ended", job)
			case rank == control.None:
				a.tell("%s is sent to all ranks of job %d", unix.SignalName(sig), job)
			default:
				a.tell("%s is sent to rank %d of job %d", unix.SignalName(sig), rank, job)
			}
			return nil
		},
	})
	c.Flags().StringVarP(&name, "signal", "s", "TERM", "the signal, by name or number")
	c.Flags().Int32Var(&rank, "rank", control.None, "only this rank")
	c.Flags().BoolVar(&force, "force", false, "end the job")
	return c
}

func (a *app) logsCommand() *cobra.Command {
	var label, remove, all bool
	c := a.verboseFlag(&cobra.Command{
		Use:   "logs JOB",
		Short: "Show the output of a detached job, and go on while it runs; or remove it",
		Long: `Show what a detached job has written, and what it writes until it ends. How it has ended is said on standard error when that
was no success. Exit status: 0 when all output was shown, however the job has ended; 125 when some of it is missing.

The output is kept in the machine's folder, in output/job-N, until the machine ends, or --remove removes it: that of the jobs that
are named, or with --all that of all jobs that have ended. It goes earlier with a job that margay ps --all has forgotten. Of each
job ` + keptOutput + ` are kept; a mark says that more came.`,
		Example: "  margay logs 7\n  margay logs --remove 7 8\n  margay logs --remove --all",
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case all && !remove:
				return fmt.Errorf("logs: --all is for --remove: margay logs --remove --all")
			case label && remove:
				return fmt.Errorf("logs: --label is for what is shown, and --remove shows nothing")
			case all:
				return noArguments(c, args)
			case remove:
				return arguments(1, -1)(c, args)
			}
			return arguments(1, 1)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			var jobs []uint32
			for _, arg := range args {
				job, err := parseJob(arg)
				if err != nil {
					return err
				}
				jobs = append(jobs, job)
			}
			if remove {
				return a.removeLogs(c.Context(), jobs)
			}
			socket, err := a.socket()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
			defer stop()
			return launch.Replay(ctx, socket, jobs[0], label, a.stdout, a.stderr)
		},
	})
	c.Flags().BoolVarP(&label, "label", "l", false, "begin each line with the rank that wrote it")
	c.Flags().BoolVar(&remove, "remove", false, "remove the output instead of showing it; several jobs may be named")
	c.Flags().BoolVar(&all, "all", false, "with --remove: the output of all jobs that have ended")
	return c
}

// removeLogs removes the kept output of jobs; of all that have ended when none is named.
func (a *app) removeLogs(ctx context.Context, jobs []uint32) error {
	removed, err := ask[*control.OutputRemoved](ctx, a, &control.RemoveOutput{Jobs: jobs})
	switch {
	case err != nil:
		return err
	case len(removed.Jobs) == 0:
		a.tell("no output is kept")
	case len(removed.Jobs) == 1:
		a.tell("the output of job %d is removed, %d KiB", removed.Jobs[0], removed.Bytes>>10)
	default:
		a.tell("the output of jobs %s is removed, %d KiB", ranges(removed.Jobs), removed.Bytes>>10)
	}
	return nil
}

func parseJob(text string) (uint32, error) {
	job, err := strconv.ParseUint(text, 10, 32)
	if err != nil || job == 0 {
		return 0, fmt.Errorf("%q is no job: jobs have numbers (margay ps)", text)
	}
	return uint32(job), nil
}

func parseNode(text string) (uint32, error) {
	node, err := strconv.ParseUint(strings.TrimPrefix(text, "node"), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is no node: they are called node0 or 0, node1 or 1, and so on (margay nodes)", text)
	}
	return uint32(node), nil
}

// nodeFlag gives a command the flag that names a node. Without it node stays what it is.
func (a *app) nodeFlag(c *cobra.Command, node *int32, usage string) {
	c.Flags().Var(nodeValue{node}, "node", usage)
}

// nodeValue is the value of --node: node2, or 2.
type nodeValue struct{ node *int32 }

func (v nodeValue) Set(text string) error {
	node, err := parseNode(text)
	*v.node = int32(node)
	return err
}

func (v nodeValue) String() string {
	if v.node == nil || *v.node == control.None {
		return ""
	}
	return fmt.Sprintf("node%d", *v.node)
}

func (v nodeValue) Type() string { return "node" }

func parseSignal(text string) (syscall.Signal, error) {
	if number, err := strconv.Atoi(text); err == nil && number > 0 && number < 65 {
		return syscall.Signal(number), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("%q is no signal", text)
}
