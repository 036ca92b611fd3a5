package machine

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
)

func (a commands) nodeCommand() *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "Drain, resume, reboot, update, approve and inspect nodes"}
	c.AddCommand(a.drainCommand(), a.evictCommand(), a.resumeCommand(), a.rebootCommand(), a.powerCommand(), a.updateCommand(), a.approveCommand(), a.nodeTokenCommand(), a.dmesgCommand())
	return c
}

func (a commands) drainCommand() *cobra.Command {
	var reason string
	c := a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:   "drain NODE...",
		Short: "Take nodes out of service; their jobs continue",
		Long: `Take nodes out of service. Their jobs continue, and they get no others until margay node resume. A node is draining until its
last job has ended, then it is drained. margay nodes shows the reason, the user and the time. They are kept when serve restarts.

Jobs that need the cores of drained nodes are refused, or wait with margay run --wait, which names the nodes and the reason. While
such a job waits for drained nodes, jobs behind it in the queue may run before it.

Nodes are given by number, name and range: 2, node2, 1..4,10 or node[1-4,10]. For a node that is drained already, a new reason
replaces the old one.`,
		Example: `  margay node drain 2 --reason "fan is broken"
  margay node drain node[1-4,10] node7`,
		Args: command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.Given(c, "reason"); err != nil {
				return err
			}
			nodes, err := nodeset.Parse(strings.Join(args, ","))
			if err != nil {
				return err
			}
			drained, err := command.Ask[*control.NodesDrained](c.Context(), a.App, &control.DrainNodes{Nodes: nodes, Reason: reason, User: client.UserName()})
			if err != nil {
				return err
			}
			a.Detail("%s: out of service", nodeset.Condense(nodes))
			if len(drained.Busy) > 0 {
				a.Detail("%s: draining, until its jobs have ended (margay nodes)", nodeset.Condense(drained.Busy))
			}
			return nil
		},
	}))
	c.Flags().StringVar(&reason, "reason", "", "why, for margay nodes and for jobs that wait")
	return c
}

func (a commands) evictCommand() *cobra.Command {
	var reason string
	c := a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:   "evict NODE...",
		Short: "Take nodes out of service, and end their jobs",
		Long: `Take nodes out of service as margay node drain does, and end the jobs that have ranks on them, on all their nodes. The jobs end as
they do when a node is lost: their margay run reports the node and the reason, and launches a job whose ranks had not started yet
on other nodes.`,
		Example: `  margay node evict 2 --reason "fan is broken"`,
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.Given(c, "reason"); err != nil {
				return err
			}
			nodes, err := nodeset.Parse(strings.Join(args, ","))
			if err != nil {
				return err
			}
			evicted, err := command.Ask[*control.NodesEvicted](c.Context(), a.App, &control.EvictNodes{Nodes: nodes, Reason: reason, User: client.UserName()})
			if err != nil {
				return err
			}
			a.Detail("%s: out of service", nodeset.Condense(nodes))
			if len(evicted.Jobs) > 0 {
				a.Detail("ended: jobs %s", nodeset.Ranges(evicted.Jobs))
			}
			return nil
		},
	}))
	c.Flags().StringVar(&reason, "reason", "", "why, for margay nodes, for the jobs and for jobs that wait")
	return c
}

func (a commands) resumeCommand() *cobra.Command {
	return a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:   "resume NODE...",
		Short: "Take drained nodes into service again",
		Long: `Take nodes into service again that margay node drain or evict took out of it. If one of them is not drained, none is changed. A node
that is to leave the machine (margay machine shrink) and still has a job stays then.`,
		Example: "  margay node resume 2\n  margay node resume node[1-4,10]",
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			nodes, err := nodeset.Parse(strings.Join(args, ","))
			if err != nil {
				return err
			}
			if _, err := command.Ask[*control.Done](c.Context(), a.App, &control.ResumeNodes{Nodes: nodes, User: client.UserName()}); err != nil {
				return err
			}
			a.Detail("%s: in service again", nodeset.Condense(nodes))
			return nil
		},
	}))
}

// rebootWait is longer than serve waits for the holder.
const rebootWait = time.Minute

func (a commands) rebootCommand() *cobra.Command {
	var force, noWait bool
	c := a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:   "reboot NODE...",
		Short: "End nodes and boot them again",
		Long: `End nodes, also those that do not answer or are dead, and boot them again. The virtual machine or the namespaces of a node end with
all processes in it. The command returns when the nodes are up; with --no-wait, when they have been started.

Nodes that have jobs are refused. Take them out of service first (margay node drain) and wait until they are drained, or end their
jobs with --force. If one node is refused, none is touched.

A node that ends without an order boots again, three times within ten minutes. Then it stays dead until this command.
margay machine restart restarts only the kernel of a node, and its jobs continue.`,
		Example: `  margay node reboot 2
  margay node reboot node[1-4] --force`,
		Args: command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			nodes, err := nodeset.Parse(strings.Join(args, ","))
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			request := &control.RebootNodes{Nodes: nodes, Force: force, User: client.UserName()}
			if _, err := command.AskWithin[*control.Done](ctx, a.App, request, rebootWait); err != nil {
				return a.goesOn(ctx, err)
			}
			a.Detail("%s: rebooted", nodeset.Condense(nodes))
			if noWait {
				return nil
			}
			d, err := a.Running()
			if err != nil {
				return err
			}
			if err := d.AwaitUp(ctx, nodes, func(string, ...any) {}); err != nil {
				return a.goesOn(ctx, err)
			}
			a.Detail("%s: up", nodeset.Condense(nodes))
			return nil
		},
	}))
	c.Flags().BoolVar(&force, "force", false, "end the jobs of the nodes")
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the nodes are up")
	return c
}
