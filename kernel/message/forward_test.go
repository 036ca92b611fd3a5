package message

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
)

// byArgument forwards a message to the rank in its first argument, unless it is there already.
var byArgument = extensiontest.Message("byargument",
	"ldxdw r2, [r1+24]",
	"ldxw r3, [r1+12]",
	"mov r0, 0",
	"jeq r2, r3, +2",
	"stxw [r1+12], r2",
	"mov r0, 3",
	"exit")

// scribble overwrites all of a message, and forwards messages from rank 1 to rank 2.
var scribble = extensiontest.Message("scribble",
	"ldxw r3, [r1+12]",
	"mov r2, 1",
	"stxdw [r1+0], r2",
	"stxdw [r1+8], r2",
	"stxdw [r1+16], r2",
	"stxdw [r1+24], r2",
	"stxdw [r1+32], r2",
	"stxdw [r1+40], r2",
	"mov r0, 0",
	"jne r3, 1, +3",
	"mov r2, 2",
	"stxw [r1+12], r2",
	"mov r0, 3",
	"exit")

// A message arrives as it was sent, forwarded or delivered, whatever an extension writes.
func TestForwardedUnchanged(t *testing.T) {
	j := open(t, 3, 1)
	j.insertEverywhere(scribble)
	a, _, c := j.join(0), j.join(1), j.join(2)
	for _, target := range []int{1, 2} {
		a.post(target, 9, 7, []byte("as it was sent"))
		r, ok := c.next(time.Minute)
		if !ok || r.Peer != 0 || r.Node != 0 || r.Handler != 9 || r.Args[0] != 7 || string(r.Payload) != "as it was sent" {
			t.Errorf("sent to rank %d it came as %+v", target, r)
		}
	}
}

// aroundTo forwards a message to the next of the ranks, until it reaches the rank in its first
// argument.
func aroundTo(ranks int) extensiontest.Program {
	return extensiontest.Message("around",
		"ldxdw r2, [r1+24]",
		"ldxw r3, [r1+12]",
		"mov r0, 0",
		"jeq r2, r3, +5",
		"add r3, 1",
		fmt.Sprintf("jlt r3, %d, +1", ranks),
		"mov r3, 0",
		"stxw [r1+12], r3",
		"mov r0, 3",
		"exit")
}

// numbered is a payload that begins with a number.
func numbered(n uint64, size int) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 0, size), n)[:size:size]
}

// Forwarded messages reach their new target with their true source, in order, and restore the full
// width of all windows.
func TestForward(t *testing.T) {
	for name, c := range map[string]struct{ first, last int }{
		"here, here": {1, 0}, "here, there": {1, 2}, "there, here": {2, 1}, "there, there": {2, 3}, "there, elsewhere": {2, 4},
		"there, back": {2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 3, 2)
			j.insertEverywhere(byArgument)
			a, b := j.join(0), j.join(c.last)
			const n = 2000 // several windows
			var sender sync.WaitGroup
			sender.Go(func() {
				for i := range uint64(n) {
					check.Await(t, "room in the ring", func() bool { return a.post(c.first, 9, uint64(c.last), numbered(i, 1000)) })
				}
			})
			for i := range uint64(n) {
				r, ok := b.next(time.Minute)
				if !ok || r.Peer != 0 || r.Node != 0 || r.Handler != 9 || binary.LittleEndian.Uint64(r.Payload) != i || len(r.Payload) != 1000 {
					t.Fatalf("message %d came as %v from rank %d", i, ok, r.Peer)
				}
			}
			sender.Wait()
			j.nothingHeld()
			j.noFault()
		})
	}
}

// nothingHeld waits until no room is taken for messages that are being forwarded.
func (j *testJob) nothingHeld() {
	j.t.Helper()
	for i, n := range j.nodes {
		check.Await(j.t, fmt.Sprintf("end of the forwards of node%d", i), func() bool {
			n.job.mu.Lock()
			defer n.job.mu.Unlock()
			return !n.job.flow.Forwards()
		})
	}
}

// All ranks send messages through all others, more than there is room for, without a deadlock.
func TestForwardAround(t *testing.T) {
	const ranks, each = 5, 1500
	for name, nodes := range map[string]int{"one node": 1, "a node each": ranks} {
		t.Run(name, func(t *testing.T) {
			j := open(t, nodes, ranks/nodes)
			j.insertEverywhere(aroundTo(ranks))
			var apps []*app
			for rank := range ranks {
				apps = append(apps, j.join(rank))
			}
			var all sync.WaitGroup
			for rank, a := range apps {
				all.Go(func() { // each sends to the next, for the one before it
					for i := range uint64(each) {
						check.Await(t, "room in the ring", func() bool { return a.post((rank+1)%ranks, 1, uint64(rank+ranks-1)%ranks, numbered(i, 1000)) })
					}
				})
			}
			time.Sleep(200 * time.Millisecond) // they fill all the room there is
			for rank, a := range apps {
				all.Go(func() {
					for i := range uint64(each) {
						r, ok := a.next(time.Minute)
						if !ok || int(r.Peer) != (rank+1)%ranks || binary.LittleEndian.Uint64(r.Payload) != i {
							t.Errorf("rank %d: message %d came as %v from rank %d", rank, i, ok, r.Peer)
							return
						}
					}
				})
			}
			all.Wait()
			j.nothingHeld()
			j.noFault()
		})
	}
}

// A message to a rank that it must not be forwarded to, or no longer, stays where it is, and counts
// as a fault of the extension.
func TestForwardFaults(t *testing.T) {
	for name, c := range map[string]struct {
		program extensiontest.Program
		arg     uint64
		at      int
		faults  int
	}{
		"no such rank":    {byArgument, 10, 1, 1},
		"a far rank":      {byArgument, 1<<32 - 1, 1, 1},
		"where it is":     {extensiontest.Answer("same", "3"), 0, 1, 1},
		"too many times":  {aroundTo(10), 0, 1 + slot.MaxHops, 1},
		"as often as can": {aroundTo(10), 1 + slot.MaxHops, 1 + slot.MaxHops, 0},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 5, 2)
			j.insertEverywhere(c.program)
			a, b := j.join(0), j.join(c.at)
			a.post(1, 1, c.arg, []byte("x"))
			if r, ok := b.next(time.Minute); !ok || r.Peer != 0 || string(r.Payload) != "x" {
				t.Fatalf("it came as %v %+v", ok, r)
			}
			stats := j.nodes[c.at/2].manager.List()[0].Stats
			if c.faults != int(stats.Faults) {
				t.Errorf("%d faults, not %d", stats.Faults, c.faults)
			}
			j.nothingHeld()
			j.noFault()
		})
	}
}

// A rank that does not read blocks the messages forwarded to it, and the messages that its senders'
// nodes send to the forwarding rank, and nothing else.
func TestForwardToDeaf(t *testing.T) {
	j := open(t, 3, 2)
	j.insertEverywhere(byArgument)
	var apps []*app
	for rank := range 6 {
		apps = append(apps, j.join(rank))
	}
	const first, deaf = 2, 5
	posted := 0
	for quiet := time.Now(); time.Since(quiet) < 200*time.Millisecond; {
		if apps[0].post(first, 1, deaf, numbered(uint64(posted), 1000)) {
			posted++
			quiet = time.Now()
		} else {
			time.Sleep(time.Millisecond)
		}
		if posted > 3000 {
			t.Fatal("messages are forwarded without end to a rank that does not read")
		}
	}
	for _, pair := range [][2]int{{1, 3}, {1, 4}, {4, 2}, {3, 2}, {2, 0}, {2, 4}, {3, 4}} {
		from, to := apps[pair[0]], apps[pair[1]]
		for i := range uint64(300) {
			check.Await(t, "room in the ring", func() bool { return from.post(pair[1], 1, uint64(pair[1]), numbered(i, 1000)) })
			if r, ok := to.next(time.Minute); !ok || binary.LittleEndian.Uint64(r.Payload) != i {
				t.Fatalf("from rank %d to rank %d: message %d came as %v", pair[0], pair[1], i, ok)
			}
		}
	}
	for i := range uint64(posted) {
		if r, ok := apps[deaf].next(time.Minute); !ok || binary.LittleEndian.Uint64(r.Payload) != i {
			t.Fatalf("message %d came as %v", i, ok)
		}
	}
	j.nothingHeld()
	j.noFault()
}

// A barrier completes only after earlier messages have reached the ranks that they were forwarded
// to.
func TestBarrierAwaitsForwards(t *testing.T) {
	for name, c := range map[string]struct {
		first, last int
		held        [2]id.Node // the way on which they are held
	}{
		"one hop":           {1, 2, [2]id.Node{1, 2}},
		"from its own node": {0, 2, [2]id.Node{0, 2}},
		"the last of three": {1, 4, [2]id.Node{3, 4}},
		"back":              {4, 0, [2]id.Node{4, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 5, 1)
			if name == "from its own node" {
				j.insertEverywhere(byArgument)
			} else {
				j.insertEverywhere(aroundTo(5))
			}
			var apps []*app
			for rank := range 5 {
				apps = append(apps, j.join(rank))
			}
			way := j.net.hold(c.held[0], c.held[1])
			for range 3 {
				if !apps[0].post(c.first, 1, uint64(c.last), nil) {
					t.Fatal("no room for a message")
				}
			}
			for _, a := range apps {
				a.enter()
			}
			<-way.waits
			j.holdsBarrier(apps, way)
			for range 3 {
				if r, ok := apps[c.last].next(0); !ok || r.Peer != 0 {
					t.Errorf("rank %d is out of the barrier with message %+v, %v", c.last, r, ok)
				}
			}
			j.noFault()
		})
	}
}

// Killing a node kernel with messages being forwarded ends the job. Without such messages, the job
// continues.
func TestForwardAndRestart(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		j := open(t, 3, 1)
		j.insertEverywhere(byArgument)
		a, b := j.join(0), j.join(2)
		j.join(1) // a rank that does not join ends the job after a minute, which a busy host may need
		for round := range 3 {
			for i := range uint64(150) {
				check.Await(t, "room in the ring", func() bool { return a.post(1, 1, 2, numbered(i, 1000)) })
				if r, ok := b.next(2 * time.Minute); !ok || binary.LittleEndian.Uint64(r.Payload) != i {
					t.Fatalf("round %d: message %d came as %v", round, i, ok)
				}
			}
			j.nothingHeld()
			j.restart(round)
		}
		j.noFault()
	})
	t.Run("one", func(t *testing.T) {
		j := open(t, 3, 1)
		j.insertEverywhere(byArgument)
		a := j.join(0)
		way := j.net.hold(1, 2)
		a.post(1, 1, 2, nil)
		<-way.waits
		j.restart(1)
		close(way.release)
		j.fault("messages in forwarding (1) were lost when the node kernel of node1 was started again")
	})
}

// A message that is lost while being forwarded is missed.
func TestForwardLost(t *testing.T) {
	j := open(t, 3, 1)
	j.insertEverywhere(byArgument)
	a := j.join(0)
	j.lose(1, 2, true)
	a.post(1, 1, 2, nil)
	check.Await(t, "forward", func() bool {
		job := j.nodes[1].job
		job.sending.Lock()
		defer job.sending.Unlock()
		return job.counters.flow.Sent[2] == 1
	})
	j.lose(1, 2, false)
	j.fault("messages between node1 and node2 were lost")
}

// Forwarding a message to a rank that has ended is a fault, like sending it there.
func TestForwardToEnded(t *testing.T) {
	j := open(t, 3, 1)
	j.insertEverywhere(byArgument)
	a := j.join(0)
	j.join(2)
	j.nodes[2].job.Ended(2)
	check.Await(t, "end", func() bool {
		return j.nodes[2].job.local[2].endpoint.Left()
	})
	a.post(1, 1, 2, nil)
	j.fault("rank 0 has sent a message to rank 2 on node2, which has ended")
}
