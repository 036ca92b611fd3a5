package machine

import (
	"strings"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
)

func (a commands) nodeCommand() *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "Take nodes out of service, and into it again"}
	c.AddCommand(a.drainCommand(), a.resumeCommand())
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
			drained, err := command.Ask[*control.NodesDrained](c.Context(), a.App, &control.DrainNodes{Nodes: nodes, Reason: reason, User: command.UserName()})
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

func (a commands) resumeCommand() *cobra.Command {
	return a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:     "resume NODE...",
		Short:   "Take drained nodes into service again",
		Long:    `Take nodes into service again that margay node drain took out of it. If one of them is not drained, none is changed.`,
		Example: "  margay node resume 2\n  margay node resume node[1-4,10]",
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			nodes, err := nodeset.Parse(strings.Join(args, ","))
			if err != nil {
				return err
			}
			if _, err := command.Ask[*control.Done](c.Context(), a.App, &control.ResumeNodes{Nodes: nodes}); err != nil {
				return err
			}
			a.Detail("%s: in service again", nodeset.Condense(nodes))
			return nil
		},
	}))
}
