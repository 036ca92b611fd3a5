package message

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/record"
)

// byTotal returns the message's handler as its verdict, and faults for handler 9, if the message
// has 5000 bytes.
var byTotal = extensiontest.Message("bytotal",
	"ldxdw r2, [r1+1064]",
	"mov r0, 0",
	"jne r2, 5000, +3",
	"ldxw r0, [r1+16]",
	"jne r0, 9, +1",
	"ldxdw r0, [r1-8]",
	"exit")

// long returns a message of 5000 bytes, in pieces.
func long(target int, handler uint16, arg uint64) (pieces []wire.Record) {
	const total, limit = 5000, wire.MaxPayload
	whole := binary.LittleEndian.AppendUint64(nil, arg)
	whole = append(whole, make([]byte, 8)...)
	for i := range total {
		whole = append(whole, byte(i>>8+i))
	}
	for offset := 0; len(whole) > 0; {
		b := whole[:min(len(whole), limit)]
		pieces = append(pieces, wire.Record{
			Handler: wire.HandlerPiece, Peer: uint32(target), Payload: b,
			Args: [2]uint64{total | uint64(offset)<<32, uint64(target) | uint64(handler)<<32},
		})
		if whole = whole[len(b):]; offset == 0 {
			offset -= wire.PieceArgs
		}
		offset += len(b)
	}
	return pieces
}

// push puts records into the send ring.
func (a *app) push(records ...wire.Record) {
	a.t.Helper()
	for _, r := range records {
		check.Await(a.t, "room in the ring", func() bool {
			ok, _, err := a.send.Push(r)
			if err != nil {
				a.t.Fatal(err)
			}
			a.ring()
			return ok
		})
	}
}

// whole returns the next message, assembled if it has come in pieces.
func (a *app) whole(pieces *wire.Assembler) wire.Record {
	a.t.Helper()
	for {
		r, ok := a.next(time.Minute)
		if !ok {
			a.t.Fatal("no message")
		}
		if r.Handler != wire.HandlerPiece {
			return r
		}
		p, err := wire.ParsePiece(r.Args, r.Payload, 99)
		if err != nil {
			a.t.Fatal(err)
		}
		l, err := pieces.Arrive(r.Peer, &p)
		if err != nil {
			a.t.Fatal(err)
		}
		if l != nil {
			r.Handler, r.Args, r.Payload = l.Handler, l.Args, bytes.Clone(l.Payload)
			return r
		}
	}
}

// isLong checks a message that was sent as long.
func isLong(t *testing.T, r wire.Record, source int, handler uint16, arg uint64) {
	t.Helper()
	var pieces wire.Assembler
	for _, sent := range long(0, handler, arg) {
		p, err := wire.ParsePiece(sent.Args, sent.Payload, 1)
		if err != nil {
			t.Fatal(err)
		}
		if l, err := pieces.Arrive(0, &p); l != nil && !bytes.Equal(l.Payload, r.Payload) || err != nil {
			t.Fatalf("%d bytes are not as they were sent: %v", len(r.Payload), err)
		}
	}
	if int(r.Peer) != source || r.Handler != handler || r.Args != [2]uint64{arg} {
		t.Errorf("a message for handler %d of rank %d with %d came for %d of rank %d with %x", handler, source, arg, r.Handler, r.Peer, r.Args)
	}
}

// undecided checks that a node has no verdict about a long message.
func (j *testJob) undecided(node int) {
	j.t.Helper()
	in := &j.nodes[node].job.receiver
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.pieces) != 0 {
		j.t.Errorf("node%d remembers %v", node, in.pieces)
	}
}

// An extension sees a long message once, and decides about all of it. The message cannot interrupt,
// because only a whole one could. Abandoned messages change nothing.
func TestLongVerdicts(t *testing.T) {
	for name, target := range map[string]int{"on the same node": 1, "on another node": 2} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 2, 2)
			a, b := j.join(0), j.join(target)
			reply := b.insert(extensiontest.Object(t, byTotal))
			var pieces wire.Assembler
			runs := uint64(0)
			for i, v := range []slot.Verdict{slot.Deliver, slot.Consume, slot.Upcall, slot.Drop, 9, slot.Consume} {
				if i%2 == 0 {
					a.push(long(target, uint16(v), 77)[:2]...) // and the rest never follows
					runs++
				}
				a.push(long(target, uint16(v), uint64(i))...)
				a.post(target, 100, uint64(i), nil)
				runs += 2
				if v != slot.Consume && v != slot.Drop {
					isLong(t, b.whole(&pieces), 0, uint16(v), uint64(i))
				}
				if r := b.whole(&pieces); r.Handler != 100 || r.Args[0] != uint64(i) {
					t.Fatalf("after message %d came %+v", i, r)
				}
			}
			b.awaitRuns(reply.Handle, runs)
			stats, _ := b.ask(wire.Request{Op: wire.OpStats, Handle: reply.Handle}, nil)
			if stats.Values[0] != runs || stats.Values[2] != 2 {
				t.Errorf("%d runs, not %d, and %d faults", stats.Values[0], runs, stats.Values[2])
			}
			j.undecided(int(j.config.Nodes[target]))
			j.noFault()
		})
	}
}

// A long message is forwarded whole, once: an extension that would forward it again makes a fault.
func TestLongForward(t *testing.T) {
	for name, c := range map[string]struct{ first, second int }{"here, here": {1, 2}, "here, there": {1, 4}, "there, here": {3, 1}, "there, elsewhere": {3, 6}} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 3, 3)
			j.insertEverywhere(byArgument)
			a, b := j.join(0), j.join(c.second)
			var pieces wire.Assembler
			for i := range 20 {
				if i%5 == 0 {
					a.push(long(c.first, uint16(i), uint64(c.second))[:3]...) // and the rest never follows
				}
				a.push(long(c.first, uint16(i), uint64(c.second))...)
				a.push(long(c.second, uint16(100+i), uint64(c.second))...) // on another way
			}
			for forwarded, direct := 0, 0; forwarded+direct < 40; {
				r := b.whole(&pieces)
				if r.Handler < 100 {
					isLong(t, r, 0, uint16(forwarded), uint64(c.second))
					forwarded++
				} else {
					isLong(t, r, 0, uint16(100+direct), uint64(c.second))
					direct++
				}
			}
			j.nothingHeld()
			for node := range 3 {
				j.undecided(node)
			}
			j.noFault()
		})
	}
	t.Run("twice", func(t *testing.T) {
		j := open(t, 3, 1)
		j.insertEverywhere(aroundTo(3))
		a, b := j.join(0), j.join(2)
		a.push(long(1, 5, 0)...) // rank 2 is on the way to rank 0
		var pieces wire.Assembler
		isLong(t, b.whole(&pieces), 0, 5, 0)
		if l := j.nodes[2].manager.List(); len(l) != 1 || l[0].Stats.Faults != 1 {
			t.Errorf("%+v", l)
		}
	})
}

// A long message continues when a node kernel restarts in its middle. If the previous kernel was
// consuming it, the rest arrives without its beginning, and the rank ignores it.
func TestLongRestart(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	b.insert(extensiontest.Object(t, byTotal))
	var pieces wire.Assembler
	m := long(1, uint16(slot.Deliver), 7)
	a.push(m[:2]...)
	if !b.flushed(a) {
		t.Fatal("no barrier")
	}
	j.restart(0)
	j.restart(1)
	a.push(m[2:]...)
	isLong(t, b.whole(&pieces), 0, uint16(slot.Deliver), 7)

	m = long(1, uint16(slot.Consume), 7)
	a.push(m[:2]...)
	if !b.flushed(a) {
		t.Fatal("no barrier")
	}
	j.restart(1)
	a.push(m[2:]...)
	r, ok := b.next(time.Minute)
	p, err := wire.ParsePiece(r.Args, r.Payload, 2)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if l, err := pieces.Arrive(r.Peer, &p); l != nil || err != nil {
		t.Errorf("the rest of a message without its beginning: %v, %v", l, err)
	}
	j.noFault()
}

// The verdict about an abandoned message does not apply to the rest of a message whose beginning
// took a channel.
func TestLongFromChannel(t *testing.T) {
	j := open(t, 1, 2)
	a, b := j.join(0), j.join(1)
	b.insert(extensiontest.Object(t, byTotal))
	a.push(long(1, uint16(slot.Consume), 1)[:2]...)
	rest := long(1, uint16(slot.Consume), 2)[2]
	rest.Args[1] += 1 << 48 // it is the next message
	a.push(rest)
	if r, ok := b.next(time.Minute); !ok || r.Handler != wire.HandlerPiece || r.Args != rest.Args {
		t.Errorf("it comes as %+v", r)
	}
	j.undecided(0)
	j.noFault()
}

// flushed completes a barrier of two ranks, so that nothing is on its way.
func (a *app) flushed(other *app) bool {
	other.enter()
	return a.barrier(20 * time.Second)
}

// A long message is counted and recorded as one.
func TestLongRecorded(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	for _, n := range j.nodes {
		n.events.Follow(1)
		defer n.events.Leave(1)
	}
	var pieces wire.Assembler
	for i := range 3 {
		a.push(long(1, 5, uint64(i))...)
		isLong(t, b.whole(&pieces), 0, 5, uint64(i))
	}
	sent, arrived := j.recorded(0, record.Sent), j.recorded(1, record.Arrived)
	if len(sent) != 3 || len(arrived) != 3 {
		t.Fatalf("%d were sent, %d came", len(sent), len(arrived))
	}
	for i, e := range sent {
		if got := arrived[i]; e.Size != 5000 || got.Size != 5000 || e.Number != got.Number || e.Peer != 1 {
			t.Errorf("%+v came as %+v", e, got)
		}
	}
	s, _ := j.nodes[0].job.Counts(0)
	if _, c := j.nodes[1].job.Counts(1); s != 3 || c != 3 {
		t.Errorf("%d were sent, %d came", s, c)
	}
}

// Malformed pieces of messages end their own job.
func TestHostilePieces(t *testing.T) {
	for name, change := range map[string]func(r *wire.Record){
		"another's target": func(r *wire.Record) { r.Args[1] ^= 1 },
		"no such target":   func(r *wire.Record) { r.Args[1] |= 99 },
		"a length":         func(r *wire.Record) { r.Args[0] |= 1 << 31 },
		"an offset":        func(r *wire.Record) { r.Args[0] |= 1 << 63 },
		"a handler":        func(r *wire.Record) { r.Args[1] |= wire.MaxHandlers << 32 },
		"no data":          func(r *wire.Record) { r.Payload = nil },
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 1, 3)
			hostile, a, b := j.join(0), j.join(1), j.join(2)
			r := long(1, 5, 0)[0]
			change(&r)
			hostile.push(r)
			j.fault("rank 0 has sent rank 1 a message: part of a long message makes no sense")
			pass(t, a, b, 0, 10)
			j.undecided(0)
		})
	}
	t.Run("verdicts", func(t *testing.T) { // at most one verdict is kept for each two ranks
		j := open(t, 1, 2)
		a, b := j.join(0), j.join(1)
		b.insert(extensiontest.Object(t, byTotal))
		for range 100 {
			a.push(long(1, uint16(slot.Consume), 0)[0])
		}
		a.post(1, 100, 0, nil)
		b.next(time.Minute)
		in := &j.nodes[0].job.receiver
		in.mu.Lock()
		defer in.mu.Unlock()
		if want := (stream{source: 0, sent: 1, arrived: id.Rank(1)}); len(in.pieces) != 1 || in.pieces[want].verdict != slot.Consume {
			t.Errorf("it remembers %v", in.pieces)
		}
	})
}
