//go:build guest

package task_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// inGuest means that the tests have their own Linux kernel (testsuite/guest), and jobs their
// control groups.
const inGuest = true

// provide gives a job the application that its node has. An emulated processor unpacks each copy
// for a second, and translates its instructions again.
func provide(t *testing.T, c *task.Container) error {
	t.Helper()
	return lend(t, c)
}

func TestOutOfMemory(t *testing.T) {
	well := neighbour(t)
	s := spec(2, "eat")
	s.Memory = 64 << 20
	e := newEvents()
	start(t, s, e)
	e.await(t, "both ends", func() bool { return len(e.exits()) == 2 })
	for rank, status := range e.exits() {
		if got := status.String(); got != "was killed by SIGKILL: out of memory (the job's limit on this node is 64 MiB)" {
			t.Errorf("rank %d %s", rank, got)
		}
	}
	if e.isGone() {
		t.Error("the job's init has gone, too")
	}
	well()
}

// A job that starts processes without end gets only its share, and its init has room to work.
func TestForkBomb(t *testing.T) {
	const limit = 40
	well := neighbour(t)
	s := spec(1, "fork")
	s.Pids = limit
	e := newEvents()
	c := start(t, s, e)
	e.await(t, "refusal", func() bool { return strings.Contains(e.text(0, task.Stdout), unix.EAGAIN.Error()) })
	text, err := os.ReadFile(filepath.Join(cgroups, fmt.Sprintf("job-%d", s.Job), "ranks", "pids.current"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n > limit {
		t.Errorf("%d processes, %v", n, err)
	}
	if err := c.Signal(0, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e.await(t, "end of the rank", func() bool { return len(e.exits()) == 1 })
	well()
}

// Files can fit on the RAM disk and yet leave the job's init no memory. Then it says so.
func TestFilesBeyondMemory(t *testing.T) {
	well := neighbour(t)
	const size = 40 << 20
	archive, err := pack(entry{tar.Header{Name: "file", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}, make([]byte, size)})
	if err != nil {
		t.Fatal(err)
	}
	s := spec(1, "hello")
	s.Memory, s.RAMDisk = size, size
	c := prepare(t, s, newEvents())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = c.Unpack(ctx, bytes.NewReader(archive))
	if !errors.Is(err, task.ErrGone) || !strings.Contains(err.Error(), "out of memory (the job's limit on this node is 40 MiB)") {
		t.Error(err)
	}
	well()
}

// A rank can be frozen while others of its job continue, and the job can still be ended.
func TestFreezeRank(t *testing.T) {
	e := newEvents()
	s := spec(2, "raw cat")
	s.Ranks[1].Stdin = true
	c := start(t, s, e)
	e.await(t, "processes", func() bool { return len(e.processes()) == 2 })
	frozen := e.processes()[0]
	awaitRead(t, frozen.PID)
	if group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", frozen.PID)); err != nil || strings.TrimSpace(string(group)) != "0::"+strings.TrimPrefix(frozen.Group, cgroups) {
		t.Errorf("the process is in %q, %v; it should be in %s", group, err, frozen.Group)
	}
	freeze := func(how string) {
		if err := os.WriteFile(filepath.Join(frozen.Group, "cgroup.freeze"), []byte(how), 0); err != nil {
			t.Fatal(err)
		}
	}
	say := func(rank id.Rank, offset uint64, text string, eof bool) {
		if err := c.Input(rank, offset, []byte(text), eof); err != nil {
			t.Fatal(err)
		}
	}
	freeze("1")
	say(0, 0, "thawed", true)
	say(1, 0, "free", true)
	e.await(t, "end of rank 1", func() bool { return len(e.exits()) == 1 })
	if e.text(1, task.Stdout) != "free" || e.text(0, task.Stdout) != "" {
		t.Errorf("rank 1 wrote %q, rank 0, which is frozen, %q", e.text(1, task.Stdout), e.text(0, task.Stdout))
	}
	freeze("0")
	e.await(t, "end of rank 0", func() bool { return len(e.exits()) == 2 })
	if e.text(0, task.Stdout) != "thawed" {
		t.Errorf("rank 0 wrote %q", e.text(0, task.Stdout))
	}
}

// awaitRead waits until a thread of a process waits in read(2), which a freeze must not interrupt.
func awaitRead(t *testing.T, pid int) {
	t.Helper()
	var calls []string
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		calls = calls[:0]
		for _, f := range files {
			text, _ := os.ReadFile(f)
			calls = append(calls, string(text))
			if strings.HasPrefix(string(text), fmt.Sprintf("%d 0x0 ", unix.SYS_READ)) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no thread reads: %q", calls)
		}
	}
}

// A frozen rank does not keep its job from ending.
func TestEndFrozen(t *testing.T) {
	e := newEvents()
	c := start(t, spec(1, "sleep"), e)
	e.await(t, "process", func() bool { return len(e.processes()) == 1 })
	if err := os.WriteFile(filepath.Join(e.processes()[0].Group, "cgroup.freeze"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	left := members(t, c)
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
	awaitNone(t, left)
	if groups, _ := filepath.Glob(cgroups + "/job-*"); len(groups) > 0 {
		t.Errorf("control groups %v are left", groups)
	}
}

// neighbour starts another job. The function it returns demands that the job is well.
func neighbour(t *testing.T) func() {
	t.Helper()
	s := spec(1, "cat")
	s.Job++
	s.UID++
	s.GID++
	e := newEvents()
	c := start(t, s, e)
	return func() {
		t.Helper()
		if err := c.Input(0, 0, []byte("well"), true); err != nil {
			t.Fatal(err)
		}
		e.await(t, "end of the neighbour", func() bool { return len(e.exits()) == 1 })
		if status := e.exits()[0]; !status.OK() || e.text(0, task.Stdout) != "well" {
			t.Errorf("the neighbour %v and wrote %q", status, e.text(0, task.Stdout))
		}
	}
}
