package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"margay/cluster/launch"
	"margay/cluster/machine"
	"margay/cluster/roster"
	"margay/internal/printable"
	"margay/kernel/abi/node"
	"margay/tools/margay/bench/launches"
	"margay/tools/margay/bench/page"
	"margay/tools/margay/bench/peer"
	"margay/tools/margay/command"
)

// byLaunch is the command that writes its figures into a page.
const byLaunch = "margay bench launch"

// launchFlags are the flags of margay bench launch.
type launchFlags struct {
	nodes         []int
	sizes         []int // of programs, in MiB
	jobs          int   // of one user; 0: they are not measured
	against       []string
	rounds        []int // one for all, or one for each of nodes
	pause         time.Duration
	quick         bool
	markdown      bool
	into          string
	program       string
	node, jobInit string // what nodes run
}

const (
	quickPause    = 10 * time.Millisecond // the pause of --quick
	launchLimit   = time.Minute           // bounds one turn
	launchWarmUps = 1
	launchSilence = 5 * time.Second // without a line of progress, before a turn
)

// Bounds of --sizes, in MiB, and of --jobs: a turn has a minute.
const (
	largestProgram = 256
	mostJobs       = 2000
)

// jobsAtOnce is how many of --jobs run at the same time.
const jobsAtOnce = 16

func (a commands) benchLaunchCommand() *cobra.Command {
	var f launchFlags
	c := a.JSONFlag(&cobra.Command{
		Use:   "launch",
		Short: "Measure how long empty jobs take, beside MPICH, pdsh and Slurm",
		Long: `Measure how long margay run takes for a program that does nothing, one rank on each of 1, 8 and 64 hosted nodes, beside MPICH's
hydra, pdsh and Slurm where they are installed, and beside processes that are only started. This makes machines of its own and ends
them again. The hosts of the others are pretended: all of their processes are on this host. Slurm has daemons of its own, in
namespaces, on up to 256 pretended hosts; only root can start them. The host's own Slurm is not used.

In each round every contender has its turn. A turn begins when all that the measurement has started is at rest: for the time of
--pause, longer on large machines, no process has begun or ended, and the processor time was small. A time is from the start of the
launcher to its end; for Margay with the files on the nodes, after earlier jobs, with a job init ready on each node, and with the
record of the job kept. Back to back is a job that begins when another one has ended. Compare figures of one measurement only.

With --sizes the same is measured with programs that are made that large, for Margay also with a program that the machine has
never run. With --jobs one user runs so many jobs of one rank, 16 at a time: one margay run --array, or as many processes of
the other launcher. Each machine is measured as well: how long it takes until all nodes are up, and the memory that its
processes have taken in the end.`,
		Example: `  margay bench launch
  margay bench launch --nodes 1,16 --rounds 50 --against 'MPICH hydra'
  margay bench launch --nodes 8,256 --rounds 20,4 --against Slurm
  margay bench launch --nodes 8 --sizes 8,12 --jobs 200
  margay bench launch --quick --json
  margay bench launch --into docs/launch.md`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			figures, err := a.benchLaunch(ctx, f)
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				return err
			}
			return a.print(figures, launches.Headings, output{f.markdown, f.into, byLaunch})
		},
	})
	f.add(c.Flags())
	c.Flags().BoolVarP(&a.Quiet, "quiet", "q", false, "print no progress, only the figures")
	return c
}

// add adds the flags to a command.
func (f *launchFlags) add(flags *pflag.FlagSet) {
	flags.IntSliceVar(&f.nodes, "nodes", []int{1, 8, 64}, "on how many nodes")
	flags.IntSliceVar(&f.sizes, "sizes", nil, "also with programs of so many `MiB`")
	flags.IntVar(&f.jobs, "jobs", 0, "also run so many jobs of one rank; 0: do not")
	flags.StringSliceVar(&f.against, "against", peer.LauncherNames(), "what to compare with, if it is installed; none: with nothing")
	flags.IntSliceVar(&f.rounds, "rounds", []int{20}, "how many rounds, or how many on each of --nodes")
	flags.DurationVar(&f.pause, "pause", 500*time.Millisecond, "for how long all must be at rest before each turn")
	flags.BoolVar(&f.quick, "quick", false, "one round without a long pause, which only shows that everything works")
	flags.BoolVar(&f.markdown, "markdown", false, "print Markdown")
	flags.StringVar(&f.into, "into", "", "write the figures into this page, between its two lines for them")
	flags.StringVar(&f.program, "program", "/bin/true", "the program that the jobs run")
	flags.StringVar(&f.node, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
}

// check refuses wrong flags and finds the programs.
func (f *launchFlags) check(c *cobra.Command) (err error) {
	if err := command.Positive(c, "pause", "into", "program"); err != nil {
		return err
	}
	if slices.Equal(f.against, []string{"none"}) {
		f.against = nil
	}
	for _, name := range f.against {
		if !slices.Contains(peer.LauncherNames(), name) {
			return fmt.Errorf("bench launch: --against %s: it is one of %s", name, strings.Join(peer.LauncherNames(), ", "))
		}
	}
	for _, n := range f.nodes {
		if n < 1 || n > roster.Most {
			return fmt.Errorf("bench launch: --nodes %d: a machine has 1 to %d nodes", n, roster.Most)
		}
	}
	if f.quick {
		f.rounds, f.pause = []int{quickRounds}, quickPause
	}
	if len(f.rounds) == 1 {
		f.rounds = slices.Repeat(f.rounds, len(f.nodes))
	}
	if len(f.rounds) != len(f.nodes) || slices.Min(f.rounds) < 1 {
		return fmt.Errorf("bench launch: --rounds %s: it is one number from 1, or one for each of the %d in --nodes", numbers(f.rounds), len(f.nodes))
	}
	for _, size := range f.sizes {
		if size < 1 || size > largestProgram {
			return fmt.Errorf("bench launch: --sizes %d: a program has 1 to %d MiB", size, largestProgram)
		}
	}
	if f.jobs < 0 || f.jobs > mostJobs {
		return fmt.Errorf("bench launch: --jobs %d: a turn has 1 to %d jobs", f.jobs, mostJobs)
	}
	if f.into != "" {
		if err := intoPage(f.into, byLaunch, nil); err != nil {
			return err
		}
	}
	f.node, f.jobInit, err = command.NodePrograms(f.node)
	return err
}

// launchBench is a measurement.
type launchBench struct {
	commands
	launchFlags
	folder  string // for programs and files of peers
	peers   []*peer.Launcher
	figures *launches.Figures
}

// benchLaunch measures on all machines. Nothing of it is left when it returns, nor when this
// process dies.
func (a commands) benchLaunch(ctx context.Context, f launchFlags) (figures *launches.Figures, err error) {
	b := &launchBench{commands: a, launchFlags: f, figures: &launches.Figures{Host: page.ThisHost(a.Version)}}
	b.figures.Plan = fmt.Sprintf("Rounds: %s, on %s nodes. Before each turn all was at rest for %v or longer.", numbers(f.rounds), numbers(f.nodes), f.pause)
	if b.folder, err = os.MkdirTemp("", "margay-bench-"); err != nil {
		return nil, err
	}
	places := b.places()
	var machines []string
	for _, p := range places {
		machines = append(machines, machineName(p.name))
	}
	clean, err := startJanitor(b.folder, machines)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.folder))
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder), clean.dismiss()) }()
	b.findPeers()
	if err := b.padPrograms(ctx); err != nil {
		return nil, err
	}
	for _, p := range places {
		if err := b.measure(ctx, p); err != nil {
			return nil, err
		}
	}
	return b.figures, nil
}

// numbers lists numbers.
func numbers(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
}

// note adds a line to the figures and reports it.
func (b *launchBench) note(format string, args ...any) {
	b.figures.Notes = append(b.figures.Notes, fmt.Sprintf(format, args...))
	b.Report(format, args...)
}

// findPeers finds the launchers that are installed.
func (b *launchBench) findPeers() {
	for _, name := range b.against {
		c, err := peer.FindLauncher(name, b.folder)
		if err != nil {
			b.note("%s is left out: %v.", name, err)
			continue
		}
		b.peers = append(b.peers, c)
	}
}

// launchPlace is a machine with the work of its measurement.
type launchPlace struct {
	name         string
	nodes, cores int
	rounds, jobs int
	works        []launches.Work
}

// places returns all machines and their work.
func (b *launchBench) places() (places []launchPlace) {
	for i, n := range b.nodes {
		p := launchPlace{fmt.Sprintf("launch-%d", n), n, 1, b.rounds[i], 0, []launches.Work{{Nodes: n, Program: b.program}}}
		for _, size := range b.sizes {
			p.works = append(p.works, launches.Work{Nodes: n, Size: size, Program: b.sized(size)})
		}
		places = append(places, p)
	}
	if b.jobs > 0 {
		places = append(places, launchPlace{"launch-jobs", 1, jobsAtOnce, b.rounds[0], b.jobs, []launches.Work{{Nodes: 1, Program: b.program, Jobs: b.jobs, AtOnce: jobsAtOnce}}})
	}
	return places
}

// sized is the program of a size, in MiB.
func (b *launchBench) sized(size int) string {
	return filepath.Join(b.folder, fmt.Sprintf("program-%d", size))
}

// padPrograms makes the programs of all sizes, and waits until margay run takes them for old ones.
func (b *launchBench) padPrograms(ctx context.Context) error {
	for _, size := range b.sizes {
		if err := padded(b.sized(size), b.program, size); err != nil {
			return err
		}
	}
	if len(b.sizes) == 0 || b.quick {
		return nil
	}
	b.Report("waiting for %v, so that the programs are not new", launch.Settled)
	select {
	case <-time.After(launch.Settled):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// padded makes a copy of a program that is so large, in MiB: what follows the parts that Linux
// loads is as random as code is at most, and new each time.
func padded(path, program string, size int) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	padding := make([]byte, max(0, size<<20-len(text)))
	_, _ = rand.Read(padding) // it never fails
	return os.WriteFile(path, append(text, padding...), 0o755)
}

// measure makes a machine and the daemons of the peers, measures there and ends them.
func (b *launchBench) measure(ctx context.Context, p launchPlace) (err error) {
	m := b.newMachine(p.name)
	spec := machine.Spec{Substrate: node.Hosted, Program: b.node, JobInit: b.jobInit, Nodes: p.nodes, Cores: p.cores, Fabric: machine.FabricAuto}
	begun := time.Now()
	if err := m.up(ctx, spec); err != nil {
		return err
	}
	up := time.Since(begun)
	defer func() { err = errors.Join(err, m.end(context.WithoutCancel(ctx))) }()
	peers, end, err := b.beginPeers(ctx, p)
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return err
	}
	plan := launches.Plan{WarmUps: launchWarmUps, Rounds: p.rounds, Rest: m.rest(p.nodes, b.pause).Wait, Limit: launchLimit, Silence: launchSilence}
	for _, w := range p.works {
		results, err := launches.Measure(ctx, w, append(b.ours(m, w), peers...), plan, b.Report)
		if err != nil {
			return err
		}
		b.figures.Results = append(b.figures.Results, results...)
	}
	used, err := m.memory()
	if err != nil {
		return err
	}
	b.figures.Machines = append(b.figures.Machines, launches.Machine{Nodes: p.nodes, Jobs: p.jobs, Up: up.Seconds(), Memory: float64(used) / float64(p.nodes) / 1e6})
	return nil
}

// beginPeers starts the daemons of the peers for a place. A peer that cannot start there is left
// out with a note. The function that it returns ends them, also after an error, which is ctx's end.
func (b *launchBench) beginPeers(ctx context.Context, p launchPlace) (contenders []launches.Contender, end func() error, err error) {
	var sessions []*peer.Session
	end = func() error {
		var errs []error
		for _, s := range sessions {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	}
	for _, l := range b.peers {
		s, err := l.Begin(ctx, peer.Hosts{Count: p.nodes, CPUs: p.cores})
		if err == nil {
			sessions = append(sessions, s)
		}
		if ctx.Err() != nil {
			return nil, end, context.Cause(ctx)
		}
		if err != nil {
			b.note("%s is left out on %s: %v.", l.Name(), printable.Count(p.nodes, "node"), err)
			continue
		}
		contenders = append(contenders, s.Contender)
		if s.Note != "" {
			b.note("%s", s.Note)
		}
	}
	return contenders, end, nil
}

// ours are the contenders for some work on a machine.
func (b *launchBench) ours(m *benchMachine, w launches.Work) []launches.Contender {
	list := []launches.Contender{{Name: launches.Ours, Run: m.launch}}
	switch {
	case w.Jobs > 0:
	case w.Size > 0:
		list = append(list, launches.Contender{Name: launches.Ours + ", new program", Run: func(ctx context.Context, w launches.Work) (time.Duration, error) {
			w.Program = filepath.Join(b.folder, "new")
			if err := padded(w.Program, b.program, w.Size); err != nil {
				return 0, err
			}
			return m.launch(ctx, w)
		}})
	default:
		list = append(list, launches.Contender{Name: launches.Ours + ", back to back", Run: func(ctx context.Context, w launches.Work) (time.Duration, error) {
			if _, err := m.launch(ctx, w); err != nil {
				return 0, err
			}
			return m.launch(ctx, w)
		}})
	}
	return list
}

// launch runs margay run, and returns how long that has taken.
func (m *benchMachine) launch(ctx context.Context, w launches.Work) (time.Duration, error) {
	words := []string{"--stdin", "none", "-N", fmt.Sprint(w.Nodes)}
	if w.Jobs > 0 {
		words = []string{"--array", fmt.Sprintf("0-%d%%%d", w.Jobs-1, w.AtOnce)}
	}
	_, took, err := m.margayRun(ctx, append(words, w.Program)...)
	return took, err
}
