package job

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/internal/slack"
	"margay/tools/margay/command"
)

func (a commands) debugCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "debug JOB [RANK] [GDB-ARGUMENT...]",
		Short: "Debug a rank of a running job with gdb",
		Long: `Start gdb for a rank of a running job, with the program and the libraries of this host. The rank is stopped until gdb lets it go
on; other ranks go on. When gdb ends, the rank goes on as before. A job of one rank needs no RANK.

For a rank that is not a process of this host, gdbserver must be installed here as well. It goes to the node, runs there with the rights
of the rank while gdb does, and leaves nothing behind.

To debug from the first instruction on, start the job with margay run --attach. Parallel debuggers, and gdb with margay run, find all ranks
of a job by MPIR.`,
		Example: "  margay debug 7 0\n  margay debug 7 3 -batch -ex bt",
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			job, err := command.ParseJob(args[0])
			if err != nil {
				return err
			}
			jobs, err := command.Ask[*control.Jobs](c.Context(), a.App, &control.ListJobs{Job: job})
			if err != nil {
				return err
			}
			if err := a.refusal(c.Context(), jobs); err != nil {
				return err
			}
			rank, more, err := debugged(jobs, job, args[1:])
			if err != nil {
				return fmt.Errorf("debug: %w", err)
			}
			if pid := processesHere(a.App, job)[rank]; pid != 0 {
				return execGDB(pid, more)
			}
			return a.debugThere(c.Context(), job, rank, more)
		},
	}
	c.Flags().SetInterspersed(false) // flags after the job are gdb's
	return c
}

// debugged returns the running rank of a job that arguments name, and the others, which are gdb's.
// A job of one rank needs no name for it.
func debugged(jobs *control.Jobs, job uint32, args []string) (rank uint32, more []string, err error) {
	if len(jobs.Jobs) != 1 {
		return 0, nil, fmt.Errorf("there is no job %d (margay ps -a)", job)
	}
	ranks := jobs.Jobs[0].RankStates
	switch {
	case len(args) > 0 && !strings.HasPrefix(args[0], "-"):
		number, err := strconv.ParseUint(args[0], 10, 31)
		if err != nil {
			return 0, nil, fmt.Errorf("%q is not a rank: ranks are 0, 1, 2 and so on", args[0])
		}
		rank, more = uint32(number), args[1:]
	case len(ranks) > 1:
		return 0, nil, fmt.Errorf("job %d has the ranks 0 to %d: which one? (margay debug %[1]d 0)", job, len(ranks)-1)
	default:
		more = args
	}
	i := slices.IndexFunc(ranks, func(r *control.RankState) bool { return r.Rank == rank })
	switch {
	case i < 0:
		return 0, nil, fmt.Errorf("job %d has no rank %d: its ranks are 0 to %d", job, rank, len(ranks)-1)
	case ranks[i].Ended || jobs.Jobs[0].Phase != control.JobPhase_JOB_RUNNING:
		return 0, nil, fmt.Errorf("rank %d of job %d does not run", rank, job)
	}
	return rank, more, nil
}

var errNoGDB = errors.New("debug: gdb is not installed on this host: its package is gdb, or gdb-minimal")

// execGDB replaces this process by gdb. The process has copies of files of this host under the same
// names; gdb cannot open the copies.
func execGDB(pid int, args []string) error {
	gdb, err := exec.LookPath("gdb")
	if err != nil {
		return errNoGDB
	}
	argv := []string{"gdb", "-q", "-iex", "set sysroot /", "-iex", handleStop, "-iex", handleCont}
	if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		argv = append(argv, "-iex", "file "+program)
	}
	argv = append(argv, "-p", strconv.Itoa(pid))
	err = slack.Start(slack.Application, func() error { return unix.Exec(gdb, append(argv, args...), os.Environ()) })
	if err != nil {
		return fmt.Errorf("debug: start gdb: %w", err)
	}
	return nil
}
