package task_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/task"
)

// Where a rank is killed and memory is not the reason, none is given.
func TestKilledForNoReason(t *testing.T) {
	e := newEvents()
	s := spec(2, "sleep")
	s.Memory = 64 << 20
	c := start(t, s, e)
	if err := c.Signal(task.AllRanks, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e.await(t, "ends", func() bool { return len(e.exits()) == 2 })
	for rank, status := range e.exits() {
		if got := status.String(); got != "was killed by SIGKILL" {
			t.Errorf("rank %d %s", rank, got)
		}
	}
}

// Without control groups a resource limit does what it can.
func TestOutOfMemoryByRlimit(t *testing.T) {
	s := spec(2, "eat")
	s.Memory, s.Rlimits = 256<<20, true
	e := newEvents()
	c := start(t, s, e)
	e.await(t, "end of rank 0", func() bool { return len(e.exits()) == 1 })
	if status := e.exits()[0]; status.Code != 1 || !strings.Contains(e.text(0, task.Stderr), "eat: "+unix.ENOMEM.Error()) {
		t.Errorf("rank 0 %v and wrote %q", status, e.text(0, task.Stderr))
	}
	if err := c.Signal(1, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	e.await(t, "end of rank 1", func() bool { return e.exits()[1].Signal == unix.SIGTERM })
}

func TestRAMDiskIsBounded(t *testing.T) {
	exe, err := application()
	if err != nil {
		t.Fatal(err)
	}
	const room = 8 << 20
	s := spec(1, "fill")
	s.RAMDisk = int64(len(exe)) + room
	e := newEvents()
	c := prepare(t, s, e)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(load(t, c), c.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	e.await(t, "end", func() bool { return len(e.exits()) == 1 })
	var n int
	out := e.text(0, task.Stdout)
	if _, err := fmt.Sscanf(out, "%d written:", &n); err != nil || n < room/2 || n > room || !strings.Contains(out, unix.ENOSPC.Error()) {
		t.Errorf("%q, %v", out, err)
	}
}

func TestFilesThatDoNotFit(t *testing.T) {
	s := spec(1, "hello")
	s.RAMDisk = 1 << 20
	if err := load(t, prepare(t, s, newEvents())); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}
