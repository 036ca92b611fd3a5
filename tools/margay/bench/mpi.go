package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"margay/cluster/machine"
	"margay/cluster/roster"
	"margay/kernel/abi/node"
	"margay/tools/margay/bench/launches"
	"margay/tools/margay/bench/page"
	"margay/tools/margay/bench/peer"
	"margay/tools/margay/command"
)

// mpiFlags are the flags of margay bench mpi.
type mpiFlags struct {
	nodes         []int
	substrate     string
	memory        int
	warmUps       int
	rounds        int
	limit         time.Duration
	mpiexec       string
	options       string
	results       string
	compared      *regexp.Regexp // results
	markdown      bool
	node, jobInit string // what nodes run
}

const (
	mpiPause = 200 * time.Millisecond
	// mpiGrace is how long a job may take beyond its limit: to start, and to end.
	mpiGrace = 2 * time.Minute
)

func (a commands) benchMPICommand() *cobra.Command {
	var f mpiFlags
	c := a.JSONFlag(&cobra.Command{
		Use:   "mpi [flags] PROGRAM [ARG...]",
		Short: "Measure how long a program of MPICH takes, beside mpiexec",
		Long: `Measure how long a program of MPICH takes under margay run, one rank on each node of a machine that this makes and ends again, and
under mpiexec with as many ranks on this host: once with shared memory and once over TCP, as if each rank were on a host of its own.
All have their turn in each round. Compare figures of one row only.

What the ranks print is compared. Lines that all runs under mpiexec have are results: all runs under Margay must have them, in any
order, and the names of hosts count as equal. If one lacks a line, the command fails. A line with a time may be the same by chance:
--results chooses the lines that are compared.

A run that does not end within the limit has failed; the others go on, and its last error is printed below.`,
		Example: `  margay bench mpi bin/mpi-hello
  margay bench mpi --nodes 4,16 --limit 30s --markdown bin/mpi-allreduce
  margay bench mpi --run '--root mpich13.tar' --mpiexec 'chroot mpich13 mpiexec.mpich' /opt/hpcc`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			figures, differs, err := a.benchMPI(ctx, f, args)
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				return err
			}
			return errors.Join(a.print(figures, launches.Headings, output{markdown: f.markdown}), differs)
		},
	})
	f.add(c.Flags())
	c.Flags().BoolVarP(&a.Quiet, "quiet", "q", false, "print no progress, only the figures")
	return c
}

// add adds the flags to a command.
func (f *mpiFlags) add(flags *pflag.FlagSet) {
	flags.SetInterspersed(false)
	flags.IntSliceVar(&f.nodes, "nodes", []int{4}, "on how many nodes")
	flags.StringVar(&f.substrate, "substrate", node.Hosted, "what the nodes run on: hosted or qemu (emulated)")
	flags.IntVar(&f.memory, "memory", 512, "memory of each node in MiB")
	flags.IntVar(&f.warmUps, "warm-ups", 1, "how many rounds before the first that counts: one brings files to the nodes")
	flags.IntVar(&f.rounds, "rounds", 3, "how many rounds")
	flags.DurationVar(&f.limit, "limit", time.Minute, "how long a run may take")
	flags.StringVar(&f.mpiexec, "mpiexec", "mpiexec.mpich", "the command of mpiexec, without -n and the program")
	flags.StringVar(&f.options, "run", "", "options of margay run, with spaces between, such as '--root host'")
	flags.StringVar(&f.results, "results", "", "compare only lines that match this regular expression (default: all)")
	flags.BoolVar(&f.markdown, "markdown", false, "print Markdown")
	flags.StringVar(&f.node, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
}

// check refuses wrong flags and finds the programs.
func (f *mpiFlags) check(c *cobra.Command) (err error) {
	if err := command.Positive(c, "memory", "rounds", "limit", "mpiexec"); err != nil {
		return err
	}
	if f.substrate != node.Hosted && f.substrate != node.Virtual {
		return fmt.Errorf("bench mpi: --substrate %s: it is %s or %s", f.substrate, node.Hosted, node.Virtual)
	}
	for _, n := range f.nodes {
		if n < 1 || n > roster.Most {
			return fmt.Errorf("bench mpi: --nodes %d: a machine has 1 to %d nodes", n, roster.Most)
		}
	}
	if f.warmUps < 0 {
		return fmt.Errorf("bench mpi: --warm-ups %d: it is 0 or more", f.warmUps)
	}
	words := strings.Fields(f.mpiexec)
	if len(words) == 0 {
		return errors.New("bench mpi: --mpiexec has no command")
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return fmt.Errorf("bench mpi: --mpiexec: %w; it is in Debian's package mpich", err)
	}
	if f.compared, err = regexp.Compile(f.results); err != nil {
		return fmt.Errorf("bench mpi: --results: %w", err)
	}
	f.node, f.jobInit, err = command.NodePrograms(f.node)
	return err
}

// benchMPI measures on all numbers of nodes. Nothing of it is left when it returns, nor when this
// process dies. The error differs is that results are not the same.
func (a commands) benchMPI(ctx context.Context, f mpiFlags, argv []string) (figures *launches.Figures, differs, err error) {
	figures = &launches.Figures{Host: page.ThisHost(a.Version)}
	figures.Plan = fmt.Sprintf("Rounds: %d of %s on nodes of the substrate %s, one rank on each.", f.rounds, strings.Join(argv, " "), f.substrate)
	folder, err := os.MkdirTemp("", "margay-bench-")
	if err != nil {
		return nil, nil, err
	}
	var machines []string
	for _, n := range f.nodes {
		machines = append(machines, machineName(mpiPlace(n)))
	}
	clean, err := startJanitor(folder, machines)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(folder))
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder), clean.dismiss()) }()
	host, err := os.Hostname()
	if err != nil {
		return nil, nil, err
	}
	for _, n := range f.nodes {
		outputs := newResults(host, f.compared)
		rows, err := a.measureMPI(ctx, n, f, argv, outputs)
		if err != nil {
			return nil, nil, err
		}
		figures.Results = append(figures.Results, rows...)
		verdict, wrong := outputs.verdict()
		if wrong != nil {
			verdict = "the results differ: " + wrong.Error()
			differs = errors.Join(differs, fmt.Errorf("bench mpi: %d nodes: %w", n, wrong))
		}
		figures.Notes = append(figures.Notes, fmt.Sprintf("%d nodes: %s.", n, verdict))
	}
	return figures, differs, nil
}

// mpiPlace names the machine with so many nodes.
func mpiPlace(nodes int) string { return fmt.Sprintf("mpi-%d", nodes) }

// measureMPI makes a machine, measures there and ends it. Outputs get what the ranks print.
func (a commands) measureMPI(ctx context.Context, nodes int, f mpiFlags, argv []string, outputs *results) (rows []*launches.Result, err error) {
	m := a.newMachine(mpiPlace(nodes))
	spec := machine.Spec{
		Substrate: f.substrate, Program: f.node, JobInit: f.jobInit, Nodes: nodes, Cores: 1, MemoryMiB: f.memory, Fabric: machine.FabricAuto,
	}
	if f.substrate == node.Virtual {
		spec.Accel, spec.Kernel, spec.QEMU = "tcg", os.Getenv("KERNEL"), os.Getenv("QEMU")
	}
	if err := m.up(ctx, spec); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.end(context.WithoutCancel(ctx))) }()
	contenders := []launches.Contender{{Name: launches.Ours, Run: func(ctx context.Context, _ launches.Work) (time.Duration, error) {
		output, took, err := m.runMPI(ctx, nodes, f, argv)
		if err == nil {
			outputs.ours = append(outputs.ours, outputs.lines(output))
		}
		return took, err
	}}}
	for _, tcp := range []bool{false, true} {
		launcher, name := peer.MPIExec{Words: strings.Fields(f.mpiexec), TCP: tcp}, "mpiexec"
		if tcp {
			name += " over TCP"
		}
		contenders = append(contenders, launches.Contender{Name: name, Peer: true, Run: func(ctx context.Context, _ launches.Work) (time.Duration, error) {
			output, took, err := launcher.Run(ctx, f.limit, nodes, argv)
			if err == nil {
				outputs.peers = append(outputs.peers, outputs.lines(output))
			}
			return took, err
		}})
	}
	plan := launches.Plan{WarmUps: f.warmUps, Rounds: f.rounds, Rest: launches.Pause(mpiPause), Limit: f.limit + mpiGrace, Silence: launchSilence}
	return launches.Measure(ctx, launches.Work{Nodes: nodes}, contenders, plan, a.Report)
}

// runMPI runs a job with one rank on each node, and returns what the ranks have printed, and how
// long that has taken.
func (m *benchMachine) runMPI(ctx context.Context, nodes int, f mpiFlags, argv []string) (string, time.Duration, error) {
	words := append([]string{"--stdin", "none", "--time", f.limit.String(), "-n", fmt.Sprint(nodes), "--ppn", "1"}, strings.Fields(f.options)...)
	return m.margayRun(ctx, append(append(words, "--"), argv...)...)
}
