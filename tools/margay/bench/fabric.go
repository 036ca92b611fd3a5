package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"margay/cluster/machine"
	"margay/tools/margay/bench/fabric"
	"margay/tools/margay/bench/page"
	"margay/tools/margay/bench/peer"
	"margay/tools/margay/command"
)

// fabricFlags are the flags of margay bench fabric.
type fabricFlags struct {
	cases, places, against []string
	rounds                 int
	length                 time.Duration
	quick, markdown        bool
	into                   string
	program, sockets       string
	node, jobInit          string // what nodes run
	fabric                 string // of the nodes
}

// The plan of --quick.
const (
	quickRounds = 1
	quickLength = 10 * time.Millisecond
)

// byFabric is the command that writes its figures into a page.
const byFabric = "margay bench fabric"

// socketsName selects the contenders with plain sockets.
const socketsName = "sockets"

// opponents are the values of --against.
var opponents = append(peer.MPINames(), socketsName)

func (a commands) benchFabricCommand() *cobra.Command {
	var f fabricFlags
	c := a.JSONFlag(&cobra.Command{
		Use:   "fabric",
		Short: "Measure messages beside MPICH, Open MPI, UDP and TCP",
		Long: `Measure how fast ranks exchange messages, with Margay, with MPICH and Open MPI where they are installed, and with plain UDP and
TCP sockets, all in turns of one run. This makes hosted machines of its own and ends them again. Where the user is root, the
nodes of the others are network namespaces joined by a bridge, as hosted nodes are; otherwise they use loopback.

In each round every contender has its turn with every case of a place. Each program checks the messages and results that it
gets. Figures are medians over all rounds, and the 99th percentile. The speed to a peer is how many times as fast a contender
is as that peer in the same case. Poll: a rank that waits polls; block: it sleeps. Compare figures of one measurement only.

Places: ` + strings.Join(fabric.PlaceNames(), ", ") + `.
Cases: ` + strings.Join(fabric.CaseNames(), ", ") + `.`,
		Example: `  margay bench fabric
  margay bench fabric --place same-node --case roundtrip-64,barrier --against MPICH
  margay bench fabric --quick --json
  margay bench fabric --into docs/fabric.md`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			figures, err := a.benchFabric(ctx, f)
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				return err
			}
			return a.print(figures, fabric.Headings, output{f.markdown, f.into, byFabric})
		},
	})
	f.add(c.Flags())
	c.Flags().BoolVarP(&a.Quiet, "quiet", "q", false, "print no progress, only the figures")
	return c
}

// add adds the flags to a command.
func (f *fabricFlags) add(flags *pflag.FlagSet) {
	// All names would not fit in a line of the help. A wrong one is refused with the list.
	flags.StringSliceVar(&f.cases, "case", nil, "which cases to measure (default: all)")
	flags.StringSliceVar(&f.places, "place", fabric.PlaceNames(), "where to measure")
	flags.StringSliceVar(&f.against, "against", opponents, "what to compare with, if it is installed; none: with nothing")
	flags.StringVar(&f.fabric, "fabric", machine.FabricAuto, "the fabric of Margay's nodes, as of margay machine up")
	flags.IntVar(&f.rounds, "rounds", 3, "how many rounds")
	flags.DurationVar(&f.length, "time", 250*time.Millisecond, "how long a contender repeats a case in a round")
	flags.BoolVar(&f.quick, "quick", false, "one short round, which only shows that everything works")
	flags.BoolVar(&f.markdown, "markdown", false, "print Markdown")
	flags.StringVar(&f.into, "into", "", "write the figures into this page, between its two lines for them")
	flags.StringVar(&f.program, "program", "", "the program that measures Margay (default: fabric beside margay)")
	flags.StringVar(&f.sockets, "sockets-program", "", "the program that measures sockets (default: fabric-sockets beside margay)")
	flags.StringVar(&f.node, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
}

// check refuses wrong flags and finds the programs.
func (f *fabricFlags) check(c *cobra.Command) (err error) {
	if err := command.Positive(c, "rounds", "time", "into"); err != nil {
		return err
	}
	if slices.Equal(f.against, []string{"none"}) {
		f.against = nil
	}
	for _, list := range []struct {
		flag           string
		given, allowed []string
	}{{"case", f.cases, fabric.CaseNames()}, {"place", f.places, fabric.PlaceNames()}, {"against", f.against, opponents}} {
		for _, name := range list.given {
			if !slices.Contains(list.allowed, name) {
				return fmt.Errorf("bench fabric: --%s %s: it is one of %s", list.flag, name, strings.Join(list.allowed, ", "))
			}
		}
	}
	if err := machine.CheckFabric(f.fabric); err != nil {
		return fmt.Errorf("bench fabric: %w", err)
	}
	if f.into != "" {
		if err := intoPage(f.into, byFabric, nil); err != nil {
			return err
		}
	}
	if f.quick {
		f.rounds, f.length = quickRounds, quickLength
	}
	if f.program, err = command.BesideMargay("fabric", f.program, "the program that measures", "--program"); err != nil {
		return err
	}
	if f.sockets, err = command.BesideMargay("fabric-sockets", f.sockets, "the program that measures sockets", "--sockets-program"); err != nil {
		return err
	}
	f.node, f.jobInit, err = command.NodePrograms(f.node)
	return err
}

// selected returns the places and cases that the flags name.
func (f *fabricFlags) selected() (places []fabric.Place, cases []fabric.Case) {
	for _, p := range fabric.Places {
		if slices.Contains(f.places, p.Name) {
			places = append(places, p)
		}
	}
	for _, c := range fabric.Cases {
		if len(f.cases) == 0 || slices.Contains(f.cases, c.Name()) {
			cases = append(cases, c)
		}
	}
	return places, cases
}

// fabricBench is a measurement that runs.
type fabricBench struct {
	commands
	fabricFlags
	figures    *fabric.Figures
	mpis       []*peer.MPI
	namespaces bool // nodes of the peers are network namespaces
}

// benchFabric measures all places. Nothing of it is left when it returns, nor when this process
// dies.
func (a commands) benchFabric(ctx context.Context, f fabricFlags) (figures *fabric.Figures, err error) {
	b := &fabricBench{commands: a, fabricFlags: f, figures: &fabric.Figures{Host: page.ThisHost(a.Version)}}
	b.figures.Plan = fmt.Sprintf("Rounds: %d, with %v of repetitions for each contender and case.", f.rounds, f.length)
	places, cases := f.selected()
	folder, err := os.MkdirTemp("", "margay-bench-")
	if err != nil {
		return nil, err
	}
	var machines []string
	for _, p := range places {
		machines = append(machines, machineName(p.Name))
	}
	clean, err := startJanitor(folder, machines)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder), clean.dismiss()) }()
	if err := b.findPeers(ctx, folder); err != nil {
		return nil, err
	}
	for _, p := range places {
		if here := fabric.At(cases, p.Name); len(here) > 0 {
			if err := b.measurePlace(ctx, p, here); err != nil {
				return nil, err
			}
		}
	}
	return b.figures, nil
}

// note adds a line to the figures and reports it.
func (b *fabricBench) note(format string, args ...any) {
	b.figures.Notes = append(b.figures.Notes, fmt.Sprintf(format, args...))
	b.Report(format, args...)
}

// findPeers finds and compiles the peers. A peer that is missing is left out with a note.
func (b *fabricBench) findPeers(ctx context.Context, folder string) error {
	for _, name := range peer.MPINames() {
		if !slices.Contains(b.against, name) {
			continue
		}
		m, err := peer.FindMPI(ctx, name, folder)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			b.note("%s is left out: %v.", name, err)
			continue
		}
		b.mpis = append(b.mpis, m)
		b.note("%s is version %s. On one node its ranks use shared memory.", m.Name, m.Version)
	}
	if len(b.against) == 0 {
		return nil
	}
	network, err := peer.NewNetwork(1)
	if err != nil {
		b.note("The nodes of the peers are processes that use TCP or UDP on loopback, because namespaces need root: %v.", err)
		return nil
	}
	b.namespaces = true
	b.note("The nodes of the peers are network namespaces joined by a bridge, with TCP or UDP between them.")
	return network.Close()
}

// measurePlace makes the machine of a place, measures there and ends it.
func (b *fabricBench) measurePlace(ctx context.Context, p fabric.Place, cases []fabric.Case) (err error) {
	m, err := b.newFabricMachine(ctx, p, b.fabricFlags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.end(context.WithoutCancel(ctx))) }()
	contenders := m.contenders()
	var network *peer.Network
	if b.namespaces && p.Nodes > 1 {
		if network, err = peer.NewNetwork(p.Nodes); err != nil {
			return err
		}
		defer network.Close()
	}
	for _, mpi := range b.mpis {
		contenders = append(contenders, mpi.Contender(p, network))
	}
	if slices.Contains(b.against, socketsName) && p.Ranks == 2 {
		contenders = append(contenders, peer.Sockets(b.sockets, network)...)
	}
	results, err := fabric.Measure(ctx, p, cases, contenders, fabric.Plan{Rounds: b.rounds, Length: b.length}, b.Report)
	b.figures.Results = append(b.figures.Results, results...)
	return err
}
