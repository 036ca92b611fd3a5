package message

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
)

const (
	deliver = uint16(slot.Deliver) // handlers to which byHandler gives this verdict
	upcall  = uint16(slot.Upcall)
)

// upcallsAlone makes upcalls of the messages for their handler and delivers the others.
var upcallsAlone = extensiontest.Message("upcallsalone",
	"ldxw r2, [r1+16]",
	"mov r0, 0",
	"jne r2, 4, +1",
	"mov r0, 4",
	"exit")

// insertEverywhere inserts an extension on all nodes.
func (j *testJob) insertEverywhere(p extensiontest.Program) {
	j.t.Helper()
	for _, n := range j.nodes {
		if _, err := n.job.config.Set.Insert(extension.Request{Object: extensiontest.Object(j.t, p)}); err != nil {
			j.t.Fatal(err)
		}
	}
}

// nudges takes the bytes that wait in a rank's alarm, and returns their number.
func (a *app) nudges() int {
	n, _, err := unix.Recvfrom(int(a.alarm.Fd()), make([]byte, 64), unix.MSG_DONTWAIT)
	if err != nil {
		return 0
	}
	return n
}

// postAll sends messages as soon as there is room.
func (a *app) postAll(n, target int, handler uint16, payload []byte) {
	a.t.Helper()
	for i := range n {
		check.Await(a.t, "room in the ring", func() bool { return a.post(target, handler, uint64(i), payload) })
	}
}

// Upcalls arrive in a ring of their own. An armed rank is nudged once for all upcalls that arrive
// before it arms again.
func TestUpcall(t *testing.T) {
	for name, target := range map[string]int{"on the same node": 1, "on another node": 2} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 2, 2)
			j.insertEverywhere(byHandler)
			a, b := j.join(0), j.join(target)
			for round := range 3 {
				if !b.upcalls.Wait() {
					t.Fatal("there is a message already")
				}
				for i := range 5 {
					a.post(target, upcall, uint64(i), []byte("upcall"))
					a.post(target, deliver, uint64(i), nil)
				}
				for i := range 5 {
					if r, ok := b.next(time.Minute); !ok || r.Args[0] != uint64(i) || r.Handler != deliver {
						t.Fatalf("message %d came as %v %+v", i, ok, r)
					}
					// It was sent before the one that has just arrived.
					r, ok := b.nextUpcall(0)
					if !ok || r.Args[0] != uint64(i) || r.Handler != upcall || string(r.Payload) != "upcall" || r.Peer != 0 || r.Node != 0 {
						t.Fatalf("upcall %d came as %v %+v", i, ok, r)
					}
				}
				if n := b.nudges(); n != 1 || b.area.Armed().Load() != 0 {
					t.Errorf("round %d: %d nudges, armed is %d", round, n, b.area.Armed().Load())
				}
			}
			j.noFault()
		})
	}
}

// A rank that has not armed is not nudged. A rank that sleeps in its library is woken by the bell.
func TestUpcallWhileMasked(t *testing.T) {
	j := open(t, 1, 2)
	j.insertEverywhere(byHandler)
	a, b := j.join(0), j.join(1)
	a.post(1, upcall, 1, nil)
	if _, ok := b.nextUpcall(time.Minute); !ok {
		t.Fatal("no upcall came")
	}
	if n := b.nudges(); n != 0 {
		t.Errorf("%d nudges while the rank is masked", n)
	}
	b.quiet()
	b.receive.Wait()
	a.post(1, upcall, 2, nil)
	if !b.awaitRing(10 * time.Second) {
		t.Error("a rank that sleeps is not woken")
	}
	if r, ok := b.nextUpcall(0); !ok || r.Args[0] != 2 {
		t.Errorf("woken by %v %+v", ok, r)
	}
	if n := b.nudges(); n != 0 {
		t.Errorf("%d nudges while the rank sleeps", n)
	}
	j.noFault()
}

// Upcalls overtake messages that wait for room, but no message overtakes upcalls that wait.
func TestUpcallsAndFullRings(t *testing.T) {
	payload := make([]byte, 1000)
	const ring = wire.RingSize / 1000 // more than it has room for
	t.Run("upcalls pass", func(t *testing.T) {
		j := open(t, 3, 1)
		j.insertEverywhere(byHandler)
		a, b, c := j.join(0), j.join(1), j.join(2)
		a.postAll(ring, 1, deliver, payload)
		check.Await(t, "messages that wait", func() bool { return j.waiting(1) > 0 })
		c.post(1, upcall, 0, nil)
		if r, ok := b.nextUpcall(time.Minute); !ok || r.Peer != 2 {
			t.Fatalf("behind a full ring came %v %+v", ok, r)
		}
		for i := range ring {
			if r, ok := b.next(time.Minute); !ok || r.Args[0] != uint64(i) {
				t.Fatalf("message %d came as %v %v", i, ok, r.Args)
			}
		}
		j.noFault()
	})
	t.Run("messages do not", func(t *testing.T) {
		j := open(t, 3, 1)
		j.insertEverywhere(byHandler)
		a, b, c := j.join(0), j.join(1), j.join(2)
		a.postAll(ring, 1, upcall, payload)
		const before = ring - wire.RingSize/1040 // do not fit with their headers
		check.Await(t, "upcalls that wait", func() bool { return j.waiting(1) == before })
		c.post(1, deliver, 0, nil)
		check.Await(t, "message", func() bool { return j.waiting(1) == before+1 })
		for _, x := range []*app{a, b, c} {
			x.enter()
		}
		check.Await(t, "release of rank 0", func() bool { return a.area.Released().Load() == 1 })
		for i, passed := 0, false; i < ring; i++ {
			released := b.area.Released().Load() != 0
			if _, ok := b.next(0); ok || released {
				passed = true
			}
			wait := 10 * time.Second
			if passed {
				wait = 0 // all are in the ring, where a rank looks first
			}
			if r, ok := b.nextUpcall(wait); !ok || r.Args[0] != uint64(i) {
				t.Fatalf("upcall %d came as %v %v, passed %v", i, ok, r.Args, passed)
			}
		}
		check.Await(t, "release of rank 1", func() bool { return b.area.Released().Load() == 1 })
		j.noFault()
	})
}

// A restarted node kernel nudges, since the previous one may have been about to. The messages are
// in the ring.
func TestUpcallAndRestart(t *testing.T) {
	j := open(t, 2, 1)
	j.insertEverywhere(byHandler)
	a, b := j.join(0), j.join(1)
	for i := range 10 {
		a.post(1, upcall, uint64(i), nil)
	}
	check.Await(t, "messages", func() bool { return j.received(1, 0) == 10 })
	j.restart(1)
	check.Await(t, "nudge", func() bool { return b.nudges() == 1 })
	for i := range 10 {
		if r, ok := b.nextUpcall(time.Minute); !ok || r.Args[0] != uint64(i) {
			t.Fatalf("upcall %d came as %v %+v", i, ok, r)
		}
	}
	b.upcalls.Wait()
	a.post(1, upcall, 10, nil)
	if r, ok := b.nextUpcall(time.Minute); !ok || r.Args[0] != 10 {
		t.Errorf("the upcall after that came as %v %+v", ok, r)
	}
	check.Await(t, "nudge", func() bool { return b.nudges() == 1 })
	j.noFault()
}

// Upcalls that wait for room survive the end of their node kernel by SIGKILL.
func TestUpcallsWaitAndRestart(t *testing.T) {
	j := open(t, 2, 1)
	j.insertEverywhere(byHandler)
	a := j.join(0)
	j.join(1)
	a.postAll(wire.RingSize/1000, 1, upcall, make([]byte, 1000))
	check.Await(t, "upcalls that wait", func() bool { return j.waiting(1) > 0 })
	j.restart(1)
	j.fault("messages for rank 1, which had no room for them, were lost")
}
