package ranktest

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// together is the place of the rank of a job with one node, whose other rank is a neighbour.
var together = wire.Header{Job: 7, Rank: 1, Size: 2, Node: 2, LocalRank: 1, LocalSize: 2, Nodes: 1}

// neighbour is the other rank of the job, played by the test.
type neighbour struct {
	partner
	files  [2]*os.File // of the channels to it and from it
	memory [2][]byte
}

// startNeighbours starts the program with a mode, as a rank that has a neighbour. The rank waits
// for Greet. The seed determines what the neighbour does at random.
func startNeighbours(t *testing.T, seed uint64, program func(ctx context.Context, mode ...string) *exec.Cmd, mode ...string) *neighbour {
	t.Helper()
	k := start(t, together, []uint32{2, 2}, program, mode...)
	other := together
	other.Rank, other.LocalRank = 0, 0
	n := &neighbour{partner: newPartner(k, other, []uint32{2, 2}, rand.New(rand.NewPCG(seed, 1)))}
	for i := range n.files {
		n.files[i], n.memory[i] = mapped(t, "channel", wire.ChannelSize)
	}
	n.in.Open(n.channel(0), 1, 1)
	n.out.Open(n.channel(1), 1, 1)
	return n
}

func (n *neighbour) channel(i int) *wire.Channel {
	n.t.Helper()
	c, err := wire.OpenChannel(n.memory[i])
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// connect greets the rank and has it fetch both channels.
func (n *neighbour) connect() {
	n.t.Helper()
	n.Greet()
	n.area.Channels().Store(2)
	n.ring()
	for i := range uint64(2) {
		q, _ := n.expect(wire.OpChannel)
		if q.Value != i {
			n.t.Errorf("the rank asks for channel %d, not for %d", q.Value, i)
		}
		n.answer(q, wire.Reply{Values: [8]uint64{0, 1 - i, 0}}, n.files[i], n.bells[0])
	}
}

// wake wakes the rank if an outlet or an inlet names it.
func (n *neighbour) wake(whom int) {
	if whom == 1 {
		if _, err := n.bells[1].Write(binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
			n.t.Errorf("doorbell: %v", err)
		}
	}
}

// carry plays the node kernel, which takes messages from one rank and gives them to the other, and
// says a while later that they are settled.
func (n *neighbour) carry() {
	n.t.Helper()
	n.area.Settled().Store(n.send.Position())
	n.own.Settled().Store(n.sent.Position())
	for range n.random.IntN(8) {
		if r, ok := n.Next(); ok {
			n.carries(1, &r)
			r.Peer, r.Node = 1, 2
			if ok, _, err := n.received.Push(r); !ok || err != nil {
				n.t.Fatal(ok, err)
			}
		}
	}
	for range n.random.IntN(8) {
		r, ok, err := n.sent.Next()
		if err != nil {
			n.t.Fatal(err)
		}
		if ok {
			r.Peer, r.Node = 0, 2
			if !n.Push(r) {
				n.sent.Unread()
				return
			}
			n.carries(0, &r)
			n.sent.Release()
		}
	}
}

// pass sends the rank a message and reports whether there was room.
func (n *neighbour) pass(r wire.Record) bool {
	n.t.Helper()
	r.Peer = 1
	ok, wake := n.push(r)
	n.wake(wake)
	return ok
}

// take returns the next message of the rank, if there is one.
func (n *neighbour) take() (wire.Record, bool) {
	n.t.Helper()
	r, wake, ok := n.next()
	n.wake(wake)
	return r, ok
}

// neighbours: messages between two ranks of a node are whole and in order while they change their
// path, and while both sides sleep and wait for room; and the ranks meet on the board.
func neighbours(t *testing.T, seed uint64, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	n := startNeighbours(t, seed, program, "echo")
	n.setPath(wire.PathDirect | wire.PathFar | wire.PathMeet)
	n.connect()
	c := talk{t: t, pass: n.pass, take: n.take}
	for range 200 { // the rank sleeps
		n.Await("sleep", func() bool { return n.board.Asleep(1).Load() != 0 })
		c.send()
		n.Await("echo", c.receive)
	}
	last := check.Rounds(longEach*(len(longSizes)+1), 20000)
	n.Await("echo", func() bool {
		for range 300 {
			switch n.random.IntN(16) {
			case 0:
				n.carry()
			case 1:
				if n.random.IntN(20) == 0 {
					n.setPath(uint32(n.random.IntN(16)))
				}
			case 2, 3, 4, 5, 6: // less than has come, so that channels are full at times
				c.receive()
			default:
				if c.sent < last {
					c.send()
				}
			}
		}
		return c.got == last
	})
	n.setPath(wire.PathDirect | wire.PathFar | wire.PathMeet)
	n.Await("settled messages", func() bool { n.carry(); return n.out.Quiet() && n.area.Settled().Load() == n.send.Position() })
	if n.channel(0).Count().Load() == 0 || n.channel(1).Count().Load() == 0 {
		t.Error("no message has taken a channel")
	}
	n.pass(wire.Record{Handler: 3})
	n.meets()
}

// meets: the rank leaves a barrier that all ranks enter quietly without the node kernel, and enters
// one of the node kernel when one does not.
func (n *neighbour) meets() {
	n.t.Helper()
	n.Await("barrier on the board", func() bool { return n.board.Arrived(1, 1) == 2 })
	n.Await("sleep", func() bool { return n.board.Asleep(1).Load() != 0 })
	n.board.Enter(0, 1, true)
	if n.board.Claim(1) {
		n.wake(1)
	}
	n.Await("second barrier on the board", func() bool { return n.board.Arrived(1, 2) == 2 })
	if n.area.Entered().Load() != 0 {
		n.t.Error("it has entered a barrier of the node kernel")
	}
	n.board.Enter(0, 2, false)
	if n.board.Claim(1) {
		n.wake(1)
	}
	n.Barrier(1)
	n.Ended(0)
}

// lastToMeet: a rank that is the last to enter a barrier wakes those that sleep, also one that it
// has never spoken with.
func lastToMeet(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	n := startNeighbours(t, 0, program, "await", "0")
	n.setPath(wire.PathDirect | wire.PathFar | wire.PathMeet)
	n.board.Asleep(0).Store(1)
	n.board.Enter(0, 1, true)
	n.board.Enter(0, 2, true)
	n.Greet()
	q, _ := n.expect(wire.OpDoorbell)
	if q.Value != 0 {
		t.Errorf("it asks for doorbell %d", q.Value)
	}
	n.answer(q, wire.Reply{}, n.bells[0])
	var count [8]byte
	n.Await("doorbell", func() bool { r, err := n.bells[0].Read(count[:]); return r == 8 && err == nil })
	if n.board.Asleep(0).Load() != 0 {
		t.Error("it has woken a rank and will wake it again")
	}
	n.Ended(0)
}

// closedChannel: messages to a rank that has ended go to the node kernel, behind those in the
// channel.
func closedChannel(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	n := startNeighbours(t, 0, program, "echo")
	n.setPath(wire.PathDirect | wire.PathFar | wire.PathMeet)
	n.connect()
	n.pass(wire.Record{Handler: 1, Args: [2]uint64{1}})
	n.Await("message", func() bool { _, ok := n.take(); return ok })
	n.channel(0).Closed().Store(1)
	n.pass(wire.Record{Handler: 1, Args: [2]uint64{2}})
	var r wire.Record
	n.Await("message by the node kernel", func() (ok bool) { r, ok = n.Next(); return ok })
	if r.Args != [2]uint64{2, 1} || r.Peer != 0 || r.After == 0 {
		t.Errorf("it is %+v", r)
	}
}

// garbage: a rank whose neighbour writes nonsense into a channel says so and ends, and neither
// reads nor writes beyond it.
func garbage(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	head := func(kind, size uint64) uint64 { return 1<<48 | kind<<32 | size }
	for name, damage := range map[string]func(n *neighbour){
		"kind":        func(n *neighbour) { n.write(1, 4096, head(9, 8)) },
		"size":        func(n *neighbour) { n.write(1, 4096, head(1, 1<<31)) },
		"all ones":    func(n *neighbour) { n.write(1, 4096, 1<<64-1) },
		"pad forever": func(n *neighbour) { n.write(1, 4096, head(2, 0)) },
		"taken":       func(n *neighbour) { n.write(0, 128, 1<<63); n.flood() },
	} {
		t.Run(name, func(t *testing.T) {
			n := startNeighbours(t, 0, program, "echo")
			n.t = t
			n.setPath(wire.PathDirect | wire.PathFar | wire.PathMeet)
			n.connect()
			damage(n)
			n.ring()
			n.wake(1)
			_ = n.wait()
			if says := n.errors.String(); n.cmd.ProcessState.Success() || !strings.Contains(says, "channel ") || !strings.Contains(says, "written over") {
				t.Errorf("it ended with %v and says %s", n.cmd.ProcessState, says)
			}
		})
	}
}

// write writes over a number in a channel.
func (n *neighbour) write(channel, at int, v uint64) {
	binary.LittleEndian.PutUint64(n.memory[channel][at:], v)
}

// flood sends the rank more than its channel back has room for.
func (n *neighbour) flood() {
	sent := 0
	n.Await("room", func() bool {
		for sent < wire.ChannelRing/wire.MaxPayload+8 && n.pass(wire.Record{Handler: 1, Payload: make([]byte, wire.MaxPayload)}) {
			sent++
		}
		return sent == wire.ChannelRing/wire.MaxPayload+8
	})
}
