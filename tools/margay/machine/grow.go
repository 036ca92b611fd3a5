package machine

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
)

func (a commands) growCommand() *cobra.Command {
	var noWait bool
	c := a.QuietFlag(&cobra.Command{
		Use:   "grow COUNT",
		Short: "Add nodes to a running machine",
		Long: `Add nodes to a running machine, and wait until they are up. Jobs that run are not affected. The new nodes are like those that the
machine was made with, and have the lowest numbers that are free; the number of a node that has left the machine is free.

A node that does not come up stays in the machine and is dead: margay node reboot starts it again, margay machine shrink takes it
out. The command can be interrupted while it waits; the nodes stay.`,
		Example: "  margay machine grow 2\n  margay machine grow 4 -m test --no-wait",
		Args:    command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			count, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil || count == 0 {
				return fmt.Errorf("machine grow: %q is not a number of nodes, from 1", args[0])
			}
			d, err := a.Running()
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			nodes, err := d.Grow(ctx, uint32(count), client.UserName())
			if err != nil {
				return err
			}
			a.Report("%s: added to machine %s", nodeset.Condense(nodes), a.Machine)
			if noWait {
				return nil
			}
			if err := d.AwaitUp(ctx, nodes, a.Report); err != nil {
				return fmt.Errorf("%w; margay node reboot starts a node again, margay machine shrink NODE takes it out of the machine", err)
			}
			return nil
		},
	})
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the nodes are up")
	return c
}

func (a commands) shrinkCommand() *cobra.Command {
	var now, noWait bool
	c := a.QuietFlag(&cobra.Command{
		Use:   "shrink COUNT|NODE...",
		Short: "Take nodes out of a running machine",
		Long: `Take nodes out of a running machine. They get no further jobs, and each of them ends after its last job; --now ends their jobs. The command returns when the nodes have left. It can be interrupted while it waits, and the nodes still leave
then; margay node resume keeps those in the machine that have not left yet.

A single number is how many nodes leave: first those that cannot be given jobs, then those without a job, the highest first.
Otherwise nodes are given by name and range, such as node2, 1..4 or node[1-4,10].

The numbers of nodes that have left are free for margay machine grow. The console of a node stays (margay machine console) until
the machine goes down. At least one node stays.`,
		Example: "  margay machine shrink 2\n  margay machine shrink node[4-7] --now",
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			order := &control.ShrinkMachine{Now: now, User: client.UserName()}
			count, err := strconv.ParseUint(args[0], 10, 31)
			if err != nil || len(args) > 1 {
				if order.Nodes, err = nodeset.Parse(strings.Join(args, ",")); err != nil {
					return err
				}
			} else if count == 0 {
				return fmt.Errorf("machine shrink: it is a number of nodes from 1, or nodes: node0 names one")
			}
			d, err := a.Running()
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			leaving, err := d.Shrink(ctx, order, int(count))
			if err != nil {
				return err
			}
			if len(leaving.Busy) > 0 {
				a.Report("%s: leaving when its jobs have ended (margay nodes)", nodeset.Condense(leaving.Busy))
			}
			if noWait {
				return nil
			}
			if err := d.AwaitGone(ctx, leaving); err != nil {
				return err
			}
			a.Report("%s: out of machine %s", nodeset.Condense(leaving.Nodes), a.Machine)
			return nil
		},
	})
	c.Flags().BoolVar(&now, "now", false, "end the jobs of the nodes")
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the nodes have left")
	return c
}
