package machine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/power"
	"margay/cluster/power/file"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

func (a commands) powerCommand() *cobra.Command {
	c := &cobra.Command{Use: "power", Short: "Switch nodes on and off, reset them, and show which are on"}
	c.AddCommand(
		a.powerAction(power.SwitchOn, &cobra.Command{
			Use:   "on NODE...",
			Short: "Switch nodes on",
			Long: `Switch nodes on. A node that is on stays as it is. A node that is dead, because it ended too often or did not come up, is started as
well. The command returns when the nodes have been started; margay nodes shows when they are up.`,
			Example: "  margay node power on 2\n  margay node power on 0..3 --file machine.yaml",
		}),
		a.powerAction(power.SwitchOff, &cobra.Command{
			Use:   "off NODE...",
			Short: "Switch nodes off; they stay off until they are switched on",
			Long: `Switch nodes off at once, without notice to what runs on them. They stay off until margay node power on. Nodes that are off already
stay as they are. margay nodes shows them as off, which is not a failure. Jobs that need their cores are refused, or wait with
margay run --wait.

Nodes that have jobs are refused. Take them out of service first (margay node drain) and wait until they are drained, or end their
jobs with --force. If one node is refused, none is touched. With --file no jobs are known, and the nodes are switched off.`,
			Example: "  margay node power off 2\n  margay node power off node[1-4] --force",
		}),
		a.powerAction(power.Reset, &cobra.Command{
			Use:   "reset NODE...",
			Short: "End nodes that are on, and start them again",
			Long: `End nodes at once, and start them again. Nodes that are switched off are refused. Nodes that have jobs are refused as well, unless
--force ends the jobs. The command returns when the nodes have been started; margay node reboot waits until they are up.`,
			Example: "  margay node power reset 2 --force",
		}),
		a.powerAction(power.Look, &cobra.Command{
			Use:     "status NODE...",
			Short:   "Show which nodes are on",
			Long:    "Show which nodes are on: their virtual machine or their processes run, or their hardware has power.",
			Example: "  margay node power status 0..3\n  margay node power status 0..3 --file machine.yaml --json",
		}))
	return c
}

// fileHelp ends the help of each command.
const fileHelp = `

With --file no machine is needed: a machine file lists the nodes, and says for each of them whether Redfish, IPMI, wake-on-LAN or a
command of yours switches it (docs/power.md).

Nodes are given by number, name and range: 2, node2, 1..4,10 or node[1-4,10].`

// nodePower is the result for a node, for programs.
type nodePower struct {
	Node  string `json:"node"`
	Power string `json:"power"` // on, off or unknown
	Error string `json:"error,omitempty"`
}

// powerAction completes the command for an action.
func (a commands) powerAction(action power.Action, c *cobra.Command) *cobra.Command {
	var path string
	var force bool
	c.Long += fileHelp
	c.Args = command.Arguments(1, -1)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := command.Given(c, "file"); err != nil {
			return err
		}
		nodes, err := nodeset.Parse(strings.Join(args, ","))
		if err != nil {
			return err
		}
		if path != "" && force {
			return fmt.Errorf("%s: --force has no meaning with --file, which knows no jobs", command.Called(c))
		}
		ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
		defer stop()
		var results []nodePower
		if path == "" {
			results, err = a.machinePower(ctx, action, nodes, force)
			err = a.goesOn(ctx, err)
		} else {
			results, err = a.filePower(ctx, action, nodes, path)
		}
		if results == nil {
			return err
		}
		return errors.Join(a.printPower(action, results), err)
	}
	c.Flags().StringVar(&path, "file", "", "the machine file that says how the nodes are switched, without a machine")
	if action == power.SwitchOff || action == power.Reset {
		c.Flags().BoolVar(&force, "force", false, "end the jobs of the nodes")
	}
	a.JSONFlag(c)
	if action != power.Look {
		return a.QuietFlag(a.VerboseFlag(c))
	}
	return a.ColorFlag(c)
}

// goesOn is the error of a command that gives the machine an order, which goes on when a signal
// ends the command.
func (a commands) goesOn(ctx context.Context, err error) error {
	return command.GoesOn(ctx, err, fmt.Sprintf("an order that the machine has got goes on (margay nodes -m %s)", a.Machine))
}

// printPower prints the states of nodes for status, and for programs.
func (a commands) printPower(action power.Action, results []nodePower) error {
	if a.JSON {
		return show.Value(a.Stdout, results)
	}
	if action != power.Look {
		for _, r := range results {
			if r.Error == "" {
				a.Detail("%s: %s", r.Node, r.Power)
			}
		}
		return nil
	}
	colors := map[string]show.Color{power.On.String(): show.Good, power.Off.String(): show.Passing, power.Unknown.String(): show.Bad}
	t := a.Table("NODE", "POWER")
	for _, r := range results {
		t.Row(r.Node, show.State{Text: r.Power, Color: colors[r.Power]})
	}
	return t.Flush()
}

// machinePower has the machine carry out an action.
func (a commands) machinePower(ctx context.Context, action power.Action, nodes []uint32, force bool) ([]nodePower, error) {
	var err error
	var done *control.Done
	state := power.On
	switch action {
	case power.Look:
		return a.machineStates(ctx, nodes)
	case power.Reset:
		done, err = command.AskWithin[*control.Done](ctx, a.App, &control.RebootNodes{Nodes: nodes, Force: force, User: client.UserName()}, rebootWait)
	default:
		if action == power.SwitchOff {
			state = power.Off
		}
		request := &control.SwitchNodes{Nodes: nodes, On: state == power.On, Force: force, User: client.UserName()}
		done, err = command.AskWithin[*control.Done](ctx, a.App, request, rebootWait)
	}
	if err != nil {
		return nil, err
	}
	for _, notice := range done.Notices {
		a.Report("margay: %s", printable.Line(notice))
	}
	var results []nodePower
	for _, node := range nodes {
		results = append(results, nodePower{Node: fmt.Sprintf("node%d", node), Power: state.String()})
	}
	return results, nil
}

// powers are the states that a machine reports.
var powers = map[control.NodePower]power.State{control.NodePower_POWER_ON: power.On, control.NodePower_POWER_OFF: power.Off}

// machineStates asks the machine for the states of nodes.
func (a commands) machineStates(ctx context.Context, nodes []uint32) (results []nodePower, err error) {
	list, err := command.Ask[*control.Nodes](ctx, a.App, &control.ListNodes{})
	if err != nil {
		return nil, err
	}
	states := make(map[uint32]control.NodePower)
	var all []uint32
	for _, n := range list.Nodes {
		states[n.Node] = n.Power
		all = append(all, n.Node)
	}
	for _, node := range nodes {
		state, ok := states[node]
		if !ok {
			return nil, fmt.Errorf("the machine has no node%d: its nodes are %s (margay nodes)", node, nodeset.Condense(all))
		}
		results = append(results, nodePower{Node: fmt.Sprintf("node%d", node), Power: powers[state].String()})
	}
	return results, nil
}

// atOnce bounds how many nodes of a machine file are switched at the same time.
const atOnce = 16

// filePower carries out an action with the drivers of a machine file. One node that fails does not
// keep the others. The end of ctx ends the programs of drivers as well.
func (a commands) filePower(ctx context.Context, action power.Action, nodes []uint32, path string) ([]nodePower, error) {
	m, err := file.Read(path)
	if err != nil {
		return nil, err
	}
	turns := power.NewTurns(m.Pace())
	storm := &storm{report: a.Report, pace: m.Pace(), nodes: len(nodes)}
	switches := make([]func() (power.State, error), len(nodes))
	for i, node := range nodes {
		d, timeout, err := m.Driver(node)
		if err != nil {
			return nil, fmt.Errorf("%s: node%d: %w", path, node, err)
		}
		switches[i] = func() (power.State, error) { return turns.Carry(ctx, d, action, timeout, storm.waits) }
	}
	results := make([]nodePower, len(nodes))
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for i, node := range nodes {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			defer storm.ended()
			state, err := switches[i]()
			results[i] = nodePower{Node: fmt.Sprintf("node%d", node), Power: state.String()}
			if err != nil {
				errs[i] = fmt.Errorf("node%d: %w", node, err)
				results[i].Error = err.Error()
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return results, context.Cause(ctx)
	}
	return results, errors.Join(errs...)
}

// storm reports how far an action on many nodes is, while some of them wait for their turns.
type storm struct {
	pace   power.Pace
	nodes  int
	report func(format string, args ...any)

	mu    sync.Mutex
	done  int
	lined time.Time // when that was reported last
}

// stormPause is the least time between two reports of a storm.
const stormPause = time.Second

// ended counts a node that is done.
func (s *storm) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
}

// waits reports how many nodes are done, while others wait.
func (s *storm) waits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.lined) < stormPause {
		return
	}
	s.lined = time.Now()
	s.report("margay: %d of %d nodes are done, and %d are switched on every %v", s.done, s.nodes, s.pace.Nodes, s.pace.Gap)
}
