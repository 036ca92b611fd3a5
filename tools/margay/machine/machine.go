// Package machine has the commands that make, show, change and end machines and that take their
// nodes out of service, and the daemons of a machine.
//
// Locks: kernelLogPrinter.mu guards the output of kernel logs, storm.mu the count of nodes that are
// switched. Neither is held when the other is taken.
package machine

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// commands make the commands of this group.
type commands struct{ *command.App }

// Commands returns the commands of this group.
func Commands(app *command.App) []*cobra.Command {
	a := commands{app}
	return []*cobra.Command{a.machineCommand(), a.nodeCommand(), a.loginCommand(), a.logoutCommand(), a.serveCommand(), a.holderCommand()}
}

// Dir returns the folder of the machine, which is this user's.
func (a commands) Dir() (machine.Dir, error) {
	d, err := a.App.Dir()
	return machine.Dir(d), err
}

// Running returns the folder of the machine, as App.Running does.
func (a commands) Running() (machine.Dir, error) {
	d, err := a.App.Running()
	return machine.Dir(d), err
}

func (a commands) machineCommand() *cobra.Command {
	c := &cobra.Command{Use: "machine", Short: "Make, show and end machines"}
	c.AddCommand(a.upCommand(), a.downCommand(), a.growCommand(), a.shrinkCommand(), a.statusCommand(), a.machineListCommand(), a.consoleCommand(),
		a.logsCommand(), a.auditCommand(), a.tokenCommand(), a.restartCommand(), a.coresCommand())
	return c
}

func (a commands) downCommand() *cobra.Command {
	return a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:     "down",
		Short:   "End a machine, with everything that runs on it",
		Example: "  margay machine down\n  margay machine down -m test",
		Args:    command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := a.Dir()
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			if err := machine.Down(ctx, d, a.Loss); err != nil {
				return command.GoesOn(ctx, err, fmt.Sprintf("the machine ends nevertheless; margay machine down -m %s waits until it has ended, and removes its folder", a.Machine))
			}
			a.Detail("machine %s is ended; %s is removed", a.Machine, d)
			return nil
		},
	}))
}

func (a commands) statusCommand() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:     "status",
		Short:   "Show whether a machine is up",
		Example: "  margay machine status\n  margay machine status --json | jq .free_cores",
		Args:    command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := a.Running()
			if err != nil {
				return err
			}
			pid, _ := d.Holder()
			status, err := command.Ask[*control.MachineStatus](c.Context(), a.App, &control.Status{})
			if err != nil {
				return err
			}
			status.HolderPid = int64(pid)
			if a.JSON {
				return show.Message(a.Stdout, status)
			}
			text := fmt.Sprintf("machine %s (%s): %d of %d nodes up%s, %d of %d application cores free, %s\n",
				status.Machine, status.Substrate, status.Up, status.Nodes, out(status), status.FreeCores, status.Cores, printable.Count(int(status.Jobs), "job"))
			if pid != 0 { // it is this user's machine
				times := ""
				if status.ServeStarts > 1 {
					times = fmt.Sprintf("%d times, last ", status.ServeStarts)
				}
				text += fmt.Sprintf("holder: process %d; serve: process %d, started %s%s ago\nlogs: %s\n",
					pid, status.ServePid, times, time.Since(time.Unix(0, status.SinceNs)).Round(time.Second), filepath.Dir(d.Log("serve")))
			}
			_, err = fmt.Fprint(a.Stdout, text+letsIn(status))
			return err
		},
	})
}

// out says how many nodes are out of service, if any are.
func out(m *control.MachineStatus) (text string) {
	if m.Off > 0 {
		text = fmt.Sprintf(", %d off", m.Off)
	}
	if m.Drained > 0 {
		text += fmt.Sprintf(", %d drained", m.Drained)
	}
	return text
}

// restartWait is longer than serve waits for a kernel that was started again.
const restartWait = time.Minute

func (a commands) restartCommand() *cobra.Command {
	return a.QuietFlag(a.VerboseFlag(&cobra.Command{
		Use:     "restart NODE",
		Short:   "Restart the kernel of a node; its jobs continue",
		Example: "  margay machine restart node2",
		Args:    command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			node, err := nodeset.ParseNode(args[0])
			if err != nil {
				return err
			}
			if _, err = command.AskWithin[*control.Done](c.Context(), a.App, &control.RestartKernel{Node: node}, restartWait); err != nil {
				return err
			}
			a.Detail("the kernel of node%d was started again", node)
			return nil
		},
	}))
}
