package machine

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/tools/margay/command"
)

func (a commands) coresCommand() *cobra.Command {
	var all, message string
	node := int32(control.None)
	c := a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:   "cores",
		Short: "Change the use of the cores of nodes, without a reboot",
		Long: `Change the use of the cores of nodes, without a reboot and beside running jobs.

At first core 0 of a node serves the node, and the others compute for applications. With --all on core 0 computes as
well; it cannot be free of interrupts and of the timer's tick, as the others are. With --message-core on the last core
handles messages and does nothing else: it always looks for them, so that ranks send without a system call.

A core that a job has is not taken from it; the refusal names the job. margay nodes shows the settings in force, and a
restarted node kernel keeps them.`,
		Example: `  margay machine cores --message-core on
  margay machine cores --all on --node 3
  margay machine cores --all off --message-core off`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			request := &control.SetDuties{Node: node}
			var err1, err2 error
			request.AllCores, err1 = parseSwitch("--all", all)
			request.MessageCore, err2 = parseSwitch("--message-core", message)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			if request.AllCores == control.Switch_SWITCH_KEEP && request.MessageCore == control.Switch_SWITCH_KEEP {
				return errors.New("there is nothing to change: use --all or --message-core, on or off (margay nodes shows the settings)")
			}
			if _, err := command.Ask[*control.Done](c.Context(), a.App, request); err != nil {
				return err
			}
			where := "on all nodes"
			if request.Node != control.None {
				where = fmt.Sprintf("on node%d", request.Node)
			}
			if all != "" {
				a.Detail("core 0 computes for applications, %s: %s", where, all)
			}
			if message != "" {
				a.Detail("the last core handles messages and nothing else, %s: %s", where, message)
			}
			return nil
		},
	}))
	c.Flags().StringVar(&all, "all", "", "whether core 0 computes for applications, too: on or off")
	c.Flags().StringVar(&message, "message-core", "", "whether the last core handles messages and nothing else: on or off")
	a.NodeFlag(c, &node, "only on this node")
	return c
}

// parseSwitch reads the value of a flag that is on or off, or is not given.
func parseSwitch(flag, text string) (control.Switch, error) {
	switch text {
	case "":
		return control.Switch_SWITCH_KEEP, nil
	case "on":
		return control.Switch_SWITCH_ON, nil
	case "off":
		return control.Switch_SWITCH_OFF, nil
	}
	return 0, fmt.Errorf("%s %s: it is on or off", flag, text)
}
