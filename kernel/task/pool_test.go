package task_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"margay/internal/check"
	"margay/kernel/task"
)

// pool returns an open pool, which ends with the test.
func pool(t *testing.T, h task.Host) *task.Pool {
	t.Helper()
	if h.User == nil {
		h.User = func() int { return 70002 }
	}
	p := task.NewPool(h)
	p.Wait(patience, patience) // however busy the host is
	p.Open()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// awaitSpare returns the process id of the pool's spare, another one than last.
func awaitSpare(t *testing.T, p *task.Pool, last int) (pid int) {
	t.Helper()
	check.AwaitFor(t, patience, "a spare", func() bool {
		pid = p.Spare()
		return pid != 0 && pid != last
	})
	return pid
}

// awaitEnd waits until a process is gone.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	check.AwaitFor(t, patience, fmt.Sprintf("end of process %d", pid), func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return errors.Is(err, os.ErrNotExist)
	})
}

// runOf makes a container of the pool, runs a job in it, and checks what the job says.
func runOf(t *testing.T, p *task.Pool) *task.Container {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := spec(2, "hello")
	if inGuest {
		s.Memory, s.Pids = 128<<20, 40
	}
	e := newEvents()
	c, err := p.New(ctx, s, e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.End() })
	if err := provide(t, c); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	e.await(t, "both ends", func() bool { return len(e.exits()) == 2 })
	for rank, status := range e.exits() {
		if status.Code != 7 { // as it always ends
			t.Errorf("rank %d %v: %s", rank, status, e.text(rank, task.Stderr))
		}
	}
	return c
}

// A spare becomes the init of a job. If that is over without a Release, there is another spare, and
// after the pool none.
func TestPool(t *testing.T) {
	p := pool(t, host(t))
	last := awaitSpare(t, p, 0)
	c := runOf(t, p)
	if c.PID() != last {
		t.Errorf("the job has init %d and not spare %d", c.PID(), last)
	}
	if err := c.End(); err != nil {
		t.Error(err)
	}
	c.Release()
	last = awaitSpare(t, p, 0)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, last)
	c = runOf(t, p)
	if c.PID() == last {
		t.Error("a job has a spare of a closed pool")
	}
	if err := c.End(); err != nil {
		t.Error(err)
	}
	c.Release()
	if inGuest {
		if groups, _ := filepath.Glob(cgroups + "/init-*"); len(groups) > 0 {
			t.Errorf("left: %v", groups)
		}
	}
}
