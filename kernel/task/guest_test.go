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

	"golang.org/x/sys/unix"

	"margay/kernel/task"
)

// inGuest tells that the tests have a Linux kernel to themselves (testsuite/guest), and jobs their control groups.
const inGuest = true

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

// A job that starts processes without end gets its share and no more, and its init has room to work.
func TestForkBomb(t *testing.T) {
	const limit = 80
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
