package tick

import (
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Attempts without effect back off. A tick that stops and comes back is handled at once.
func TestLook(t *testing.T) {
	var c cpu
	attempts := func(looks int, interrupts uint64) (at []int) {
		for i := range looks {
			if c.look(interrupts) {
				at = append(at, i)
			}
		}
		return at
	}
	if at := attempts(10, often-1); at != nil {
		t.Errorf("attempts at %v on a quiet CPU", at)
	}
	if at := attempts(12, often); !slices.Equal(at, []int{0, 2, 5, 10}) {
		t.Errorf("attempts at %v under a tick that goes on, want 0, 2, 5, 10", at)
	}
	if at := attempts(1000, often); len(at) > 20 || len(at) < 10 {
		t.Errorf("%d attempts in 1000 looks, want one in %d", len(at), maxPause+1)
	}
	attempts(1, 0)
	if at := attempts(1, often); len(at) != 1 {
		t.Error("no attempt when the tick began again")
	}
}

// Requeueing keeps the attributes of a thread, including its time slice and nice value. An ended
// thread is an error.
func TestRequeue(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	pid := child.Process.Pid
	defer child.Wait()
	defer child.Process.Kill()
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	attr.Nice, attr.Runtime = 5, 700_000
	if err := unix.SchedSetAttr(pid, attr, 0); err != nil {
		t.Fatal(err)
	}
	before, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := requeue(pid); err != nil {
		t.Fatal(err)
	}
	if after, err := unix.SchedGetAttr(pid, 0); err != nil || *after != *before {
		t.Errorf("attributes are %+v, they were %+v: %v", after, before, err)
	}
	if err := requeue(1<<22 + 1); err == nil { // above pid_max
		t.Error("a thread that is not there was requeued")
	}
}
