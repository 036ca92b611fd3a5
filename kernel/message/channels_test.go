package message

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/rights"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension/extensiontest"
)

// neighbour is a rank that uses channels, as a library does.
type neighbour struct {
	*app
	out *wire.Outlet
	in  *wire.Inlet
}

func (j *testJob) neighbour(rank int) *neighbour {
	a := j.join(rank)
	return &neighbour{app: a, out: wire.NewOutlet(a.area, a.board, a.header), in: wire.NewInlet(a.area, a.board, a.header)}
}

// fetch fetches the channels that the rank does not have yet.
func (n *neighbour) fetch() {
	n.t.Helper()
	for {
		index, missing := n.in.Missing()
		if !missing {
			return
		}
		reply, files := n.ask(wire.Request{Op: wire.OpChannel, Value: uint64(index)}, nil)
		if reply.Status != wire.StatusOK || len(files) != 2 {
			n.t.Fatalf("channel %d: %+v, %d descriptors", index, reply, len(files))
		}
		mem, err := unix.Mmap(int(files[0].Fd()), 0, wire.ChannelSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		rights.Close(files)
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { unix.Munmap(mem) })
		c, err := wire.OpenChannel(mem)
		if err != nil {
			n.t.Fatal(err)
		}
		if reply.Values[1] == 1 {
			n.out.Open(c, int(reply.Values[0]), int(reply.Values[2]))
		} else {
			n.in.Open(c, uint32(reply.Values[0]), int(reply.Values[2]))
		}
		n.in.Fetched()
	}
}

// post sends a message and rings the node kernel if it must. It reports whether there was room.
func (n *neighbour) post(target int, handler uint16, arg uint64) bool {
	n.t.Helper()
	ok, wake, err := n.out.Push(&wire.Record{Handler: handler, Peer: uint32(target), Args: [2]uint64{arg}})
	if err != nil {
		n.t.Fatal(err)
	}
	if wake == wire.WakeKernel {
		n.ring()
	}
	return ok
}

// next returns the next message, if one comes in time.
func (n *neighbour) next(wait time.Duration) (wire.Record, bool) {
	n.t.Helper()
	for deadline := time.Now().Add(wait); ; {
		n.fetch()
		r, ok, err := n.in.Next()
		if err != nil && !errors.Is(err, wire.ErrChannels) {
			n.t.Fatal(err)
		}
		if ok {
			r.Payload = slices.Clone(r.Payload)
			if n.in.Done() == wire.WakeKernel {
				n.ring()
			}
			return r, true
		}
		if time.Now().After(deadline) {
			return r, false
		}
	}
}

// expect waits for the message with a number from a rank.
func (n *neighbour) expect(source int, number uint64) {
	n.t.Helper()
	if r, ok := n.next(time.Minute); !ok || r.Args[0] != number || int(r.Peer) != source {
		n.t.Fatalf("message %d of rank %d came as %+v, %v", number, source, r, ok)
	}
}

// speak sends a message from the first rank to the second, and has both fetch their channel.
func speak(a, b *neighbour) {
	a.t.Helper()
	a.post(int(b.header.Rank), 1, 0)
	b.expect(int(a.header.Rank), 0)
	a.fetch()
	check.Await(a.t, "settled message", a.out.Quiet)
}

// passed returns how many messages have passed the node kernel of a node.
func (j *testJob) passed(node int) uint64 {
	n := j.nodes[node].job
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counters.flow.Received[n.self]
}

// Messages between ranks of a node pass the node kernel until there is a channel, while there is an
// extension, and during a recording. They are handled in order across all changes of path, and a
// restarted node kernel continues with the channel.
func TestChannels(t *testing.T) {
	j := open(t, 1, 2)
	a, b := j.neighbour(0), j.neighbour(1)
	speak(a, b)
	number := uint64(0)
	exchange := func(what string, passes bool) {
		t.Helper()
		before, next := j.passed(0), number+1
		for range 500 {
			number++
			if !a.post(1, uint16(slot.Deliver), number) {
				t.Fatal("there is no room")
			}
			if number%3 > 0 {
				b.expect(0, next)
				next++
			}
		}
		for ; next <= number; next++ {
			b.expect(0, next)
		}
		check.Await(t, "settled messages", func() bool { return a.area.Settled().Load() >= a.send.Position() })
		if n := j.passed(0) - before; passes != (n > 0) {
			t.Errorf("%s: %d messages have passed the node kernel", what, n)
		}
	}
	exchange("alone", false)
	x := a.insert(extensiontest.Object(t, byHandler))
	exchange("with an extension", true)
	j.restart(0)
	exchange("with an extension that was adopted", true)
	if reply, _ := a.ask(wire.Request{Op: wire.OpRemove, Handle: x.Handle}, nil); reply.Status != wire.StatusOK {
		t.Fatalf("%+v", reply)
	}
	exchange("when it was removed", false)
	if _, err := j.nodes[0].events.Follow(1); err != nil {
		t.Fatal(err)
	}
	exchange("with a recording", true)
	j.nodes[0].events.Leave(1)
	exchange("when it has ended", false)
	j.restart(0)
	exchange("after a restart", false)
	sent, arrived := j.nodes[0].job.Counts(0)
	if _, here := j.nodes[0].job.Counts(1); sent < 1500 || arrived != 0 || here != sent {
		t.Errorf("rank 0 has sent %d messages and had %d, rank 1 has had %d", sent, arrived, here)
	}
	j.noFault()
}

// A message to a neighbour that has ended is a fault, as with any other rank. So is waiting for it
// on the board.
func TestNeighbourEnds(t *testing.T) {
	t.Run("message", func(t *testing.T) {
		j := open(t, 1, 2)
		a, b := j.neighbour(0), j.neighbour(1)
		speak(a, b)
		a.post(1, 1, 1)
		j.nodes[0].job.Ended(1)
		check.Await(t, "closed channel", func() bool { a.post(1, 1, 2); return !a.out.Quiet() || len(j.faults) > 0 })
		j.fault("rank 0 has sent a message to rank 1 on node0, which has ended")
	})
	t.Run("barrier", func(t *testing.T) {
		j := open(t, 1, 3)
		var apps []*neighbour
		for rank := range 3 {
			apps = append(apps, j.neighbour(rank))
		}
		for rank, a := range apps {
			a.board.Enter(rank, 1, a.out.Quiet())
		}
		if a := apps[0]; a.board.Arrived(0, 1) != 3 || !a.board.Quiet(1) {
			t.Error("the first barrier is not complete")
		}
		a := apps[0]
		a.board.Enter(0, 2, a.out.Quiet())
		a.area.ReceiveWaiting().Store(1)
		j.nodes[0].job.Ended(2)
		a.bell.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := a.bell.Read(make([]byte, 1)); err != nil {
			t.Errorf("a rank that waits for one that has ended is not woken: %v", err)
		}
		apps[1].board.Enter(1, 2, apps[1].out.Quiet())
		if a.board.Arrived(0, 2) != 3 || a.board.Quiet(2) {
			t.Error("a rank waits on the board for one that has ended")
		}
		a.enter()
		j.fault("rank 2 on node0 has ended, but rank 0 on node0 waits for it in a barrier")
	})
}

// Messages that wait for room or are being forwarded are not settled, and their sender is not
// quiet.
func TestUnsettled(t *testing.T) {
	j := open(t, 2, 2)
	a, b := j.neighbour(0), j.neighbour(1)
	speak(a, b)
	x := a.insert(extensiontest.Object(t, byArgument))
	if x.Status != wire.StatusOK {
		t.Fatalf("%+v", x)
	}
	way := j.net.hold(0, 1)
	a.post(1, 1, 2) // it is forwarded to rank 2
	<-way.waits
	if reply, _ := a.ask(wire.Request{Op: wire.OpRemove, Handle: x.Handle}, nil); reply.Status != wire.StatusOK {
		t.Fatalf("%+v", reply)
	}
	if a.out.Quiet() {
		t.Error("a rank is quiet whose message is being forwarded")
	}
	close(way.release)
	check.Await(t, "settled message", a.out.Quiet)
	j.noFault()
}

// Ranks that ask for other ranks' channels and doorbells, a thousand times, get none, and leave
// nothing behind.
func TestHostileFetches(t *testing.T) {
	j := open(t, 1, 2)
	a, b := j.neighbour(0), j.neighbour(1)
	speak(a, b)
	before := check.Descriptors(t)
	for i := range 1000 {
		value := []uint64{1, 2, 1 << 32, math.MaxUint64}[i%4]
		for _, op := range []wire.Op{wire.OpChannel, wire.OpDoorbell} {
			reply, files := a.ask(wire.Request{Op: op, Value: value}, nil)
			if fine := op == wire.OpDoorbell && value == 1; fine != (reply.Status == wire.StatusOK) || !fine && reply.Status != wire.StatusInvalid {
				t.Fatalf("%d of %d: %+v", op, value, reply)
			}
			rights.Close(files)
		}
	}
	if after := check.Descriptors(t); after != before {
		t.Errorf("%d descriptors, before there were %d", after, before)
	}
}

// No value that ranks write into board and doorbells harms another job, or makes the node kernel
// wait or fail.
func TestHostileBoard(t *testing.T) {
	j := open(t, 1, 2)
	a, b := j.neighbour(0), j.neighbour(1)
	speak(a, b)
	for rank := range 2 {
		for number := range uint64(2) {
			a.board.Enter(rank, math.MaxUint64>>2-number, false)
		}
		a.board.Asleep(rank).Store(math.MaxUint32)
	}
	full := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for _, bell := range [][]*os.File{a.bells, b.bells} {
		if err := unix.SetNonblock(int(bell[0].Fd()), false); err != nil { // the node kernel shares it
			t.Fatal(err)
		}
		if _, err := bell[0].Write(full[:]); err != nil {
			t.Fatal(err)
		}
	}
	j.nodes[0].job.Ended(1)
	a.post(1, 1, 1)
	j.restart(0)
	j.nodes[0].job.Ended(1)
	check.Await(t, "fault", func() bool { a.post(1, 1, 2); return len(j.faults) > 0 })
	j.fault("which has ended")
}

// Leaders of more than two nodes that share CPUs are to meet along the tree.
func TestStrewnPath(t *testing.T) {
	for nodes, want := range map[int]uint32{2: 0, 3: wire.PathStrewn} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			j := openWith(t, nodes, 1, JobConfig{Job: 7, Secret: []byte("12345678"), Crowd: Strewn})
			if path := j.join(0).area.Path().Load(); path != wire.PathDirect|wire.PathFar|wire.PathMeet|want {
				t.Errorf("path %b", path)
			}
		})
	}
}

// While a job's scheduler wants to be notified of messages, they pass the node kernel, and the
// job's ranks do not spin.
func TestScheduledPath(t *testing.T) {
	wanted := true
	j := openWith(t, 1, 2, JobConfig{
		Job: 7, Secret: []byte("12345678"), Arrived: func(id.Rank, uint32) {}, Scheduled: func() bool { return wanted }, Crowd: Together,
	})
	a := j.join(0)
	if path := a.area.Path().Load(); path != wire.PathMeet {
		t.Errorf("path %b", path)
	}
	wanted = false
	j.nodes[0].engine.Repath()
	if path := a.area.Path().Load(); path != wire.PathDirect|wire.PathFar|wire.PathYield|wire.PathMeet { // ranks that share a CPU do not spin
		t.Errorf("path %b", path)
	}
}
