// Package alloc has the commands around allocations: margay alloc, which holds cores for a command
// of the user's host, and margay exec, which runs a program on nodes of an allocation.
//
// A command in an allocation finds it in its environment (environment.go). There Open MPI's mpirun
// starts its daemons by a hidden command of this package (openmpi.go).
package alloc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/allocation"
	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/internal/slack"
	"margay/internal/throwaway"
	"margay/tools/margay/command"
	"margay/tools/margay/job"
)

// commands make the commands of this group.
type commands struct{ *command.App }

// Commands returns the commands of this group.
func Commands(app *command.App) []*cobra.Command {
	a := commands{app}
	return []*cobra.Command{a.allocCommand(), a.execCommand(), a.agentCommand(), a.daemonCommand()}
}

func (a commands) allocCommand() *cobra.Command {
	var f job.Flags
	c := a.QuietFlag(&cobra.Command{
		Use:   "alloc [flags] [COMMAND [ARGUMENT...]]",
		Short: "Hold cores for a command, which runs here",
		Long: `Get cores of the machine, run a command here, and give the cores back when it ends. The command is your shell unless you name one.

Jobs that the command starts (margay run, margay exec) are steps of the allocation: they get its cores and no others, and end with it.
Several run at a time as long as it has free cores. Nothing else gets these cores. The machine's other jobs do not matter to the steps,
and a drained node takes the steps of an allocation that it has.

-n asks for so many cores, on as few nodes as it takes, -N for all cores of so many nodes. With both, the cores are spread over the
nodes. With -c each of -n has several cores on one node. -w, -x, -t and --wait are as for margay run.

The command finds in its environment: MARGAY_ALLOCATION, the number of the job that is the allocation; MARGAY_MACHINE; MARGAY_NODELIST,
the nodes, such as node0,node1; MARGAY_CORES, how many cores; MARGAY_HOSTFILE, a file with a line for each node and its cores
("node0 slots=2"), which exists as long as the allocation. MARGAY_ALLOCATION alone, with --allocation, is enough for another terminal.

Open MPI's mpirun needs no flags in an allocation on hosted nodes: variables that begin with OMPI_MCA_ start its daemons there, as
steps with all cores of a node, with the host's programs (--root host), the working directory (--files) and the allocation's network. One
mpirun at a time can use a node.

The allocation ends with the command, however that ends, and when this command is killed. At the limit of -t, with margay kill --force,
and when a node is lost, the command gets SIGTERM, SIGHUP 2 s later, and SIGKILL after another 5 s; the status is then 124, 137 or 125.
margay kill sends the command a signal. Otherwise the status is the command's. A restart of serve does not matter.`,
		Example: `  margay alloc -N 4                           # a shell with all cores of 4 nodes
  margay alloc -n 8 --wait ./script           # when 8 cores are free
  margay alloc -N 4 mpirun -n 8 ./hello_mpi   # Open MPI, on hosted nodes
  margay alloc -n 2 -t 10m sh -c 'margay run -n 2 ./first && margay run -n 2 ./second'`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.Positive(c, "ranks", "nodes", "cpus-per-task", "time"); err != nil {
				return err
			}
			if err := command.Given(c, "nodelist", "exclude", "wait"); err != nil {
				return err
			}
			if number := job.AllocationAround(a.App); number != "" {
				return fmt.Errorf("alloc: this is in allocation %s already: end its command first, or unset %s", number, job.AllocationVariable)
			}
			return a.alloc(c.Context(), &f, c.Flags().Changed("ranks"), args)
		},
	})
	c.Flags().SetInterspersed(false)
	fs := c.Flags()
	fs.IntVarP(&f.Ranks, "ranks", "n", 1, "how many cores (with -c: how many times so many)")
	fs.IntVarP(&f.Nodes, "nodes", "N", 0, "spread them over exactly this many nodes; without -n, all cores of each")
	fs.IntVarP(&f.CoresEach, "cpus-per-task", "c", 0, "cores for each of -n, on one node (default: 1)")
	job.PlaceFlags(fs, &f)
	return c
}

// renamed words an error of the flags that margay run has, too.
func renamed(command string, err error) error {
	if rest, is := strings.CutPrefix(err.Error(), "run: "); is {
		return errors.New(command + ": " + rest)
	}
	return err
}

// alloc gets an allocation and runs the command in it.
func (a commands) alloc(ctx context.Context, f *job.Flags, counted bool, argv []string) error {
	f.Stdin = "none"
	if len(argv) == 0 {
		argv = []string{shell()}
	}
	path, err := exec.LookPath(argv[0])
	if err != nil { // before cores are held
		code := 126
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = 127
		}
		return command.Failed(code, fmt.Errorf("alloc %s: %w", argv[0], errors.Unwrap(err)))
	}
	spec, err := f.Spec()
	if err != nil {
		return renamed("alloc", err)
	}
	socket, err := a.Socket()
	if err != nil {
		return err
	}
	if f.Nodes > 0 && !counted {
		if spec.Ranks, err = a.whole(ctx, f, spec); err != nil {
			return err
		}
	}
	spec.Arch, spec.User, spec.Uid, spec.Dir = runtime.GOARCH, client.UserName(), uint32(os.Getuid()), nil
	asking, stop := command.Interruptible(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	held, err := allocation.Ask(asking, allocation.Options{
		Socket: socket, Spec: spec, Command: argv, Notice: func(text string) { a.Report("margay: %s", text) },
	})
	if err == nil {
		stop()
		defer held.Close()
		return a.run(held, path, argv)
	}
	defer stop()
	return command.Failed(launch.ExitStatus(err), err)
}

// shell is the user's shell.
func shell() string {
	if path := os.Getenv("SHELL"); path != "" {
		return path
	}
	return "/bin/sh"
}

// whole returns how many times -c cores, or single ones, all cores of -N nodes are. Where nodes
// differ, the smallest decides.
func (a commands) whole(ctx context.Context, f *job.Flags, spec *control.JobSpec) (uint32, error) {
	nodes, err := command.Ask[*control.Nodes](ctx, a.App, &control.ListNodes{})
	if err != nil {
		return 0, err
	}
	least := 0
	for _, n := range nodes.Nodes {
		used := (len(spec.Only) == 0 || slices.Contains(spec.Only, n.Node)) && !slices.Contains(spec.Without, n.Node)
		if cores := len(n.GetInfo().GetCores()); used && cores > 0 && (least == 0 || cores < least) {
			least = cores
		}
	}
	return uint32(f.Nodes * max(1, least/max(1, f.CoresEach))), nil
}

// Times of a command whose allocation has ended before it.
const (
	untilHangUp = 2 * time.Second // shells ignore SIGTERM
	untilKill   = 5 * time.Second
)

// releaseTimeout bounds how long the end of an allocation may take when its command has ended.
const releaseTimeout = 30 * time.Second

// run runs the command in an allocation, until both have ended.
func (a commands) run(held *allocation.Allocation, path string, argv []string) error {
	places := newPlaces(held.Places)
	// The command gets these from the terminal, too. Others are passed on.
	ignored, stopIgnoring := command.Catch(1, unix.SIGINT, unix.SIGQUIT)
	defer stopIgnoring()
	passed, stopPassing := command.Catch(8, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	defer stopPassing()
	hosts, err := places.file()
	if err != nil {
		return a.release(held, &control.ExitStatus{Code: launch.ExitMargay}, err)
	}
	defer hosts.Close()
	a.Report("allocation %d: %s on %s", held.Job, printable.Count(places.count(), "core"), nodeset.Condense(places.nodes()))
	cmd := exec.Command(path, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, below(a.Stdout), a.Stderr
	cmd.Env = environment(os.Environ(), a.Machine, held.Job, places, hostfile(hosts))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGHUP} // shells ignore SIGTERM
	done, err := start(cmd)
	if err != nil {
		return a.release(held, &control.ExitStatus{Code: 126}, fmt.Errorf("alloc: %w", err))
	}
	begun, over := time.Now(), held.Ended()
	var next <-chan time.Time
	ends := []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGKILL}
	after := []time.Duration{untilHangUp, untilKill, time.Hour}
	endIt := func() {
		_ = cmd.Process.Signal(ends[0])
		_ = cmd.Process.Signal(unix.SIGCONT) // it may be stopped
		next = time.After(after[0])
		if len(ends) > 1 {
			ends, after = ends[1:], after[1:]
		}
	}
	for {
		select {
		case <-ignored:
		case sig := <-passed:
			_ = cmd.Process.Signal(sig)
		case sig := <-held.Signals():
			_ = cmd.Process.Signal(sig)
		case <-over:
			over = nil
			state, err := held.End()
			a.Loss("allocation %d has ended before its command: %v", held.Job, cause(state, err))
			endIt()
		case <-next:
			endIt()
		case <-done:
			return a.finish(held, cmd, time.Since(begun))
		}
	}
}

// cause is why an allocation has ended before its command.
func cause(state *control.JobState, err error) error {
	if err == nil {
		err = state.GetError().Err()
	}
	return err
}

// start starts a process that gets its Pdeathsig when this process ends, and not when a thread of
// it does. The channel is closed when the process has ended.
func start(cmd *exec.Cmd) (done <-chan struct{}, err error) {
	started, ended := make(chan error), make(chan struct{})
	throwaway.Go(func() {
		slack.Set(slack.Application)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ProcessState says how
			close(ended)
		}
	})
	return ended, <-started
}

// below returns the file that the command's output goes to.
func below(w io.Writer) io.Writer {
	if o, is := w.(interface{ Below() io.Writer }); is {
		return o.Below()
	}
	return w
}

// finish gives the cores back after the command has ended, and returns how.
func (a commands) finish(held *allocation.Allocation, cmd *exec.Cmd, took time.Duration) error {
	select {
	case <-held.Ended():
		state, err := held.End()
		if err != nil {
			return command.Failed(launch.ExitMargay, nil) // the reason is printed
		}
		return command.Failed(int(state.ExitCode), nil)
	default:
	}
	exit := &control.ExitStatus{TimeNs: int64(took)}
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		exit.Signal, code = int32(status.Signal()), 128+int(status.Signal())
	} else {
		exit.Code = int32(code)
	}
	if code == 0 {
		return a.release(held, exit, nil)
	}
	return a.release(held, exit, command.Failed(code, nil))
}

// release gives the cores back, and returns err, or else an error of its own.
func (a commands) release(held *allocation.Allocation, exit *control.ExitStatus, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	state, lost := held.Release(ctx, exit)
	if lost == nil && state.GetError() != nil { // it has ended for another reason at the same time
		lost = command.Failed(int(state.ExitCode), state.Error.Err())
	}
	if lost != nil && err == nil {
		return lost
	}
	if lost != nil {
		a.Loss("%v", lost)
	}
	return err
}
