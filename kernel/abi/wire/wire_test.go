package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"margay/internal/check"
)

func area(t testing.TB, ranks int) *Area {
	t.Helper()
	nodes := make([]uint32, ranks)
	for i := range nodes {
		nodes[i] = uint32(i / 2)
	}
	mem := make([]byte, AreaSize(ranks)+8)
	mem = mem[:AreaSize(ranks)]
	a, err := NewArea(mem, Header{Job: 7, Rank: 1, Size: uint32(ranks), Node: 0, LocalRank: 1, LocalSize: 2, Nodes: uint32(ranks+1) / 2}, nodes)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAreaHeader(t *testing.T) {
	a := area(t, 5)
	_, h, err := OpenArea(a.mem)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Header{Job: 7, Rank: 1, Size: 5, Node: 0, LocalRank: 1, LocalSize: 2, Nodes: 3}); h != want {
		t.Errorf("header %+v, want %+v", h, want)
	}
	if a.NodeOf(4) != 2 {
		t.Errorf("rank 4 is on node %d", a.NodeOf(4))
	}
	binary.LittleEndian.PutUint32(a.mem[offSize:], 1<<31)
	if _, _, err := OpenArea(a.mem); err == nil {
		t.Error("an area with the wrong size was taken")
	}
}

// Records of all lengths pass through a ring many times its size, in order and whole.
func TestRingPassesEverything(t *testing.T) {
	seed := check.Seed(t)
	a := area(t, 2)
	p, c := a.SendProducer(), a.SendConsumer()
	const n = 20000
	var both sync.WaitGroup
	both.Go(func() {
		random := rand.New(rand.NewPCG(seed, 1))
		for i := 0; i < n; {
			r := Record{Handler: uint16(i), Peer: uint32(i), Args: [2]uint64{uint64(i), ^uint64(i)}, Payload: make([]byte, random.IntN(MaxPayload+1))}
			for j := range r.Payload {
				r.Payload[j] = byte(i + j)
			}
			for {
				ok, _, err := p.Push(r)
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					break
				}
			}
			i++
		}
	})
	random := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i < n; {
		r, ok, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			c.Release()
			continue
		}
		if int(r.Peer) != i || r.Args[1] != ^uint64(i) || len(r.Payload) != random.IntN(MaxPayload+1) {
			t.Fatalf("record %d came as %+v", i, r)
		}
		for j, b := range r.Payload {
			if b != byte(i+j) {
				t.Fatalf("record %d, byte %d is %d", i, j, b)
			}
		}
		if i++; i%7 == 0 {
			c.Release()
		}
	}
	both.Wait()
}

// A record that was read and put back is read again, also behind the pad at the ring's end, and its
// room stays taken.
func TestUnread(t *testing.T) {
	a := area(t, 2)
	p, c := a.SendProducer(), a.SendConsumer()
	for i := range 3 * RingSize / MaxPayload {
		if ok, _, err := p.Push(Record{Peer: uint32(i), Payload: make([]byte, MaxPayload)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		for range 2 {
			if r, ok, err := c.Next(); !ok || err != nil || int(r.Peer) != i {
				t.Fatalf("record %d came as %+v, %v, %v", i, r.Peer, ok, err)
			}
			c.Unread()
		}
		if head := c.head.Load(); c.Release() || c.head.Load() != head {
			t.Fatalf("record %d was put back and its room was given back", i)
		}
		if _, ok, err := c.Next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		c.Release()
	}
}

// A node kernel that is started again takes up a ring whose positions the rank has written over,
// wherever they are.
func TestDamagedPositions(t *testing.T) {
	a := area(t, 2)
	ring := a.ring(offReceiveControl, RingSize)
	for _, tail := range []uint64{1, 7, RingSize - 8, RingSize - 4, RingSize - 1, 1 << 63, 1<<64 - 1} {
		for _, used := range []uint64{0, 1, 8, RingSize, RingSize + 1} {
			ring.tail.Store(tail)
			ring.head.Store(tail - used)
			p := a.ReceiveProducer()
			for range 2 * RingSize / MaxPayload {
				if _, _, err := p.Push(Record{Payload: make([]byte, MaxPayload)}); err != nil && !errors.Is(err, ErrCorrupt) {
					t.Fatalf("tail %d, %d bytes used: %v", tail, used, err)
				}
				ring.head.Store(ring.tail.Load()) // as if all had been read
			}
		}
	}
}

func TestPushRefusesWhatDoesNotFit(t *testing.T) {
	a := area(t, 2)
	p, c := a.SendProducer(), a.SendConsumer()
	if _, _, err := p.Push(Record{Payload: make([]byte, MaxPayload+1)}); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long a payload: %v", err)
	}
	pushed := 0
	for {
		ok, _, err := p.Push(Record{Payload: make([]byte, MaxPayload)})
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		pushed++
	}
	if pushed != RingSize/recordLength(MaxPayload) {
		t.Errorf("%d records fit", pushed)
	}
	if !p.Wait(MaxPayload) {
		t.Error("the producer need not wait for a full ring")
	}
	for range 4 {
		if _, ok, err := c.Next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if !c.Release() {
		t.Error("nobody wakes the producer")
	}
	if p.Wait(MaxPayload) {
		t.Error("the producer would sleep although there is room")
	}
}

// Whatever a rank writes into its area, the node kernel reads records that make sense, or an error.
func FuzzConsumer(f *testing.F) {
	f.Add([]byte{48, 0, 0, 0, 1, 0}, uint64(48))
	f.Add([]byte{8, 0, 0, 0, 2, 0}, uint64(16))
	f.Add([]byte{}, uint64(1)<<63)
	f.Fuzz(func(t *testing.T, data []byte, tail uint64) {
		a := area(t, 2)
		p := a.SendProducer()
		copy(p.data, data)
		p.tail.Store(tail)
		c := a.SendConsumer()
		for range RingSize / 8 {
			r, ok, err := c.Next()
			if err != nil || !ok {
				return
			}
			if len(r.Payload) > MaxPayload {
				t.Fatalf("payload of %d bytes", len(r.Payload))
			}
			c.Release()
		}
	})
}

func TestProducerSurvivesNonsense(t *testing.T) {
	a := area(t, 2)
	p := a.ReceiveProducer()
	for _, head := range []uint64{1, RingSize, 1 << 63} {
		p.head.Store(head)
		if _, _, err := p.Push(Record{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("head %#x: %v", head, err)
		}
	}
}

func TestRequestRoundTrip(t *testing.T) {
	want := Request{Op: OpInsert, Call: 3, Handle: 4, Value: 5, Name: "name", Where: "message",
		Settings: []Setting{{SetConstant, "capacity", 6}, {SetEntries, "table", 7}}}
	b, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRequest(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v became %+v, %v", want, got, err)
	}
	if _, err := (Request{Name: string(make([]byte, MaxName))}).Encode(); err == nil {
		t.Error("too long a name was encoded")
	}
	reply := Reply{Call: 1, Status: StatusRefused, Handle: 2, Values: [8]uint64{7: 9}, Text: "because"}
	if again, err := DecodeReply(reply.Encode()); err != nil || again != reply {
		t.Fatalf("%+v became %+v, %v", reply, again, err)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	b, err := Request{Op: OpInsert, Name: "x", Settings: []Setting{{SetConstant, "y", 1}}}.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRequest(b)
		if err != nil {
			return
		}
		if again, err := r.Encode(); err == nil {
			if r2, err := DecodeRequest(again); err != nil || !reflect.DeepEqual(r, r2) {
				t.Fatalf("%+v became %+v, %v", r, r2, err)
			}
		}
	})
}

// A description of mirrored channels comes through a reply as it was, and no other reply is taken
// for one.
func TestMirrorValues(t *testing.T) {
	want := Mirror{Rank: 1<<32 - 1, Number: 2, PeerNumber: 1<<32 - 3, Key: 1<<64 - 4, PeerKey: 5, Address: 0x0a420100, Port: 1<<16 - 6, Largest: 9000, Windows: 1<<16 - 7}
	if got, ok := MirrorOf(want.Values()); !ok || got != want {
		t.Errorf("%+v became %+v", want, got)
	}
	for _, producer := range []uint64{0, 1} {
		if _, ok := MirrorOf([8]uint64{3, producer}); ok {
			t.Errorf("a channel with %d is mirrored", producer)
		}
	}
}

func BenchmarkRing(b *testing.B) {
	a := area(b, 2)
	p, c := a.SendProducer(), a.SendConsumer()
	r := Record{Payload: bytes.Repeat([]byte("x"), 16)}
	for b.Loop() {
		if ok, _, err := p.Push(r); !ok || err != nil {
			b.Fatal(ok, err)
		}
		if _, ok, err := c.Next(); !ok || err != nil {
			b.Fatal(ok, err)
		}
		c.Release()
	}
}
