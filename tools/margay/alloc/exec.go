package alloc

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
	"margay/tools/margay/job"
)

func (a commands) execCommand() *cobra.Command {
	var f job.Flags
	c := &cobra.Command{
		Use:   "exec [flags] COMMAND [ARGUMENT...]",
		Short: "Run a command on nodes of an allocation, one process on each",
		Long: `Run a command on each node of an allocation, or on the nodes of -w, as a step of the allocation: a job of one process on each node, with one
core there, or as many as -c says. It ends with the allocation.

Several steps run at a time as long as the allocation has free cores; --wait waits for them. The command is copied to the nodes, as with
margay run. On hosted nodes, --root host gives it the programs of this host. Standard input goes to the process on the first node, output
and standard error come back. When one process fails the others go on. The status comes from the lowest node where it failed.

With --network the processes have the network of the allocation. Steps that have it reach each other under the names of the nodes; on each
node one step at a time can have it.`,
		Example: `  margay exec hostname                          # on each node of the allocation around this command
  margay exec -w node1 --root host sh -c 'uptime; ps ax'
  margay exec --allocation 12 --label=host uname -r
  margay exec -w node0 --pty --root host bash`,
		Args: command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.Positive(c, "cpus-per-task", "time"); err != nil {
				return err
			}
			if err := command.Given(c, "nodelist", "exclude", "wait", "allocation", "root"); err != nil {
				return err
			}
			return a.exec(c.Context(), &f, args)
		},
	}
	c.Flags().SetInterspersed(false)
	fs := c.Flags()
	job.AllocationFlag(fs, &f)
	job.StepFlags(fs, &f)
	return c
}

// exec runs a command on nodes of an allocation.
func (a commands) exec(ctx context.Context, f *job.Flags, argv []string) error {
	if err := f.EnterAllocation(a.App); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if f.Step == 0 {
		return fmt.Errorf("exec: this is in no allocation: margay alloc runs a command in one, and --allocation names one (margay ps)")
	}
	nodes, err := a.nodesOf(ctx, f)
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	f.Only, f.Without, f.Nodes, f.Ranks = nodeset.Ranges(nodes), "", len(nodes), len(nodes)
	f.KeepGoing, f.Joins, f.MPI = true, f.Network, "none"
	if err := f.CheckStep(); err != nil {
		return renamed("exec", fmt.Errorf("run: %w", err))
	}
	if err := job.Run(ctx, a.App, *f, argv); err != nil {
		return renamed("exec", err)
	}
	return nil
}

// nodesOf returns the nodes of the allocation that -w and -x leave.
func (a commands) nodesOf(ctx context.Context, f *job.Flags) ([]uint32, error) {
	jobs, err := command.Ask[*control.Jobs](ctx, a.App, &control.ListJobs{Job: f.Step})
	if err != nil {
		return nil, err
	}
	if len(jobs.Jobs) != 1 || !jobs.Jobs[0].Allocation {
		return nil, fmt.Errorf("job %d is not an allocation: margay alloc makes one", f.Step)
	}
	if jobs.Jobs[0].Phase == control.JobPhase_JOB_DONE {
		return nil, fmt.Errorf("allocation %d has ended", f.Step)
	}
	nodes := jobs.Jobs[0].Nodes
	if f.Only != "" {
		only, err := nodeset.Parse(f.Only)
		if err != nil {
			return nil, fmt.Errorf("-w %s: %w", f.Only, err)
		}
		for _, node := range only {
			if !slices.Contains(nodes, node) {
				return nil, fmt.Errorf("-w %s: node%d is not in allocation %d, which has %s", f.Only, node, f.Step, nodeset.Condense(nodes))
			}
		}
		nodes = only
	}
	if f.Without != "" {
		without, err := nodeset.Parse(f.Without)
		if err != nil {
			return nil, fmt.Errorf("-x %s: %w", f.Without, err)
		}
		nodes = slices.DeleteFunc(nodes, func(node uint32) bool { return slices.Contains(without, node) })
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("-x %s leaves no node", f.Without)
	}
	return nodes, nil
}
