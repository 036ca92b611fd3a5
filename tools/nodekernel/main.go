// Command nodekernel is everything that runs on a node besides applications and the inits of jobs
// (tools/jobinit). Its first argument selects the part:
//
//	nodekernel                              PID 1 of a machine of its own (it is /init of the node image)
//	nodekernel hosted CONFIG ROOT JOBINIT   PID 1 of a hosted node; descriptor 3 is its lifeline
//	nodekernel start SERVE                  the starter of a node on another host (cluster/starter)
//	nodekernel kernel                       the node kernel; descriptor 3 is its link to PID 1
//
// People do not start it: margay machine up does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/agent"
	"margay/cluster/starter"
	"margay/internal/procname"
	"margay/kernel"
	"margay/kernel/abi/node"
	"margay/kernel/driver"
	"margay/kernel/kexec"
	"margay/kernel/klog"
	"margay/kernel/link"
	"margay/kernel/pid1"
	"margay/kernel/pstore"
	schedulers "margay/kernel/sched/list"
)

// version is the version of this build, set by the linker.
var version = "unknown"

// self is the path of this program, wherever it is installed.
const self = "/proc/self/exe"

func main() {
	if err := run(os.Getpid(), os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "margay: %v\n", err)
		if os.Getpid() == 1 && len(os.Args) == 1 {
			pid1.Machine{}.GiveUp(logf) // a kernel whose first process ends panics
		}
		os.Exit(1)
	}
}

// names are what ps and top call a process of this program, by its first argument.
var names = map[string]string{node.Hosted: "margay-pid1", "kernel": "margay-kernel", starts: "margay-start"}

// starts is the argument of a starter.
const starts = "start"

// run refuses to be another process than the first one where its arguments make it that: it mounts
// over the root that it finds, and sets limits for the whole system.
func run(pid int, args []string) error {
	if len(args) > 0 && names[args[0]] != "" {
		if err := procname.Set(names[args[0]]); err != nil {
			logf("%v", err)
		}
	}
	switch {
	case pid != 1 && (len(args) == 0 || args[0] == node.Hosted):
		return errors.New("nodekernel is the first process of a node; margay machine up starts it")
	case len(args) == 0:
		return pid1.Main(pid1.Machine{}, []string{self, "kernel"})
	case args[0] == node.Hosted && len(args) == 4:
		node := pid1.Hosted{Config: args[1], Root: args[2], JobInit: args[3], Lifeline: os.NewFile(3, "lifeline")}
		return pid1.Main(node, []string{self, "kernel"})
	case args[0] == starts && len(args) == 2:
		return start(args[1])
	case args[0] == "kernel" && len(args) == 1:
		return runKernel()
	}
	return fmt.Errorf("nodekernel does not know what to do with %q; it is started by margay machine up", args)
}

// start starts a node on this host for the holder at the other end of the standard streams.
func start(serve string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return starter.Run(starter.Config{Serve: serve, Program: self, Version: version, In: os.Stdin, Out: os.Stdout})
}

// runKernel runs the node kernel until it is killed.
func runKernel() error {
	config, err := node.Read(node.Path)
	if err != nil {
		return err
	}
	conn, err := link.NewConn(os.NewFile(pid1.LinkFD, "link"))
	if err != nil {
		return err
	}
	c := agent.Config{Boot: config, Version: version, Log: logf, Restart: func() { os.Exit(0) }}
	if config.Substrate != node.Hosted {
		c.Linux, c.KernelLog, c.FirmwareLogs = new(kexec.Loader), klog.Read, pstore.Dir
		if c.Image, err = kexec.Running(); err != nil {
			return err
		}
		if c.Modules, err = driver.Modules(); err != nil {
			logf("%v", err) // it is shown, and nothing depends on it
		}
	}
	if config.Substrate == node.Metal {
		c.Reboot, c.Orphan = reboot, orphanTime
	}
	a, err := agent.New(c)
	if err != nil {
		return err
	}
	k, err := kernel.New(kernel.Config{
		Boot: config, JobInit: []string{node.JobInit, version}, Engine: engines(), Link: conn, Sink: a, Log: logf,
		Contents:  node.Contents,
		Scheduler: func() (kernel.Scheduler, []string) { return schedulers.Open(config, logf) },
	})
	if err != nil {
		return err
	}
	if config.Substrate != node.Hosted {
		go followKernelLog(a)
		go watchTicks(k)
	}
	return a.Run(context.Background(), k)
}

// orphanTime is how long a node of its own waits for serve until it reboots, and so joins the
// machine that it finds then.
const orphanTime = 10 * time.Minute

// reboot reboots the Linux of this node when the consoles have the last lines: nothing of it is on
// a disk.
func reboot() {
	pid1.Drain(unix.Stderr)
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		logf("reboot: %v", err)
	}
}

// followKernelLog reports warnings and errors of the Linux kernel to serve.
func followKernelLog(a *agent.Agent) {
	err := klog.Follow(context.Background(), func(level klog.Level, text string) { a.LogLine("kernel "+level.String(), text) })
	logf("%v", err)
}

func watchTicks(k *kernel.Node) {
	if err := k.WatchTicks(context.Background()); err != nil {
		logf("unneeded timer ticks are not turned off: %v", err)
	}
}

// logf writes a line to the node's console.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05.000")+" "+format+"\n", args...)
}
