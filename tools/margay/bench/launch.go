package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
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
	"margay/tools/margay/show"
)

// byLaunch is the command that writes its figures into a page.
const byLaunch = "margay bench launch"

// launchFlags are the flags of margay bench launch.
type launchFlags struct {
	nodes         []int
	against       []string
	rounds        int
	pause         time.Duration
	quick         bool
	markdown      bool
	into          string
	program       string
	node, jobInit string // what nodes run
}

// quickPause is the pause of --quick.
const quickPause = 10 * time.Millisecond

func (a commands) benchLaunchCommand() *cobra.Command {
	var f launchFlags
	c := a.JSONFlag(&cobra.Command{
		Use:   "launch",
		Short: "Measure how long an empty job takes, beside MPICH and pdsh",
		Long: `Measure how long margay run takes for a program that does nothing, one rank on each of 1, 8 and 64 hosted nodes, beside MPICH's
hydra and pdsh where they are installed, and beside processes that are only started. This makes machines of its own and ends
them again. The hosts of the others are pretended: all of their processes are on this host.

In each round every contender has its turn. A time is from the start of the launcher to its end; for Margay with the files on
the nodes, after earlier jobs, and with the record of the job kept. In the pause after a turn Margay prepares the next job.
Back to back is a job that begins when another one has ended, without that pause. Compare figures of one measurement only.`,
		Example: `  margay bench launch
  margay bench launch --nodes 1,16 --rounds 50 --against 'MPICH hydra'
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
			return a.printLaunch(figures, f)
		},
	})
	f.add(c.Flags())
	c.Flags().BoolVarP(&a.Quiet, "quiet", "q", false, "print no progress, only the figures")
	return c
}

// add adds the flags to a command.
func (f *launchFlags) add(flags *pflag.FlagSet) {
	flags.IntSliceVar(&f.nodes, "nodes", []int{1, 8, 64}, "on how many nodes")
	flags.StringSliceVar(&f.against, "against", peer.LauncherNames(), "what to compare with, if it is installed; none: with nothing")
	flags.IntVar(&f.rounds, "rounds", 20, "how many rounds")
	flags.DurationVar(&f.pause, "pause", 500*time.Millisecond, "how long to wait after each turn")
	flags.BoolVar(&f.quick, "quick", false, "one round without a long pause, which only shows that everything works")
	flags.BoolVar(&f.markdown, "markdown", false, "print Markdown")
	flags.StringVar(&f.into, "into", "", "write the figures into this page, between its two lines for them")
	flags.StringVar(&f.program, "program", "/bin/true", "the program that the jobs run")
	flags.StringVar(&f.node, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
}

// check refuses wrong flags and finds the programs.
func (f *launchFlags) check(c *cobra.Command) (err error) {
	if err := command.Positive(c, "rounds", "pause", "into", "program"); err != nil {
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
	if f.into != "" {
		if err := intoPage(f.into, byLaunch, nil); err != nil {
			return err
		}
	}
	if f.quick {
		f.rounds, f.pause = quickRounds, quickPause
	}
	f.node, f.jobInit, err = command.NodePrograms(f.node)
	return err
}

// benchLaunch measures on all numbers of nodes. Nothing of it is left when it returns, nor when
// this process dies.
func (a commands) benchLaunch(ctx context.Context, f launchFlags) (figures *launches.Figures, err error) {
	figures = &launches.Figures{Host: page.ThisHost(a.Version)}
	figures.Plan = fmt.Sprintf("Rounds: %d, with a pause of %v after each turn.", f.rounds, f.pause)
	folder, err := os.MkdirTemp("", "margay-bench-")
	if err != nil {
		return nil, err
	}
	var machines []string
	for _, n := range f.nodes {
		machines = append(machines, machineName(launchPlace(n)))
	}
	clean, err := startJanitor(folder, machines)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder), clean.dismiss()) }()
	var peers []launches.Contender
	for _, name := range f.against {
		c, err := peer.FindLauncher(name, folder, f.program)
		if err != nil {
			figures.Notes = append(figures.Notes, fmt.Sprintf("%s is left out: %v.", name, err))
			a.Report("%s", figures.Notes[len(figures.Notes)-1])
			continue
		}
		peers = append(peers, c)
	}
	for _, n := range f.nodes {
		results, err := a.measureLaunches(ctx, n, f, peers)
		if err != nil {
			return nil, err
		}
		figures.Results = append(figures.Results, results...)
	}
	return figures, nil
}

// launchPlace names the machine with so many nodes.
func launchPlace(nodes int) string { return fmt.Sprintf("launch-%d", nodes) }

// measureLaunches makes a machine, measures there and ends it.
func (a commands) measureLaunches(ctx context.Context, nodes int, f launchFlags, peers []launches.Contender) (results []*launches.Result, err error) {
	m := a.newMachine(launchPlace(nodes))
	spec := machine.Spec{Substrate: node.Hosted, Program: f.node, JobInit: f.jobInit, Nodes: nodes, Cores: 1, Fabric: machine.FabricAuto}
	if err := m.up(ctx, spec); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.end(context.WithoutCancel(ctx))) }()
	contenders := []launches.Contender{
		{Name: launches.Ours, Run: func(ctx context.Context, nodes int) (time.Duration, error) {
			return m.launch(ctx, nodes, f.program)
		}},
		{Name: launches.Ours + ", back to back", Run: func(ctx context.Context, nodes int) (time.Duration, error) {
			if _, err := m.launch(ctx, nodes, f.program); err != nil {
				return 0, err
			}
			return m.launch(ctx, nodes, f.program)
		}},
	}
	return launches.Measure(ctx, nodes, append(contenders, peers...), launches.Plan{Rounds: f.rounds, Pause: f.pause}, a.Report)
}

// launch runs margay run, and returns how long that has taken.
func (m *benchMachine) launch(ctx context.Context, nodes int, program string) (time.Duration, error) {
	margay, err := command.Beside("margay")
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, margay, "-m", m.Machine, "run", "-q", "--stdin", "none", "-N", fmt.Sprint(nodes), program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals of a terminal are not for it
	var failure strings.Builder
	cmd.Stderr = &failure
	begun := time.Now()
	err = cmd.Run()
	took := time.Since(begun)
	if err != nil {
		return 0, fmt.Errorf("margay run: %w: %s", err, strings.TrimSpace(failure.String()))
	}
	return took, nil
}

// printLaunch prints the figures, and writes them into a page if one is given.
func (a commands) printLaunch(figures *launches.Figures, f launchFlags) error {
	if f.into != "" {
		if err := intoPage(f.into, byLaunch, figures.Markdown); err != nil {
			return err
		}
	}
	switch {
	case a.JSON:
		return show.Value(a.Stdout, figures)
	case f.markdown:
		return figures.Markdown(a.Stdout)
	}
	t := a.Table(launches.Headings...)
	figures.Rows(t)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.Stdout)
	return figures.Text(a.Stdout)
}
