// Package bench has the commands that measure Margay on machines that they make for that.
package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/kernel/abi/node"
	"margay/tools/margay/command"
	"margay/tools/margay/job"
	"margay/tools/margay/show"
)

// commands make the commands of this group.
type commands struct{ *command.App }

// Commands returns the commands of this group.
func Commands(app *command.App) []*cobra.Command {
	a := commands{app}
	return []*cobra.Command{a.benchCommand()}
}

// benchPlaces are the machines of margay bench: a machine of one node each, with one core for the
// receiver and one for the sender.
var benchPlaces = map[string]machine.Spec{
	"hosted":        {Substrate: node.Hosted},
	"qemu":          {Substrate: node.Virtual, Profile: node.Sched},
	"qemu-isolated": {Substrate: node.Virtual, Profile: node.Isolated},
}

// benchRuns are the jobs of a round: options of margay run, for what examples/latency does with so
// many ranks.
var benchRuns = []job.Flags{
	{Ranks: 2, PerCore: 1, Stdin: "none"},
	{Ranks: 3, PerCore: 2, Stdin: "none"},
}

// latencyReport is what examples/latency prints for programs. Its times are in nanoseconds.
type latencyReport struct {
	Mechanisms []struct {
		Name, Policy string
		Taken        uint64
		Arrival      []uint64 `json:"arrival_ns"`
		Sending      []uint64 `json:"sending_ns"`
	}
	Switching struct {
		Policy string
		Rounds []switchRound
	}
	Results, Different uint64
}

// switchRound is by how much two processes that share a core switch more, and need longer, than one
// after the other.
type switchRound struct {
	Switches  int64 `json:"switches"`
	Processor int64 `json:"processor_ns"`
	Elapsed   int64 `json:"elapsed_ns"`
}

// latency is what one mechanism needs in one place, in nanoseconds.
type latency struct {
	Mechanism   string `json:"mechanism"`
	Policy      string `json:"policy"` // how the core is shared; empty: it is not
	Place       string `json:"place"`
	DeliveredBy string `json:"delivered_by"`
	Messages    int    `json:"messages"`
	P50         uint64 `json:"p50_ns"` // from arrival at the node to the handler
	P99         uint64 `json:"p99_ns"`
	SentP50     uint64 `json:"sent_p50_ns"` // from sending
	SentP99     uint64 `json:"sent_p99_ns"`
	Taken       uint64 `json:"taken"` // how often the computing process beside it lost the core

	arrival, sending []uint64
}

// switchCost is the cost of a switch of a core to another process.
type switchCost struct {
	Policy     string  `json:"policy"`
	Place      string  `json:"place"`
	EnforcedBy string  `json:"enforced_by"`
	Switches   int64   `json:"switches"`
	Processor  float64 `json:"processor_ns"` // of each switch; 0: lost in noise
	Elapsed    float64 `json:"elapsed_ns"`

	rounds []switchRound
}

// schedFigures are what margay bench sched has measured.
type schedFigures struct {
	Latencies []*latency    `json:"latencies"`
	Switches  []*switchCost `json:"switches"`
	Results   uint64        `json:"results"`   // of computing
	Different uint64        `json:"different"` // those that are not the result of an undisturbed run
}

func (a commands) benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure what Margay costs here"}
	c.AddCommand(a.benchSchedCommand(), a.benchFabricCommand(), a.benchLaunchCommand(), a.benchMPICommand(), a.benchBootCommand(), a.bootServicesCommand())
	return c
}

func (a commands) benchSchedCommand() *cobra.Command {
	var substrates []string
	var messages, rounds int
	var program, node, jobInit string
	c := a.JSONFlag(&cobra.Command{
		Use:   "sched",
		Short: "Measure the latency of message handlers and the cost of a switch",
		Long: `Measure how long a message takes from its arrival at a node to its handler, by each mechanism, and the cost of two
processes taking turns on a core. This makes machines of its own, one for each substrate, and ends them again: hosted, qemu (a
virtual node with boot profile sched) and qemu-isolated (with boot profile isolated).

In each round every machine has its turn, and in each turn every mechanism; times are over all rounds. While a process
computes beside, its results are compared with the result of an undisturbed run. A message has arrived when the first extension of
its node sees it. The cost of a switch is how much longer two processes need that take turns on a core than one after the
other, divided by how often Linux took the core away from one of them: in processor time, and in all; the median. Where
other load hides it, there is no figure. Compare figures of one measurement only.`,
		Example: `  margay bench sched
  margay bench sched --substrate hosted --messages 5000
  margay bench sched --substrate hosted,qemu --json`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if rounds < 1 || messages < rounds {
				return fmt.Errorf("--rounds %d, --messages %d: there is at least one of each in a round", rounds, messages)
			}
			for _, s := range substrates {
				if _, ok := benchPlaces[s]; !ok {
					return fmt.Errorf("--substrate %s: it is hosted, qemu or qemu-isolated", s)
				}
			}
			var err error
			if program, err = command.BesideMargay("latency", program, "the program that measures", "--program"); err != nil {
				return err
			}
			if node, jobInit, err = command.NodePrograms(node); err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			figures, err := a.benchSched(ctx, schedBench{program: program, node: node, jobInit: jobInit, messages: messages / rounds, rounds: rounds}, substrates)
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				return err
			}
			if a.JSON {
				return show.Value(a.Stdout, figures)
			}
			return a.printSched(figures)
		},
	})
	f := c.Flags()
	f.BoolVarP(&a.Quiet, "quiet", "q", false, "print no progress, only the figures")
	f.StringSliceVar(&substrates, "substrate", []string{"hosted", "qemu"}, "where to measure: hosted, qemu, qemu-isolated")
	f.IntVar(&messages, "messages", 3000, "how many messages of each mechanism")
	f.IntVar(&rounds, "rounds", 3, "how many rounds they are dealt out to")
	f.StringVar(&program, "program", "", "the program that measures (default: latency beside margay)")
	f.StringVar(&node, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
	return c
}

// schedBench is what to measure.
type schedBench struct {
	program, node, jobInit string
	messages, rounds       int // messages of each round
}

// benchSched makes the machines, measures and ends them, also when ctx ends.
func (a commands) benchSched(ctx context.Context, b schedBench, substrates []string) (figures *schedFigures, err error) {
	var machines []*benchMachine
	defer func() {
		for _, m := range machines {
			err = errors.Join(err, m.end(context.WithoutCancel(ctx)))
		}
	}()
	for _, place := range substrates {
		m := a.newMachine(place)
		if err := m.begin(ctx, b); err != nil {
			return nil, err
		}
		machines = append(machines, m)
	}
	figures = new(schedFigures)
	for round := range b.rounds {
		for _, m := range machines {
			a.Report("round %d of %d: %s", round+1, b.rounds, m.place)
			for _, f := range benchRuns {
				report, err := m.measure(ctx, f, b)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", m.place, err)
				}
				figures.add(m, report)
			}
		}
	}
	figures.finish()
	return figures, nil
}

// begin makes the machine.
func (m *benchMachine) begin(ctx context.Context, b schedBench) error {
	spec := benchPlaces[m.place]
	spec.Program, spec.JobInit, spec.Nodes, spec.Cores, spec.MemoryMiB = b.node, b.jobInit, 1, 2, 512
	if spec.Substrate == node.Virtual {
		spec.Accel, spec.Kernel, spec.QEMU = "tcg", os.Getenv("KERNEL"), os.Getenv("QEMU")
	}
	if err := m.up(ctx, spec); err != nil {
		return err
	}
	nodes, err := command.Ask[*control.Nodes](ctx, &m.App, &control.ListNodes{})
	if err != nil {
		return errors.Join(err, m.end(context.WithoutCancel(ctx)))
	}
	m.scheduler = nodes.Nodes[0].GetInfo().GetScheduler()
	return nil
}

// measure runs one job.
func (m *benchMachine) measure(ctx context.Context, f job.Flags, b schedBench) (*latencyReport, error) {
	if err := m.run(ctx, f, []string{b.program, "--json", fmt.Sprint(b.messages)}); err != nil {
		return nil, err
	}
	report, err := readReport(m.output.Bytes(), b.messages)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.program, err)
	}
	return report, nil
}

// readReport reads what a program has printed that has measured so many messages of each mechanism.
func readReport(output []byte, messages int) (*latencyReport, error) {
	r := new(latencyReport)
	if err := json.Unmarshal(output, r); err != nil {
		return nil, fmt.Errorf("it has printed no report: %w", err)
	}
	for _, m := range r.Mechanisms {
		if len(m.Arrival) != messages || len(m.Sending) != messages {
			return nil, fmt.Errorf("%s: it reports %d and %d times of %d messages", m.Name, len(m.Arrival), len(m.Sending), messages)
		}
	}
	return r, nil
}

// enforcers are the schedulers of nodes in words.
var enforcers = map[string]string{
	"priority":  "priorities, by the node kernel",
	"stop":      "stopping the others, by the node kernel",
	"sched_ext": "sched_ext, inside Linux",
}

// deliverer names the mechanism that brings the message to its handler.
func deliverer(mechanism, policy, scheduler string) string {
	by := "a wake-up"
	switch {
	case mechanism == "polling":
		by = "shared memory"
	case strings.HasPrefix(mechanism, "signal"):
		by = "a signal"
	}
	if policy == "" {
		return by
	}
	return by + " and " + enforcer(policy, scheduler)
}

// enforcer names the mechanism that switches a core.
func enforcer(policy, scheduler string) string {
	if policy == "Linux" || scheduler == "" {
		return "Linux alone"
	}
	return cmp.Or(enforcers[scheduler], scheduler)
}

// add takes in what one job has measured.
func (s *schedFigures) add(m *benchMachine, r *latencyReport) {
	for _, x := range r.Mechanisms {
		l := s.latency(x.Name, x.Policy, m)
		l.arrival, l.sending = append(l.arrival, x.Arrival...), append(l.sending, x.Sending...)
		l.Taken += x.Taken
	}
	c := s.switchCost(r.Switching.Policy, m)
	c.rounds = append(c.rounds, r.Switching.Rounds...)
	s.Results += r.Results
	s.Different += r.Different
}

func (s *schedFigures) latency(name, policy string, m *benchMachine) *latency {
	for _, l := range s.Latencies {
		if l.Mechanism == name && l.Policy == policy && l.Place == m.place {
			return l
		}
	}
	l := &latency{Mechanism: name, Policy: policy, Place: m.place, DeliveredBy: deliverer(name, policy, m.scheduler)}
	s.Latencies = append(s.Latencies, l)
	return l
}

func (s *schedFigures) switchCost(policy string, m *benchMachine) *switchCost {
	for _, c := range s.Switches {
		if c.Policy == policy && c.Place == m.place {
			return c
		}
	}
	c := &switchCost{Policy: policy, Place: m.place, EnforcedBy: enforcer(policy, m.scheduler)}
	s.Switches = append(s.Switches, c)
	return c
}

// finish computes the figures of the added reports, and sorts them by mechanism.
func (s *schedFigures) finish() {
	for _, l := range s.Latencies {
		slices.Sort(l.arrival)
		slices.Sort(l.sending)
		n := len(l.arrival)
		l.Messages = n
		l.P50, l.P99, l.SentP50, l.SentP99 = l.arrival[n/2], l.arrival[n*99/100], l.sending[n/2], l.sending[n*99/100]
	}
	order := make(map[string]int)
	for _, l := range s.Latencies {
		if key := l.Mechanism + l.Policy; order[key] == 0 {
			order[key] = len(order) + 1
		}
	}
	slices.SortStableFunc(s.Latencies, func(a, b *latency) int { return order[a.Mechanism+a.Policy] - order[b.Mechanism+b.Policy] })
	slices.SortStableFunc(s.Switches, func(a, b *switchCost) int { return cmp.Compare(a.Policy, b.Policy) })
	for _, c := range s.Switches {
		c.finish()
	}
}

// finish makes the medians of the rounds in which there were switches.
func (c *switchCost) finish() {
	var processor, elapsed []float64
	for _, r := range c.rounds {
		if r.Switches > 0 {
			c.Switches += r.Switches
			processor = append(processor, float64(r.Processor)/float64(r.Switches))
			elapsed = append(elapsed, float64(r.Elapsed)/float64(r.Switches))
		}
	}
	c.Processor, c.Elapsed = clearMedian(processor), clearMedian(elapsed)
}

// clearMedian returns the median of figures, or 0 when it is lost in noise: when a quartile differs
// by more than half of it.
func clearMedian(x []float64) float64 {
	n := len(x)
	if n == 0 {
		return 0
	}
	slices.Sort(x)
	if median := x[n/2]; x[n/4] >= median/2 && x[n*3/4] <= median*3/2 {
		return median
	}
	return 0
}

func (a commands) printSched(s *schedFigures) error {
	t := show.NewTable(a.Stdout, "MECHANISM", "CORE SHARED BY", "PLACE", "DELIVERED BY", "P50 µs", "P99 µs")
	for _, l := range s.Latencies {
		t.Row(l.Mechanism, cmp.Or(l.Policy, "-"), l.Place, l.DeliveredBy, fmt.Sprintf("%.1f", float64(l.P50)/1e3), fmt.Sprintf("%.1f", float64(l.P99)/1e3))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.Stdout)
	t = show.NewTable(a.Stdout, "SWITCH", "PLACE", "ENFORCED BY", "SWITCHES", "PROCESSOR µs", "IN ALL µs")
	for _, c := range s.Switches {
		t.Row(c.Policy, c.Place, c.EnforcedBy, c.Switches, microseconds(c.Processor), microseconds(c.Elapsed))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.Stdout, "\n%d results of computing, %d of them different from an undisturbed run\n", s.Results, s.Different)
	return err
}

// microseconds is a time that may be lost in noise.
func microseconds(ns float64) string {
	if ns == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", ns/1e3)
}
