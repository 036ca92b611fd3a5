// Command guestinit is PID 1 of a guest for tests (testsuite/guest). It mounts the file systems of
// a node, runs the test binaries in order as root, reports their output and exit statuses on the
// console, and turns the guest off.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/pid1"
	"margay/kernel/reap"
	"margay/testsuite/guest/report"
)

// settle is the time that the last processes of a run have to end.
const settle = 3 * time.Second

func main() {
	g := &guest{console: report.NewWriter(os.Stdout), ended: make(chan unix.WaitStatus, 1)}
	if err := g.run(); err != nil {
		_ = g.console.Write(report.Event{Kind: report.Failed, Text: err.Error()})
	}
	// Output that has not left the serial port at power-off is lost.
	_ = unix.IoctlSetInt(int(os.Stdout.Fd()), unix.TCSBRK, 1)
	pid1.Machine{}.Off(log.Printf)
}

type guest struct {
	console *report.Writer

	mu    sync.Mutex
	pid   int // of the current test binary
	ended chan unix.WaitStatus
}

func (g *guest) run() error {
	node := pid1.Machine{}
	if err := errors.Join(node.Mount(), mountTerminals(), node.LoadModules()); err != nil {
		return err
	}
	text, err := os.ReadFile(report.PlanPath)
	if err != nil {
		return err
	}
	var plan report.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("%s: %w", report.PlanPath, err)
	}
	go reap.All(g.reaped)
	if err := g.console.Write(report.Event{Kind: report.Up}); err != nil {
		return err
	}
	for i, r := range plan.Runs {
		if err := g.test(i, r); err != nil {
			return fmt.Errorf("run %s: %w", r.Argv[0], err)
		}
	}
	return g.console.Write(report.Event{Kind: report.Done})
}

// mountTerminals mounts devpts, which nodes do not have.
func mountTerminals() error {
	if err := os.MkdirAll("/dev/pts", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=620,ptmxmode=666"); err != nil {
		return fmt.Errorf("mount /dev/pts: %w", err)
	}
	return nil
}

// test runs one test binary.
func (g *guest) test(i int, r report.Run) error {
	output, err := g.start(r)
	if err != nil {
		return err
	}
	defer output.Close()
	exit := make(chan string, 1)
	go func() { exit <- strings.Join(append(describe(<-g.ended), killOthers()...), "; ") }()
	buf := make([]byte, 4096)
	for {
		n, err := output.Read(buf)
		if err := g.tell(report.Event{Kind: report.Output, Run: i, Data: buf[:n]}); err != nil {
			return err
		}
		if err != nil {
			break
		}
	}
	if err := g.profile(i, r.Profile); err != nil {
		return err
	}
	return g.console.Write(report.Event{Kind: report.Exit, Run: i, Text: <-exit})
}

func (g *guest) tell(e report.Event) error {
	if len(e.Data) == 0 {
		return nil
	}
	return g.console.Write(e)
}

// start starts a test binary and returns the pipe for its output and the output of its children.
func (g *guest) start(r report.Run) (*os.File, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	near, far, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pid, err = syscall.ForkExec(r.Argv[0], r.Argv, &syscall.ProcAttr{
		Dir:   "/tmp",
		Env:   append([]string{"PATH=/", "HOME=/tmp"}, r.Env...),
		Files: []uintptr{null.Fd(), far.Fd(), far.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		near.Close()
		return nil, err
	}
	return near, nil
}

func (g *guest) reaped(pid int, status unix.WaitStatus, _ *unix.Rusage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if pid == g.pid {
		g.ended <- status
	}
}

// describe returns how a run ended, or "" for success.
func describe(status unix.WaitStatus) []string {
	switch {
	case status.Signaled():
		return []string{"killed by " + unix.SignalName(status.Signal())}
	case status.ExitStatus() != 0:
		return []string{fmt.Sprintf("exit status %d", status.ExitStatus())}
	}
	return nil
}

// killOthers waits for the end of all other processes. It kills those that stay, and returns their
// command lines.
func killOthers() []string {
	pause := 5 * time.Millisecond
	for deadline := time.Now().Add(settle); ; time.Sleep(pause) {
		pause = min(2*pause, settle/10) // to look keeps an emulated processor busy
		left := others()
		if len(left) == 0 {
			return nil
		}
		if time.Now().Before(deadline) {
			continue
		}
		var names []string
		for pid, name := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
			names = append(names, fmt.Sprintf("left process %d behind: %s", pid, name))
		}
		return names
	}
}

// others returns the command lines of all other processes. Kernel threads and zombies have none.
func others() map[int]string {
	found := make(map[int]string)
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if text, err := os.ReadFile(f); err == nil && len(text) > 0 && pid != os.Getpid() {
			found[pid] = strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

// profile reports the coverage profile of a run, if there is one.
func (g *guest) profile(i int, path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	zw := gzip.NewWriter(&packed)
	_, err = zw.Write(text)
	if err := errors.Join(err, zw.Close(), os.Remove(path)); err != nil {
		return err
	}
	return g.tell(report.Event{Kind: report.Profile, Run: i, Data: packed.Bytes()})
}
