package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fill writes a file until it cannot any more, and says why.
func fill([]string) error {
	f, err := os.Create("/tmp/fill")
	if err != nil {
		return err
	}
	var total int
	for block := make([]byte, 1<<20); ; {
		n, err := f.Write(block)
		total += n
		if err != nil {
			fmt.Printf("rank %s wrote %d MiB: %v\n", rank(), total>>20, errors.Unwrap(err))
			return nil
		}
	}
}

// eat [RANK] takes memory without end, in one rank or in all.
func eat(args []string) error {
	if len(args) > 0 && args[0] != rank() {
		time.Sleep(time.Hour)
	}
	var all [][]byte
	for {
		block := make([]byte, 4<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		all = append(all, block)
		if len(all)%1000 == 0 {
			runtime.KeepAlive(all)
		}
	}
}

// fork starts processes without end, and says how far it got.
func fork([]string) error {
	haveThreads(8) // Go ends a program that needs another one and cannot have it
	n := 0
	for {
		cmd := exec.Command("/proc/self/exe", "sleep")
		if err := cmd.Start(); err != nil {
			fmt.Printf("rank %s started %d processes: %v\n", rank(), n, err)
			return nil
		}
		n++
	}
}

// haveThreads has this process have some idle threads.
func haveThreads(n int) {
	var made, done sync.WaitGroup
	made.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			made.Wait()
		})
	}
	done.Wait()
}

// orphan leaves a process behind that has left its session, and ends.
func orphan([]string) error {
	cmd := exec.Command("/proc/self/exe", "sleep", "3600", "orphan")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// kill sends SIGKILL to everything that it can see.
func killAll([]string) error {
	unix.Kill(-1, unix.SIGKILL) // all but itself
	if err := unix.Kill(1, unix.SIGKILL); err != unix.EPERM {
		fmt.Printf("killing PID 1: %v\n", err)
	}
	fmt.Println("rank", rank(), "has killed what it could")
	return nil
}

// snoop tries what a job must not be able to do, and prints what it could do.
func snoop([]string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var pids []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, e.Name())
		}
	}
	fmt.Printf("sees %d processes\n", len(pids))
	try := func(what string, err error) {
		if err == nil {
			fmt.Println("CAN", what)
		}
	}
	try("signal PID 1", unix.Kill(1, 0))
	try("trace PID 1", unix.PtraceAttach(1))
	for _, path := range []string{"/margay/node.json", "/margay", "/run", "/sys/fs/cgroup", "/init", "/lib/modules", "/proc/1/root/", "/proc/1/environ", "/proc/1/fd"} {
		f, err := os.Open(path)
		if err == nil {
			if _, derr := f.Readdirnames(1); path[len(path)-1] != '/' && derr != nil && !strings.HasPrefix(path, "/proc") {
				err = derr
			}
			f.Close()
		}
		try("open "+path, err)
	}
	try("mount", unix.Mount("none", "/tmp", "tmpfs", 0, ""))
	try("make a device", unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, 1<<8|1))
	try("become root", syscall.Setuid(0))
	try("change the host name", unix.Sethostname([]byte("mine")))
	try("write sysctls", os.WriteFile("/proc/sys/kernel/panic", []byte("1"), 0))
	try("trigger sysrq", os.WriteFile("/proc/sysrq-trigger", []byte("h"), 0))
	try("load a module", unix.FinitModule(0, "", 0))
	try("switch off", unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART2))
	try("leave its cores", leaveCores())
	matches, _ := filepath.Glob("/proc/*/cmdline")
	for _, m := range matches {
		text, _ := os.ReadFile(m)
		if strings.Contains(string(text), "kernel") {
			fmt.Println("CAN see", string(text))
		}
	}
	return nil
}

// leaveCores moves this thread to core 0 and reports whether that was refused.
func leaveCores() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var set unix.CPUSet
	set.Set(0)
	return unix.SchedSetaffinity(0, &set)
}
