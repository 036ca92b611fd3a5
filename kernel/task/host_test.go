//go:build !guest

package task_test

import (
	"fmt"
	"strings"
	"testing"

	"margay/kernel/task"
)

// inGuest means that the tests have their own Linux kernel (testsuite/guest), and jobs their
// control groups.
const inGuest = false

// Neither the bytes nor the number of files of a job are without bound, in its root and where its
// ranks share memory.
func TestRAMDisksAreBounded(t *testing.T) {
	exe, err := application()
	if err != nil {
		t.Fatal(err)
	}
	s := spec(1, "crowd", "/dev/shm", "/tmp")
	s.Memory, s.RAMDisk = 4<<20, int64(len(exe))+4<<20
	s.Env = append(s.Env, fmt.Sprint("MOST=", s.RAMDisk))
	e := newEvents()
	start(t, s, e)
	e.await(t, "end", func() bool { return len(e.exits()) == 1 })
	if got, want := e.text(0, task.Stdout), strings.Repeat("full: no space left on device\nno more files: no space left on device\n", 2); got != want {
		t.Errorf("%q, want %q; %q", got, want, e.text(0, task.Stderr))
	}
}
