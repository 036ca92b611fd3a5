package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/kernel/abi/node"
)

func (a *app) machineCommand() *cobra.Command {
	c := &cobra.Command{Use: "machine", Short: "Make, show and end machines"}
	c.AddCommand(a.upCommand(), a.downCommand(), a.statusCommand(), a.machineListCommand(), a.consoleCommand(), a.restartCommand(), a.coresCommand())
	return c
}

func (a *app) upCommand() *cobra.Command {
	var spec machine.Spec
	var program string
	var extensions []string
	c := &cobra.Command{
		Use:   "up",
		Short: "Make a machine and wait until its nodes are up",
		Long: `Make a machine of compute nodes and wait until all of them are up. It stays up until margay machine down.

A node has one system core and the application cores that --cores asks for. With --cores all, core 0 computes for
applications as well; margay machine cores changes that later. On the substrate qemu each node
is a virtual machine; on hosted it is a set of namespaces of this host, and its cores are shared with it.`,
		Example: `  margay machine up --nodes 4 --cores 2
  margay machine up -m test --substrate hosted --nodes 16 --cores 1
  margay machine up --extension ext/boot/minimum/minimum.o,cores=2 --extension ext/exit/account/account.o`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := positive(c, "machine", "nodes", "memory", "boot-timeout", "dead-after", "substrate", "profile", "accel"); err != nil {
				return err
			}
			if spec.Substrate == node.Hosted {
				if err := without(c, "is for virtual nodes: hosted ones have the Linux of this host", "profile", "accel", "kernel", "qemu"); err != nil {
					return err
				}
			}
			ctx, stop := interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			spec.Name = a.machine
			var err error
			if spec.Program, err = nodeProgram(program); err != nil {
				return err
			}
			if spec.Extensions, err = bootExtensions(extensions); err != nil {
				return err
			}
			return machine.Up(ctx, machine.UpOptions{
				Spec:     spec,
				Holder:   []string{"/proc/self/exe", "holder"},
				Told:     func(format string, args ...any) { fmt.Fprintf(a.stderr, format+"\n", args...) },
				Progress: a.progress(),
			})
		},
	}
	f := c.Flags()
	f.IntVar(&spec.Nodes, "nodes", 4, "how many nodes")
	spec.Cores = 2
	f.Var(coresFlag{&spec}, "cores", "application cores of each node besides core 0, or all: two, and core 0 as well")
	f.BoolVar(&spec.MessageCore, "message-core", false, "have the last core of each node handle messages and nothing else")
	f.StringVar(&spec.Substrate, "substrate", node.Virtual, "what nodes run on: qemu or hosted")
	f.IntVar(&spec.MemoryMiB, "memory", 512, "memory of each node, in MiB")
	f.DurationVar(&spec.Timing.Boot, "boot-timeout", 0, "how long a node may take to come up (default 2m0s)")
	f.DurationVar(&spec.Timing.Dead, "dead-after", 0, "silence after which a node is dead (default 10s)")
	f.StringVar(&spec.Profile, "profile", "isolated", "boot profile of virtual nodes: isolated (least noise) or sched (sched_ext can be used)")
	f.StringVar(&spec.Accel, "accel", "tcg", "how virtual nodes are run: tcg (emulated), kvm, or auto (KVM if it proves itself)")
	f.StringVar(&spec.Kernel, "kernel", os.Getenv("KERNEL"), "kernel of virtual nodes: a vmlinuz, or a folder with boot and lib/modules (environment: KERNEL)")
	f.StringVar(&spec.QEMU, "qemu", os.Getenv("QEMU"), "QEMU of virtual nodes: a path, or a name in PATH (environment: QEMU; default: the one installed, or a newer one)")
	f.StringArrayVar(&extensions, "extension", nil, "an extension that every node inserts when it boots, trusted, for all jobs: FILE or FILE,CONSTANT=VALUE,...; may be given again")
	f.StringVar(&program, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
	return c
}

// nodeProgram finds the program that nodes run.
func nodeProgram(path string) (string, error) {
	return besideMargay("nodekernel", path, "the program that nodes run", "--node-program")
}

// besideMargay finds a program that is beside this one unless path, from a flag, names another.
func besideMargay(name, path, what, flag string) (string, error) {
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(self), name)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: %w; make build makes it, %s names another", what, err, flag)
	}
	return path, nil
}

func (a *app) downCommand() *cobra.Command {
	return a.verboseFlag(&cobra.Command{
		Use:   "down",
		Short: "End a machine, with everything that runs on it",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := a.dir()
			if err != nil {
				return err
			}
			if err := machine.Down(c.Context(), d); err != nil {
				return err
			}
			a.tell("machine %s is ended; %s is removed", a.machine, d)
			return nil
		},
	})
}

func (a *app) statusCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:   "status",
		Short: "Show whether a machine is up",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := a.running()
			if err != nil {
				return err
			}
			pid, _ := d.Holder()
			status, err := ask[*control.MachineStatus](c.Context(), a, &control.Status{})
			if err != nil {
				return err
			}
			status.HolderPid = int64(pid)
			if a.json {
				return printJSON(a.stdout, status)
			}
			_, err = fmt.Fprintf(a.stdout, "machine %s (%s): %d of %d nodes up, %d of %d application cores free, %d jobs\n"+
				"holder: process %d; serve: process %d, started %d times, last %s ago\nlogs: %s\n",
				status.Machine, status.Substrate, status.Up, status.Nodes, status.FreeCores, status.Cores, status.Jobs,
				pid, status.ServePid, status.ServeStarts, time.Since(time.Unix(0, status.SinceNs)).Round(time.Second), filepath.Dir(d.Log("serve")))
			return err
		},
	})
}

// restartWait is longer than serve waits for a kernel that was started again.
const restartWait = time.Minute

func (a *app) restartCommand() *cobra.Command {
	return a.verboseFlag(&cobra.Command{
		Use:   "restart NODE",
		Short: "Start the kernel of a node again, and wait until it is back; jobs on the node go on",
		Args:  arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			node, err := parseNode(args[0])
			if err != nil {
				return err
			}
			if _, err = askWithin[*control.Done](c.Context(), a, &control.RestartKernel{Node: node}, restartWait); err != nil {
				return err
			}
			a.tell("the kernel of node%d was started again", node)
			return nil
		},
	})
}

func (a *app) consoleCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:     "console NODE",
		Short:   "Show the console of a node",
		Example: "  margay machine console 2 --follow",
		Args:    arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			node, err := parseNode(args[0])
			if err != nil {
				return err
			}
			d, err := a.dir()
			if err != nil {
				return err
			}
			if _, err := d.ReadSpec(); err != nil {
				return err
			}
			f, err := os.Open(d.ConsoleLog(node))
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("machine %s has no node %d, or it has not been started", a.machine, node)
			}
			if err != nil {
				return err
			}
			if !follow {
				defer f.Close()
				_, err := io.Copy(a.stdout, f)
				return err
			}
			return copyFollowing(c.Context(), a.stdout, f, func() error {
				_, err := a.running()
				return err
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until Ctrl-C, or until the machine goes down")
	return c
}

// followPause is how often a file is looked at for more.
const followPause = 100 * time.Millisecond

// copyFollowing copies f and whatever is appended to it, or to the file that takes its place when it is rotated, until ctx ends or ended
// returns an error, which says why nothing more will come. It closes f.
func copyFollowing(ctx context.Context, w io.Writer, f *os.File, ended func() error) error {
	defer func() { f.Close() }()
	for {
		end := ended()            // before the last look
		next, err := successor(f) // nothing more is appended to f when there is one
		if err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		if next != nil {
			f.Close()
			f = next
		}
		switch {
		case err != nil:
			return err
		case end != nil:
			return end
		case next != nil:
			continue
		}
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// successor opens the file that has the name of f now. It is nil when that is f, or there is none.
func successor(f *os.File) (*os.File, error) {
	next, err := os.Open(f.Name())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	was, err1 := f.Stat()
	is, err2 := next.Stat()
	if err := errors.Join(err1, err2); err != nil || os.SameFile(was, is) {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

// serveCommand is started by the holder, and on machines without one by their operator.
func (a *app) serveCommand() *cobra.Command {
	var lifeline int
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the service node's daemon of a machine (its holder does this)",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := interruptible(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			d, err := a.dir()
			if err != nil {
				return err
			}
			var r io.Reader
			if lifeline > 0 {
				r = os.NewFile(uintptr(lifeline), "lifeline")
			}
			return machine.Serve(ctx, d, r, logger(a.stderr))
		},
	}
	c.Flags().IntVar(&lifeline, "lifeline", 0, "descriptor of a pipe whose end is the holder's end")
	_ = c.Flags().MarkHidden("lifeline")
	return c
}

// holderCommand is started by machine up.
func (a *app) holderCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "holder MACHINE",
		Hidden: true,
		Args:   arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := interruptible(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			d, err := machine.DirOf(args[0])
			if err != nil {
				return err
			}
			serve := []string{"/proc/self/exe", "serve", "-m", args[0], "--lifeline", "3"}
			return machine.Hold(ctx, d, serve, logger(a.stderr))
		},
	}
}

// logger writes lines with the time.
func logger(w io.Writer) func(format string, args ...any) {
	return log.New(w, "", log.LstdFlags|log.Lmicroseconds).Printf
}
