package ctest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/wire"
	"margay/lib/ranktest"
)

// Handlers of testdata/upcall.c.
const (
	plain  = 1
	writes = 2 // into the pipe that the program reads
	opens  = 3 // lets others interrupt it, and waits for stops
	stops  = 4
	dives  = 5 // lets others interrupt it
)

// upcalls is a rank that runs testdata/upcall.c.
type upcalls struct {
	*ranktest.Kernel
	t      *testing.T
	sent   uint64
	sum    uint64
	nudges int
}

func startUpcalls(t *testing.T, mode string, n int) *upcalls {
	t.Helper()
	source, err := os.ReadFile("testdata/upcall.c")
	if err != nil {
		t.Fatal(err)
	}
	program := build(t, string(source), append(library(t), "-lm", "-lpthread")...)
	k := ranktest.Start(t, command(program), mode, fmt.Sprint(n))
	k.Greet()
	return &upcalls{Kernel: k, t: t}
}

// send sends an upcall as soon as there is room, and reports whether it had to nudge.
func (u *upcalls) send(handler uint16, size int) (nudged bool) {
	u.t.Helper()
	r := wire.Record{Handler: handler, Peer: 1, Node: 2, Args: [2]uint64{u.sent}, Payload: make([]byte, size)}
	u.Await("room for an upcall", func() (ok bool) {
		ok, nudged = u.Upcall(r)
		return ok
	})
	u.sum += u.sent
	u.sent++
	if nudged {
		u.nudges++
	}
	return nudged
}

// armed waits until the rank can be interrupted.
func (u *upcalls) armed() {
	u.t.Helper()
	u.Await("rank that can be interrupted", u.Armed)
}

// ends waits for the end of the program, to which all upcalls must have come once.
func (u *upcalls) ends() (says string) {
	u.t.Helper()
	u.Barrier(1)
	output, errors := u.Ended(0)
	if want := fmt.Sprintf("rank 1: %d upcalls, sum %d", u.sent, u.sum); !strings.HasSuffix(output, want) {
		u.t.Errorf("it says %q and %q, not %q", output, errors, want)
	}
	return output
}

// Whatever a program does when upcalls come, it goes on as if they had not: its registers are
// whole, and so is what malloc does.
func TestUpcallsInterrupt(t *testing.T) {
	for _, mode := range []string{"vectors", "malloc"} {
		t.Run(mode, func(t *testing.T) {
			n := check.Rounds(250, 1000)
			u := startUpcalls(t, mode, n)
			for range n {
				u.armed()
				if !u.send(plain, 100) {
					t.Fatal("a rank that is armed is not nudged")
				}
			}
			t.Log(u.ends())
		})
	}
}

// Upcalls come as fast as they can into a program that computes with vectors and uses malloc: a
// million in soak.
func TestManyUpcalls(t *testing.T) {
	n := check.Rounds(250_000, 1_000_000)
	u := startUpcalls(t, "all", n)
	for i := range n {
		u.send(plain, i%50)
	}
	t.Log(u.ends(), "-", u.nudges, "nudges")
}

// A system call that waits goes on, or says EINTR, as Linux has it.
func TestUpcallInSystemCall(t *testing.T) {
	u := startUpcalls(t, "restart", 0)
	for range 5 {
		u.armed()
		u.Sleeps()
		u.send(plain, 0)
	}
	u.armed()
	u.send(writes, 0)
	u.armed()
	u.Sleeps() // in nanosleep now
	u.send(plain, 0)
	u.ends()
}

// Masked upcalls wait until they are unmasked; no signal is sent for them.
func TestUpcallsMasked(t *testing.T) {
	u := startUpcalls(t, "mask", 0)
	for step, c := range []struct {
		n      int
		nudges int
	}{{1, 1}, {10, 0}, {1, 1}, {5, 0}, {3, 0}, {2, -1}} {
		before := u.nudges
		u.Rendezvous(func() {
			for range c.n {
				u.send(plain, 0)
			}
			if c.nudges != 0 {
				u.armed() // they have been handled
			}
		})
		if got := u.nudges - before; c.nudges >= 0 && got != c.nudges {
			t.Errorf("step %d: %d nudges, not %d", step, got, c.nudges)
		}
	}
	u.ends()
}

// A rank that waits in the library is woken by the doorbell and takes upcalls there.
func TestUpcallsWhileWaiting(t *testing.T) {
	const n = 500
	u := startUpcalls(t, "wait", n)
	for i := range n {
		if i%10 == 0 {
			u.Await("sleep", u.Waiting)
		}
		u.send(plain, i)
	}
	u.ends()
}

// Handlers that allow it interrupt each other.
func TestUpcallsNested(t *testing.T) {
	const n = 1000
	u := startUpcalls(t, "nest", n)
	u.armed()
	u.send(opens, 0)
	u.armed()
	if !u.send(stops, 0) {
		t.Error("a handler that lets others interrupt it is not interrupted")
	}
	for range n - 2 {
		u.send(dives, 1000)
	}
	u.ends()
}
