package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"margay/internal/check"
)

// letter is a long message of the model.
type letter struct {
	long    Long
	pieces  []Record // that have not arrived
	whole   bool     // its source has not given it up
	payload []byte
}

// letter returns a message in pieces, not all of them if its source gives it up.
func newLetter(random *rand.Rand, target uint32) *letter {
	l := &letter{whole: random.IntN(5) > 0, payload: make([]byte, MaxPayload+1+random.IntN(5*MaxPayload))}
	for i := range l.payload {
		l.payload[i] = byte(random.Uint32())
	}
	l.long = Long{Peer: target, Handler: uint16(random.IntN(MaxHandlers)), Args: [2]uint64{random.Uint64(), random.Uint64()}, Payload: l.payload}
	var first []byte
	for !l.long.Done() {
		limit := PieceArgs + 1 + random.IntN(2*MaxPayload)
		r, n := l.long.next(limit, &first)
		if len(r.Payload) > limit {
			panic("a piece is too long")
		}
		r.Payload = bytes.Clone(r.Payload)
		l.long.sent += n
		l.pieces = append(l.pieces, r)
	}
	if !l.whole {
		l.pieces = l.pieces[:random.IntN(len(l.pieces))]
	}
	return l
}

// Messages that several ranks send to a rank, and to others that forward them to it, arrive whole,
// whatever their pieces do to each other's order; those that were given up do not arrive, and take
// no memory for long.
func TestAssemblerModel(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	type way struct{ source, target uint32 }
	var a Assembler
	ways := make(map[way]*letter)
	arrived, givenUp := 0, 0
	for arrived < 300 {
		w := way{uint32(random.IntN(3)), uint32(random.IntN(2))}
		l := ways[w]
		if l == nil || len(l.pieces) == 0 {
			ways[w] = newLetter(random, w.target)
			continue
		}
		r := l.pieces[0]
		l.pieces = l.pieces[1:]
		p, err := ParsePiece(r.Args, r.Payload, 2)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := a.Arrive(w.source, &p)
		switch {
		case err != nil:
			t.Fatal(err)
		case (whole != nil) != (l.whole && len(l.pieces) == 0):
			t.Fatalf("a message is whole: %t; %d pieces are missing, it was given up: %t", whole != nil, len(l.pieces), !l.whole)
		case whole != nil:
			arrived++
			if whole.Handler != l.long.Handler || whole.Args != l.long.Args || whole.Peer != w.target || !bytes.Equal(whole.Payload, l.payload) {
				t.Fatalf("a message of %d bytes from rank %d arrives as %d bytes, handler %d", len(l.payload), w.source, len(whole.Payload), whole.Handler)
			}
		case len(l.pieces) == 0:
			givenUp++
		}
		if len(a.unfinished) > 6 || len(a.idle) > mostIdle {
			t.Fatalf("%d messages are unfinished, %d buffers idle", len(a.unfinished), len(a.idle))
		}
	}
	if givenUp == 0 {
		t.Error("no message was given up")
	}
}

// What does not continue a message is refused, or ignored if there is none, and changes nothing.
func TestAssemblerRefuses(t *testing.T) {
	args := func(total, offset, target, handler int) [2]uint64 {
		return [2]uint64{uint64(total) | uint64(offset)<<32, uint64(target) | uint64(handler)<<32}
	}
	var a Assembler
	take := func(args [2]uint64, size int) (*Long, error) {
		p, err := ParsePiece(args, make([]byte, size), 4)
		if err != nil {
			return nil, err
		}
		return a.Arrive(1, &p)
	}
	if _, err := take(args(2000, 0, 3, 7), PieceArgs+1000); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args [2]uint64
		size int
	}{
		"a gap":           {args(2000, 1001, 3, 7), 10},
		"an overlap":      {args(2000, 999, 3, 7), 10},
		"another length":  {args(2001, 1000, 3, 7), 10},
		"another handler": {args(2000, 1000, 3, 8), 10},
		"beyond the end":  {args(2000, 1000, 3, 7), 1001},
		"nothing":         {args(2000, 1000, 3, 7), 0},
		"only arguments":  {args(2000, 0, 3, 7), PieceArgs},
		"no arguments":    {args(2000, 0, 3, 7), PieceArgs - 1},
		"too short":       {args(MaxPayload, 0, 3, 7), PieceArgs + 10},
		"too long":        {args(MaxMessage+1, 0, 3, 7), PieceArgs + 10},
		"no such target":  {args(2000, 0, 4, 7), PieceArgs + 10},
		"no such handler": {args(2000, 0, 3, MaxHandlers), PieceArgs + 10},
		"a far offset":    {args(2000, 1<<32-1, 3, 7), 10},
	} {
		if l, err := take(c.args, c.size); l != nil || !errors.Is(err, ErrPiece) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
	if l, err := take(args(2000, 1000, 2, 7), 1000); l != nil || err != nil {
		t.Errorf("a piece to another rank: %v, %v", l, err)
	}
	other := args(2000, 1000, 3, 7)
	other[1] |= 1 << 48
	if l, err := take(other, 1000); l != nil || err != nil {
		t.Errorf("the rest of another message, whose beginning was stopped: %v, %v", l, err)
	}
	if l, err := take(args(2000, 1000, 3, 7), 1000); l == nil || err != nil {
		t.Errorf("the message is not whole: %v", err)
	}
	if l, err := take(args(2000, 1000, 3, 7), 1000); l != nil || err != nil {
		t.Errorf("its last piece again: %v, %v", l, err)
	}
}

// Any pieces leave an Assembler with as many messages as there are ways to it. Each message that it
// returns has the length that its pieces claim.
func FuzzAssembler(f *testing.F) {
	var l Long
	l.Payload = make([]byte, MaxPayload+500)
	var first, seed []byte
	for !l.Done() {
		r, n := l.next(800, &first)
		l.sent += n
		seed = append(seed, byte(r.Args[0]), byte(r.Args[0]>>8), byte(r.Args[0]>>32), byte(r.Args[0]>>40), byte(r.Args[1]), 0, byte(len(r.Payload)), byte(len(r.Payload)>>8))
	}
	f.Add(seed)
	f.Add([]byte("anything but a piece"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var a Assembler
		for ; len(b) >= 8; b = b[8:] {
			args := [2]uint64{uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<32 | uint64(b[3])<<40, uint64(b[4]&3) | uint64(b[5])<<32}
			p, err := ParsePiece(args, make([]byte, uint16(b[6])|uint16(b[7])<<8), 3)
			if err != nil {
				if !errors.Is(err, ErrPiece) {
					t.Fatal(err)
				}
				continue
			}
			if len(p.Data) == 0 || p.Offset+len(p.Data) > p.Total || p.Total > MaxMessage || p.Target > 2 {
				t.Fatalf("%+v was accepted", p)
			}
			if l, err := a.Arrive(uint32(b[4]>>7), &p); l != nil && (err != nil || len(l.Payload) != p.Total) {
				t.Fatalf("%d bytes, not %d: %v", len(l.Payload), p.Total, err)
			}
			if len(a.unfinished) > 6 {
				t.Fatalf("%d messages are unfinished", len(a.unfinished))
			}
		}
	})
}

// A long message waits for room, and for the one before it to the same rank; when that is given up,
// its target drops it.
func TestPushLong(t *testing.T) {
	a := area(t, 2)
	out, ring := NewOutlet(a, nil, Header{Size: 2}), a.SendConsumer()
	long := func(length int) *Long { return &Long{Peer: 1, Handler: 3, Payload: make([]byte, length)} }
	push := func(l *Long) (full bool) {
		t.Helper()
		for !full && !l.Done() {
			var wake int
			var err error
			if full, wake, err = out.PushLong(l); err != nil || wake != WakeNobody {
				t.Fatal(wake, err)
			}
		}
		return full
	}
	var assembler Assembler
	take := func() (whole []int) {
		t.Helper()
		for {
			r, ok, err := ring.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				ring.Release()
				return whole
			}
			p, err := ParsePiece(r.Args, r.Payload, 2)
			if err != nil {
				t.Fatal(err)
			}
			l, err := assembler.Arrive(0, &p)
			if err != nil {
				t.Fatal(err)
			}
			if l != nil {
				whole = append(whole, len(l.Payload))
			}
		}
	}
	first, second := long(MaxMessage), long(2000)
	if !push(first) || !out.WaitLong(first) {
		t.Fatal("the ring has room for 1 MiB")
	}
	take()
	if out.WaitLong(first) {
		t.Error("an empty ring has no room")
	}
	if !push(second) || !out.WaitLong(second) {
		t.Error("two messages to a rank are sent at a time")
	}
	for !first.Done() {
		push(first)
		if whole := take(); first.Done() != (len(whole) == 1 && whole[0] == MaxMessage) {
			t.Fatalf("%v are whole", whole)
		}
	}
	third := long(MaxMessage)
	if !push(third) {
		t.Fatal("the ring has room for 1 MiB")
	}
	take()
	out.GiveUp(second) // it is not being sent: no effect
	if !push(second) {
		t.Error("a message was given up for another")
	}
	out.GiveUp(third)
	if push(second) {
		t.Error("a message waits for one that was given up")
	}
	if first.number == second.number || second.number == third.number || third.number == first.number {
		t.Errorf("messages have the numbers %d, %d and %d", first.number, second.number, third.number)
	}
	if whole := take(); len(whole) != 1 || whole[0] != 2000 || len(assembler.unfinished) != 0 {
		t.Errorf("%v are whole, %d unfinished", whole, len(assembler.unfinished))
	}
}
