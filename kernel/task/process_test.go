package task_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/clock"
	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// The end of a rank carries its resource usage. All its input is in memory, so that no fault waits
// for a disk.
func TestUsage(t *testing.T) {
	e := newEvents()
	s := spec(1, "touch")
	s.Small = true
	start(t, s, e)
	e.await(t, "end", func() bool { return len(e.exits()) == 1 })
	u := e.exits()[0].Usage
	if u.MinorFaults < touched/4096 || u.MinorFaults > 2*touched/4096 || u.MajorFaults != 0 || u.User+u.System <= 0 || u.Yields <= 0 {
		t.Errorf("it has used %+v", u)
	}
}

// Ranks have huge pages where the node kernel has them, unless they are declined: only the init is
// without.
func TestHugePages(t *testing.T) {
	for _, small := range []bool{false, true} {
		e := newEvents()
		s := spec(1, "status")
		s.Small = small
		start(t, s, e)
		e.await(t, "end", func() bool { return len(e.exits()) == 1 })
		if got, want := e.text(0, task.Stdout), fmt.Sprintf("HugePagesDeclined:\t%v\n", small); !strings.Contains(got, want) {
			t.Errorf("the status of a rank lacks %q:\n%s", want, got)
		}
	}
}

// The node kernel gets hold of each rank's process: a number that means the rank here, and a
// descriptor that only ever means it.
func TestProcesses(t *testing.T) {
	cpu := allowed(t)[0]
	s := spec(3, "sleep")
	for i := range s.Ranks {
		s.Ranks[i].Cores = []id.CPU{cpu} // they share it
	}
	e := newEvents()
	before := id.Time(clock.Monotonic())
	start(t, s, e)
	e.await(t, "processes", func() bool { return len(e.processes()) == 3 })
	for rank, p := range e.processes() {
		if now := id.Time(clock.Monotonic()); p.Since < before || p.Since > now {
			t.Errorf("rank %d was started at %d, between %d and %d", rank, p.Since, before, now)
		}
		var env []byte
		var err error
		e.await(t, "environment", func() bool { // empty: its execve is not over
			env, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
			return err != nil || len(env) > 0
		})
		if err != nil && os.Getuid() == 0 || err == nil && !strings.Contains(string(env), fmt.Sprintf("MARGAY_RANK=%d\x00", rank)) {
			t.Errorf("process %d is not rank %d: %q, %v", p.PID, rank, env, err)
		}
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(p.PID, &set); err != nil || set.Count() != 1 || !set.IsSet(int(cpu)) {
			t.Errorf("rank %d may use %d CPUs, CPU %d: %v, %v", rank, set.Count(), cpu, set.IsSet(int(cpu)), err)
		}
		if (p.Group != "") != inGuest {
			t.Errorf("rank %d is in group %q", rank, p.Group)
		}
	}
	e.await(t, "all ranks", func() bool {
		return e.text(0, task.Stdout) != "" && e.text(1, task.Stdout) != "" && e.text(2, task.Stdout) != ""
	})
	for rank, p := range e.processes() {
		if rank == 1 {
			continue
		}
		if err := unix.PidfdSendSignal(int(p.File.Fd()), unix.SIGKILL, nil, 0); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	e.await(t, "ends", func() bool { return len(e.exits()) == 2 })
	for rank, status := range e.exits() {
		if rank == 1 || status.Signal != unix.SIGKILL {
			t.Errorf("rank %d %v", rank, status)
		}
	}
}
