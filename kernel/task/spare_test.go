//go:build !guest

package task_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/task"
)

// A job that is at fault itself does not keep the next one from a spare.
func TestSpareOfFaultyJob(t *testing.T) {
	p := pool(t, host(t))
	last := 0
	for range 2 {
		last = awaitSpare(t, p, last)
		s := spec(1, "hello")
		s.Dir = "/etc/passwd/home"
		var start *task.StartError
		if _, err := p.New(t.Context(), s, newEvents()); !errors.As(err, &start) {
			t.Errorf("a job in a folder that cannot be: %v", err)
		}
		if failures := p.Failures(); failures > 0 {
			t.Errorf("%d spares were at fault", failures)
		}
	}
}

// stopped reports whether all threads of a process are stopped.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no threads: %v", pid, err)
	}
	return !slices.ContainsFunc(threads, func(thread string) bool {
		text, err := os.ReadFile(thread)
		return err == nil && !bytes.Contains(text, []byte(") T "))
	})
}

// A job gets a fresh init when the spare cannot be used, and the spare ends.
func TestUnusableSpare(t *testing.T) {
	for name, signal := range map[string]unix.Signal{"stopped": unix.SIGSTOP, "killed": unix.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			p := pool(t, host(t))
			last := awaitSpare(t, p, 0)
			if err := unix.Kill(last, signal); err != nil {
				t.Fatal(err)
			}
			p.Wait(time.Second, patience)
			if signal == unix.SIGSTOP { // it could become the job's init before
				check.AwaitFor(t, patience, "stop of the spare", func() bool { return stopped(t, last) })
			}
			if c := runOf(t, p); c.PID() == last {
				t.Error("the job has this spare")
			}
			awaitEnd(t, last)
			awaitSpare(t, p, last)
		})
	}
}
