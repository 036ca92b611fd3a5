package main

import (
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/launch"
)

func (a *app) psCommand() *cobra.Command {
	var all bool
	c := a.jsonFlag(&cobra.Command{
		Use:   "ps [JOB]",
		Short: "List jobs, or the ranks of one",
		Args:  cobra.MaximumNArgs(1),
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
				return a.printRanks(jobs.Jobs[0])
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

func (a *app) printRanks(j *control.JobSummary) error {
	fmt.Fprintf(a.stdout, "job %d of %s: %s, %s\n", j.Job, j.User, j.Command, jobState(j))
	if j.Error != "" {
		fmt.Fprintln(a.stdout, j.Error)
	}
	t := newTable(a.stdout, "RANK", "NODE", "CORE", "CPU TIME", "MAJOR FAULTS", "PREEMPTED", "STATE")
	for _, r := range j.RankStates {
		node, used := fmt.Sprintf("node%d", r.Node), r.GetExit().GetUsage()
		if r.Ended {
			t.row(r.Rank, node, r.Core, launch.Computed(used), used.GetMajorFaults(), used.GetPreemptions(), launch.Describe(r.Exit))
		} else {
			t.row(r.Rank, node, r.Core, "-", "-", "-", "running")
		}
	}
	return t.flush()
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
	var rank int
	var force bool
	c := &cobra.Command{
		Use:   "kill JOB",
		Short: "Send a signal to a job, or end it",
		Long: `Send a signal to every rank of a job, or to the one that --rank names. With --force the job is ended, whatever
its ranks do with signals.`,
		Example: "  margay kill 7\n  margay kill -s USR1 7\n  margay kill --force 7",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			job, err := parseJob(args[0])
			if err != nil {
				return err
			}
			sig, err := parseSignal(name)
			if err != nil {
				return err
			}
			_, err = ask[*control.Done](c.Context(), a, &control.Kill{Job: job, Rank: int32(rank), Signal: int32(sig), Force: force})
			return err
		},
	}
	c.Flags().StringVarP(&name, "signal", "s", "TERM", "the signal, by name or number")
	c.Flags().IntVar(&rank, "rank", control.None, "only this rank")
	c.Flags().BoolVar(&force, "force", false, "end the job")
	return c
}

func (a *app) logsCommand() *cobra.Command {
	var label bool
	c := &cobra.Command{
		Use:   "logs JOB",
		Short: "Show the output of a detached job, and go on while it runs",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			job, err := parseJob(args[0])
			if err != nil {
				return err
			}
			socket, err := a.socket()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			conn, err := client.Dial(ctx, socket)
			if err != nil {
				return err
			}
			defer conn.Close()
			return launch.Replay(ctx, conn, job, label, a.stdout, a.stderr)
		},
	}
	c.Flags().BoolVar(&label, "label", false, "begin each line with the rank that wrote it")
	return c
}

func parseJob(text string) (uint32, error) {
	job, err := strconv.ParseUint(text, 10, 32)
	if err != nil || job == 0 {
		return 0, fmt.Errorf("%q is no job: jobs have numbers (margay ps)", text)
	}
	return uint32(job), nil
}

func parseNode(text string) (uint32, error) {
	node, err := strconv.ParseUint(strings.TrimPrefix(text, "node"), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is no node: nodes have numbers (margay nodes)", text)
	}
	return uint32(node), nil
}

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
