package job

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/tools/margay/command"
)

func (a commands) debugCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "debug JOB RANK [GDB-ARGUMENT...]",
		Short: "Debug a rank of a running job with gdb",
		Long: `Start gdb for a rank of a running job, with the program and the libraries of this host. The rank must be on this host, on a hosted
node, and this user must be permitted to trace it. The rank is stopped until gdb lets it go on; other ranks go on.

To debug from the first instruction on, start the job with margay run --attach. Parallel debuggers, and gdb with margay run, find all ranks
of a job by MPIR.`,
		Example: "  margay debug 7 0\n  margay debug 7 3 -batch -ex bt",
		Args:    command.Arguments(2, -1),
		RunE: func(c *cobra.Command, args []string) error {
			job, err := command.ParseJob(args[0])
			if err != nil {
				return err
			}
			rank, err := strconv.ParseUint(args[1], 10, 31)
			if err != nil {
				return fmt.Errorf("debug: %q is not a rank: ranks are 0, 1, 2 and so on", args[1])
			}
			jobs, err := command.Ask[*control.Jobs](c.Context(), a.App, &control.ListJobs{Job: job})
			if err != nil {
				return err
			}
			if err := a.refusal(c.Context(), jobs); err != nil {
				return err
			}
			if err := runs(jobs, job, uint32(rank)); err != nil {
				return fmt.Errorf("debug: %w", err)
			}
			pid := processesHere(a.App, job)[uint32(rank)]
			if pid == 0 {
				return fmt.Errorf("debug: rank %d of job %d is not a process of this host that this user may trace: its node is a virtual machine or another host, or the machine is another user's (margay backtrace %d %d works)",
					rank, job, job, rank)
			}
			return execGDB(pid, args[2:])
		},
	}
	c.Flags().SetInterspersed(false) // flags after the job are gdb's
	return c
}

// runs reports why a rank of a job cannot be debugged, nil if it runs.
func runs(jobs *control.Jobs, job, rank uint32) error {
	if len(jobs.Jobs) != 1 {
		return fmt.Errorf("there is no job %d (margay ps -a)", job)
	}
	ranks := jobs.Jobs[0].RankStates
	i := slices.IndexFunc(ranks, func(r *control.RankState) bool { return r.Rank == rank })
	switch {
	case i < 0:
		return fmt.Errorf("job %d has no rank %d: its ranks are 0 to %d", job, rank, len(ranks)-1)
	case ranks[i].Ended || jobs.Jobs[0].Phase != control.JobPhase_JOB_RUNNING:
		return fmt.Errorf("rank %d of job %d does not run", rank, job)
	}
	return nil
}

// execGDB replaces this process by gdb. The process has copies of files of this host under the same
// names; gdb cannot open the copies.
func execGDB(pid int, args []string) error {
	gdb, err := exec.LookPath("gdb")
	if err != nil {
		return fmt.Errorf("debug: gdb is not installed: %w", err)
	}
	argv := []string{"gdb", "-q", "-iex", "set sysroot /"}
	if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		argv = append(argv, "-iex", "file "+program)
	}
	argv = append(argv, "-p", strconv.Itoa(pid))
	if err := unix.Exec(gdb, append(argv, args...), os.Environ()); err != nil {
		return fmt.Errorf("debug: start gdb: %w", err)
	}
	return nil
}
