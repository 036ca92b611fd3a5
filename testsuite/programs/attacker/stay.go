package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/message/accumulate"
	"margay/kernel/abi/wire"
	"margay/lib/margay"
)

// endOf returns a channel that receives SIGTERM.
func endOf() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGTERM)
	return c
}

// keepName is the name of the region that tries to outlive its job.
const keepName = "outlive"

// stay [wait] leaves processes behind that have left their session, ignore signals, and hold
// everything that this one has: its memory, its extension's, its sockets. Then it ends, or waits
// for its end.
func stay(args []string) error {
	fd, err := unix.FcntlInt(wire.FD, unix.F_DUPFD, 10) // it goes to the children
	if err != nil {
		return err
	}
	job, err := margay.Init()
	if err != nil {
		return err
	}
	x, err := job.Insert(margay.ExtensionSpec{Name: "stay", Object: accumulate.Object})
	if err != nil {
		return err
	}
	job.Upcalls()
	region, err := job.Region(keepName, 1<<20)
	if err != nil {
		return err
	}
	for i := range region.Bytes {
		region.Bytes[i] = byte(i)
	}
	if _, err := x.State(accumulate.Table); err != nil {
		return err
	}
	area, err := unix.MemfdCreate("left behind", 0)
	if err != nil {
		return err
	}
	if _, err := unix.Write(area, region.Bytes); err != nil {
		return err
	}
	// In flight: memory and a socket that are in its own socket, unread.
	if err := unix.Sendmsg(fd, []byte("junk"), unix.UnixRights(area, fd), nil, unix.MSG_DONTWAIT); err != nil {
		return err
	}
	for range 3 {
		cmd := exec.Command("/proc/self/exe", "linger")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	fmt.Println("staying as extension", x.Handle())
	if len(args) > 0 {
		time.Sleep(time.Hour)
	}
	os.Exit(0)
	return nil
}

// linger starts another linger. Both ignore the signals that end processes.
func linger(args []string) error {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	if len(args) == 0 {
		cmd := exec.Command("/proc/self/exe", "linger", "on")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd.Start()
	}
	time.Sleep(time.Hour)
	return nil
}

// remains prints the traces of jobs on a node with a Linux of its own, as Linux counts them for the
// whole system: KiB of shared memory, threads, and control groups.
func remains([]string) error {
	var shared, threads, groups int
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(memory)) {
		fmt.Sscanf(line, "Shmem: %d kB", &shared)
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	if _, all, ok := strings.Cut(string(load), "/"); ok {
		fmt.Sscan(all, &threads)
	}
	controllers, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(controllers)) {
		var hierarchy int
		fmt.Sscanf(line, "pids %d %d", &hierarchy, &groups)
	}
	fmt.Println("remains", shared, threads, groups)
	return nil
}
