package observe

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/kernel/abi/node"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

func (a commands) nodesCommand() *cobra.Command {
	var noise time.Duration
	var noiseGiven, picture bool
	node := int32(control.None)
	c := a.ColorFlag(a.JSONFlag(&cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the machine and the jobs on their cores",
		Example: `  margay nodes
  margay nodes --node 2
  margay nodes --map          # a character for each node
  margay nodes --noise 10s    # interrupts of each application core`,
		Args: func(c *cobra.Command, args []string) error {
			// pflag takes the value of a flag that can do without one only after "=".
			if noiseGiven = c.Flags().Changed("noise"); noiseGiven && len(args) > 0 {
				if err := c.Flags().Set("noise", args[0]); err != nil {
					return fmt.Errorf("%s: --noise %s: it must be a time with its unit, such as 500ms, 10s or 2m", command.Called(c), args[0])
				}
				args = args[1:]
			}
			return command.NoArguments(c, args)
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if err := command.Positive(c, "noise"); err != nil {
				return err
			}
			if noiseGiven {
				return a.noise(c.Context(), noise, node)
			}
			nodes, err := command.Ask[*control.Nodes](c.Context(), a.App, &control.ListNodes{})
			if err != nil {
				return err
			}
			if nodes, err = onlyNode(nodes, node); err != nil {
				return err
			}
			if picture {
				return printMap(a.Stdout, nodes)
			}
			if a.JSON {
				return show.Message(a.Stdout, nodes)
			}
			return a.printNodes(nodes)
		},
	}))
	c.Flags().DurationVar(&noise, "noise", 0, "count the interrupts of each application core for this long, 5s without a value")
	c.Flags().Lookup("noise").NoOptDefVal = "5s"
	c.Flags().BoolVar(&picture, "map", false, "show each node as a character: a letter for a job, a sign for a state")
	c.MarkFlagsMutuallyExclusive("map", "json")
	c.MarkFlagsMutuallyExclusive("map", "noise")
	a.NodeFlag(c, &node, "only this node")
	return c
}

// onlyNode leaves the node that is named, or all.
func onlyNode(nodes *control.Nodes, named int32) (*control.Nodes, error) {
	if named == control.None {
		return nodes, nil
	}
	for _, n := range nodes.Nodes {
		if n.Node == uint32(named) {
			return &control.Nodes{Nodes: []*control.NodeState{n}}, nil
		}
	}
	return nil, fmt.Errorf("the machine has no node%d (margay nodes lists those that it has)", named)
}

// healthNames are the words for the health of nodes.
var healthNames = map[control.NodeHealth]string{
	control.NodeHealth_NODE_BOOTING: "booting",
	control.NodeHealth_NODE_UP:      "up",
	control.NodeHealth_NODE_LATE:    "late",
	control.NodeHealth_NODE_DEAD:    "dead",
	control.NodeHealth_NODE_REFUSED: "refused",
	control.NodeHealth_NODE_OFF:     "off",
}

// drainNames are the states of nodes that are out of service, in words.
var drainNames = map[control.DrainState]string{
	control.DrainState_DRAIN_DRAINING: "draining",
	control.DrainState_DRAIN_DRAINED:  "drained",
}

// State is the state of a node in words: its health, or that it is up and gets no jobs.
func State(n *control.NodeState) string {
	if n.Drain != nil && n.Health == control.NodeHealth_NODE_UP {
		return drainNames[n.Drain.State]
	}
	if n.Ill != "" && n.Health == control.NodeHealth_NODE_UP {
		return "ill"
	}
	if n.Waits && n.Health == control.NodeHealth_NODE_OFF {
		return "waiting"
	}
	return healthNames[n.Health]
}

// state is the state of a node with its color.
func state(n *control.NodeState) show.State {
	s := show.State{Text: State(n), Color: show.Bad}
	switch n.Health {
	case control.NodeHealth_NODE_UP:
		s.Color = show.Good
		if n.Drain != nil || n.Ill != "" {
			s.Color = show.Passing
		}
	case control.NodeHealth_NODE_BOOTING, control.NodeHealth_NODE_LATE, control.NodeHealth_NODE_OFF:
		s.Color = show.Passing
	}
	return s
}

// withFabric is how many columns of a terminal the table of nodes takes with the names of fabrics.
// They are left out on a narrower one, and remain in --json.
const withFabric = 100

func (a commands) printNodes(nodes *control.Nodes) error {
	columns := []string{"NODE", "HOST", "STATE", "CORES", "FREE", "MEMORY", "PROFILE", "SHARING", "FABRIC", "KERNEL", "JOBS"}
	width := show.Width(a.Stdout)
	left := map[string]bool{
		"FABRIC": width > 0 && width < withFabric,
		"HOST":   !slices.ContainsFunc(nodes.Nodes, func(n *control.NodeState) bool { return host(n) != "" }),
	}
	t := a.Table(slices.DeleteFunc(slices.Clone(columns), func(c string) bool { return left[c] })...)
	row := func(cells ...any) {
		var shown []any
		for i, cell := range cells {
			if !left[columns[i]] {
				shown = append(shown, cell)
			}
		}
		t.Row(shown...)
	}
	var notes notes
	for _, n := range nodes.Nodes {
		name := fmt.Sprintf("node%d", n.Node)
		notes.of(n)
		if n.Info == nil {
			row(name, "-", state(n), "-", "-", "-", "-", "-", "-", "-", "-")
			continue
		}
		free, jobs := use(n)
		row(name, cmp.Or(host(n), "-"), state(n), len(n.Cores), free, fmt.Sprintf("%d MiB", n.Info.Memory>>20), n.Info.Profile,
			cmp.Or(n.Info.Scheduler, "-"), cmp.Or(n.Info.Fabric, "-"), n.Info.Kernel, strings.Join(jobs, " "))
	}
	for _, g := range nodes.Guests.GetGuests() {
		row(printable.Line(g.Mac), "-", show.State{Text: "waiting", Color: show.Passing}, "-", "-", "-", "-", "-", "-", "-", "-")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(a.Stdout, show.Fold(printable.Lines(note.String()), width, 4))
	}
	for _, note := range a.guestNotes(nodes.Guests) {
		fmt.Fprintln(a.Stdout, show.Fold(printable.Lines(note), width, 4))
	}
	return nil
}

// guestNotes are the remarks about machines that wait, and about the network that they boot from.
func (a commands) guestNotes(g *control.Guests) []string {
	all := slices.Clone(g.GetNotices())
	for _, guest := range g.GetGuests() {
		since := time.Unix(0, guest.SinceNs).Format(time.DateTime)
		if guest.Doubt != "" {
			all = append(all, fmt.Sprintf("%s waits since %s, and would not join: %s", guest.Mac, since, guest.Doubt))
			continue
		}
		all = append(all, fmt.Sprintf("%s waits since %s until it is made a node: margay node approve -m %s %[1]s", guest.Mac, since, a.Machine))
	}
	return all
}

// host returns the host of a node of a machine of hosts; empty for another one.
func host(n *control.NodeState) string {
	if name := n.Info.GetHostname(); name != fmt.Sprintf("node%d", n.Node) {
		return name
	}
	return ""
}

// use returns how many cores of a node are free, and the ranks on the others.
func use(n *control.NodeState) (free int, jobs []string) {
	for _, core := range n.Cores {
		switch {
		case core.Job == 0 && n.Health == control.NodeHealth_NODE_UP && n.Drain == nil && n.Ill == "":
			free++
		case core.Job != 0 && len(core.Ranks) == 0: // an allocation
			jobs = append(jobs, fmt.Sprint(core.Job))
		case core.Job != 0:
			jobs = append(jobs, fmt.Sprintf("%d.%s", core.Job, nodeset.Ranges(core.Ranks)))
		}
	}
	return free, jobs
}

// note is a remark about some nodes: the text for one node, and for several.
type note struct {
	one, several string
	nodes        []uint32
}

// notes are the remarks about all nodes, each once.
type notes []*note

// of adds the remarks about a node.
func (l *notes) of(n *control.NodeState) {
	if n.Reason != "" {
		l.add(n.Node, ": "+n.Reason, ": "+n.Reason)
	}
	if n.Stage != "" {
		stage := n.Stage
		if n.Percent > 0 && n.Percent < 100 {
			stage += fmt.Sprintf(" (%d %%)", n.Percent)
		}
		l.add(n.Node, ": boot over the network: "+stage, ": boot over the network: "+stage)
	}
	if n.Remedy != "" {
		l.add(n.Node, ": "+n.Remedy, ": "+n.Remedy)
	}
	if n.Ill != "" {
		l.add(n.Node, " is ill, and gets no jobs until it is well: "+n.Ill, " are ill, and get no jobs until they are well: "+n.Ill)
	}
	if n.Drain != nil {
		text := " " + drained(n.Drain)
		l.add(n.Node, " is"+text, " are"+text)
	}
	if n.Panic != "" {
		text := ": firmware has kept " + n.Panic + ", of an earlier boot (margay machine console NODE --previous)"
		l.add(n.Node, text, text)
	}
	if n.Info == nil {
		return
	}
	if n.Info.AllCores {
		const interrupted = " on core 0 as well, which serves the node: it is interrupted, and the timer ticks there"
		l.add(n.Node, " computes"+interrupted, " compute"+interrupted)
	}
	if n.Info.MessageCore != 0 {
		text := fmt.Sprintf(" messages on core %d, which does nothing else", n.Info.MessageCore)
		l.add(n.Node, " handles"+text, " handle"+text)
	}
	if n.Info.Fabric == node.TrustedUDP {
		const open = " messages to other nodes that are neither encrypted nor authenticated"
		l.add(n.Node, " sends"+open, " send"+open)
	}
	for _, lack := range n.Info.Lacks {
		l.add(n.Node, " lacks "+lack, " lack "+lack)
	}
}

// drained returns the state of a drained node in words: since when, by which user, and why.
func drained(d *control.Drain) string {
	state := drainNames[d.State]
	if d.Leave {
		state = "leaving the machine"
	}
	text := fmt.Sprintf("%s (since %s, by %s)", state, time.Unix(0, d.SinceNs).Format(time.DateTime), d.User)
	if d.Reason == "" {
		return text
	}
	return text + ": " + d.Reason
}

func (l *notes) add(node uint32, one, several string) {
	for _, n := range *l {
		if n.one == one {
			n.nodes = append(n.nodes, node)
			return
		}
	}
	*l = append(*l, &note{one, several, []uint32{node}})
}

func (n *note) String() string {
	if len(n.nodes) == 1 {
		return fmt.Sprintf("node%d%s", n.nodes[0], n.one)
	}
	return "node" + nodeset.Ranges(n.nodes) + n.several
}

// noise prints how often each application core is interrupted.
func (a commands) noise(ctx context.Context, d time.Duration, node int32) error {
	socket, err := a.Socket()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d+command.AnswerTimeout)
	defer cancel()
	report, err := client.Ask[*control.NoiseReport](ctx, socket, &control.Noise{DurationMs: uint32(d.Milliseconds()), Node: node})
	if err != nil {
		return err
	}
	if a.JSON {
		return show.Message(a.Stdout, report)
	}
	t := show.NewTable(a.Stdout, "NODE", "CORE", "INTERRUPTS", "PER SECOND", "FROM")
	for _, c := range report.Cores {
		var from []string
		for _, r := range c.Rows {
			from = append(from, fmt.Sprintf("%s: %d", r.Name, r.Count))
		}
		t.Row(fmt.Sprintf("node%d", c.Node), c.Core, c.Interrupts, fmt.Sprintf("%.1f", float64(c.Interrupts)/c.Seconds), strings.Join(from, "; "))
	}
	return t.Flush()
}
