package wire

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"margay/internal/check"
)

func channel(t testing.TB) *Channel {
	t.Helper()
	c, err := OpenChannel(make([]byte, ChannelSize))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestShapes(t *testing.T) {
	if _, err := OpenChannel(make([]byte, ChannelSize-1)); err == nil {
		t.Error("a channel of the wrong size was taken")
	}
	for _, local := range []int{0, -1, 2} {
		if _, err := OpenBoard(make([]byte, BoardSize(33)), local); err == nil {
			t.Errorf("a board for 33 ranks was taken for %d", local)
		}
	}
}

// Messages of all lengths pass through a channel many times its size, in order and whole.
func TestChannelPassesEverything(t *testing.T) {
	seed := check.Seed(t)
	c := channel(t)
	const n = 20000
	var both sync.WaitGroup
	both.Go(func() {
		random := rand.New(rand.NewPCG(seed, 1))
		p := c.Producer()
		for i := range n {
			r := Record{Handler: uint16(i), Args: [2]uint64{uint64(i), ^uint64(i)}, Payload: make([]byte, random.IntN(MaxPayload+1))}
			for j := range r.Payload {
				r.Payload[j] = byte(i + j)
			}
			for {
				ok, err := p.Push(&r)
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					break
				}
				runtime.Gosched()
			}
		}
	})
	random := rand.New(rand.NewPCG(seed, 1))
	consumer := c.Consumer()
	for i := 0; i < n; {
		r, ok, err := consumer.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			runtime.Gosched()
			continue
		}
		if r.Handler != uint16(i) || r.Args != [2]uint64{uint64(i), ^uint64(i)} || len(r.Payload) != random.IntN(MaxPayload+1) {
			t.Fatalf("message %d came as %+v", i, r)
		}
		for j, b := range r.Payload {
			if b != byte(i+j) {
				t.Fatalf("message %d, byte %d is %d", i, j, b)
			}
		}
		consumer.Done()
		i++
	}
	both.Wait()
	if c.Count().Load() != n {
		t.Errorf("%d messages are counted", c.Count().Load())
	}
}

// A full channel takes nothing until its consumer has made room. Then a producer that waits is
// woken.
func TestFullChannel(t *testing.T) {
	c := channel(t)
	p, consumer := c.Producer(), c.Consumer()
	if _, err := p.Push(&Record{Payload: make([]byte, ChannelPayload+1)}); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long a payload: %v", err)
	}
	if p.Wait(MaxPayload) {
		t.Error("the producer must wait for an empty channel")
	}
	pushed := 0
	for ok := true; ok; pushed++ {
		var err error
		if ok, err = p.Push(&Record{Payload: make([]byte, MaxPayload)}); err != nil {
			t.Fatal(err)
		}
	}
	if pushed--; pushed != (ChannelRing-8)/channelLength(MaxPayload) {
		t.Errorf("%d messages fit", pushed)
	}
	if !p.Wait(MaxPayload) {
		t.Error("the producer need not wait for a full channel")
	}
	woken := 0
	for range pushed {
		if _, ok, err := consumer.Next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if consumer.Done() {
			woken++
		}
	}
	if woken != 1 {
		t.Errorf("the producer was to be woken %d times", woken)
	}
	if ok, err := p.Push(&Record{}); !ok || err != nil {
		t.Error(ok, err)
	}
}

// A producer whose consumer writes nonsense writes within the channel, or not at all.
func TestProducerOfHostileConsumer(t *testing.T) {
	for _, taken := range []uint64{1, 8, ChannelRing, 1 << 63, 1<<64 - 1, 1<<64 - ChannelRing} {
		c := channel(t)
		p := c.Producer()
		p.taken.Store(taken)
		var err error
		for i := 0; i < 3*ChannelRing/MaxPayload && err == nil; i++ {
			_, err = p.Push(&Record{Payload: make([]byte, MaxPayload)})
		}
		if taken > p.position && !errors.Is(err, ErrCorrupt) {
			t.Errorf("taken %#x: %v", taken, err)
		}
		p.Wait(MaxPayload)
	}
}

// Whatever a producer writes, the consumer reads messages that make sense, or an error, and comes
// to an end.
func FuzzChannelConsumer(f *testing.F) {
	head := binary.LittleEndian.AppendUint64(nil, newHead(kindMessage, 7, 100))
	f.Add(head, uint32(0))
	f.Add(binary.LittleEndian.AppendUint64(nil, newHead(kindPad, 0, 0)), uint32(0))
	f.Add(binary.LittleEndian.AppendUint64(head, newHead(kindMessage, 7, 1<<31)), uint32(ChannelRing-8))
	f.Fuzz(func(t *testing.T, data []byte, at uint32) {
		c := channel(t)
		consumer := c.Consumer()
		at &= channelMask &^ 7
		copy(consumer.data[at:], data)
		consumer.position = uint64(at)
		for range 2*ChannelRing/ChannelHeader + 1 {
			r, ok, err := consumer.Next()
			if err != nil || !ok {
				return
			}
			if len(r.Payload) > ChannelPayload {
				t.Fatalf("payload of %d bytes", len(r.Payload))
			}
			consumer.Done()
			if consumer.position > 4*ChannelRing {
				return
			}
		}
		t.Fatal("the consumer finds more messages than fit")
	})
}

// neighbours are two ranks of a node; the second sends to the first.
func neighbours(t *testing.T) (in *Inlet, to, from *Area, c *Channel, b *Board) {
	t.Helper()
	var areas [2]*Area
	for i := range areas {
		var err error
		if areas[i], err = NewArea(make([]byte, AreaSize(2)), Header{Rank: uint32(i), Size: 2, LocalRank: uint32(i), LocalSize: 2, Nodes: 1}, []uint32{0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	b, err := OpenBoard(make([]byte, BoardSize(2)), 2)
	if err != nil {
		t.Fatal(err)
	}
	c = channel(t)
	in = NewInlet(areas[0], b, Header{Size: 2})
	in.Open(c, 1, 1)
	return in, areas[0], areas[1], c, b
}

// Messages that take turns on both paths, as fast as they may, are handled in order.
func TestOrderAcrossPaths(t *testing.T) {
	seed := check.Seed(t)
	in, to, _, c, _ := neighbours(t)
	const n = 100000
	var both sync.WaitGroup
	both.Go(func() {
		random := rand.New(rand.NewPCG(seed, 1))
		p, receive, upcalls := c.Producer(), to.ReceiveProducer(), to.UpcallProducer()
		for i := uint64(1); i <= n; {
			r := Record{Peer: 1, Args: [2]uint64{i}}
			var ok bool
			var err error
			switch random.IntN(4) {
			case 0:
				r.After = p.Mark()
				ok, _, err = receive.Push(r)
			case 1:
				ok, _, err = upcalls.Push(r)
			default:
				ok, err = p.Push(&r)
			}
			if err != nil {
				t.Error(err)
				return
			}
			if ok {
				i++
			} else {
				runtime.Gosched()
			}
		}
	})
	late := make(map[uint64]bool) // upcalls that were handled before messages sent earlier
	for next := uint64(1); next <= n; {
		r, ok, err := in.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			runtime.Gosched()
			continue
		}
		switch number := r.Args[0]; {
		case number == next:
			for next++; late[next]; next++ {
				delete(late, next)
			}
		case number > next && in.ring == in.upcalls:
			late[number] = true
		default:
			t.Fatalf("message %d is handled, %d is next", number, next)
		}
		in.Done()
	}
	both.Wait()
}

// A rank that sleeps is woken once, by a message and by room.
func TestWakes(t *testing.T) {
	in, to, area, c, b := neighbours(t)
	out := NewOutlet(area, b, Header{Size: 2})
	area.Path().Store(PathDirect | PathFar | PathMeet)
	push := func(path int) {
		t.Helper()
		if ok, wake, err := out.Push(&Record{Payload: make([]byte, MaxPayload)}); !ok || err != nil || wake != path {
			t.Errorf("room %v, wakes %d, not %d, %v", ok, wake, path, err)
		}
	}
	area.SendWaiting().Store(1)
	push(WakeKernel) // there is no channel yet
	out.Open(c, 0, 0)
	push(WakeKernel) // that message is not settled
	area.Settled().Store(out.send.Position())
	if !out.Quiet() {
		t.Error("the rank is not quiet")
	}
	if ok, _, err := out.Push(&Record{Payload: make([]byte, MaxPayload+1)}); ok || !errors.Is(err, ErrTooLong) {
		t.Errorf("too long a payload: %v, %v", ok, err)
	}
	b.Asleep(0).Store(1)
	push(0)
	push(WakeNobody)
	for ok := true; ok; {
		ok, _, _ = out.Push(&Record{Payload: make([]byte, MaxPayload)})
	}
	if !out.Wait(0, 0, MaxPayload) {
		t.Error("the rank need not wait for room")
	}
	b.Asleep(1).Store(1)
	var wakes []int
	for {
		_, ok, err := in.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if wake := in.Done(); wake != WakeNobody {
			wakes = append(wakes, wake)
		}
	}
	if !slices.Equal(wakes, []int{1}) {
		t.Errorf("%v are woken", wakes)
	}
	c.Closed().Store(1)
	push(WakeKernel)
	if out.Quiet() {
		t.Error("the rank is quiet")
	}
	to.Channels().Store(2)
	in.from[1] = nil
	if ok, _, err := to.ReceiveProducer().Push(Record{Peer: 1, After: 1 << 15}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, _, err := in.Next(); !errors.Is(err, ErrChannels) {
		t.Errorf("a message behind a channel that was not fetched: %v", err)
	}
	in.Fetched()
	in.Fetched()
	if r, ok, err := in.Next(); !ok || err != nil || r.Peer != 1 {
		t.Errorf("a message behind a channel that does not exist: %+v, %v, %v", r, ok, err)
	}
}

// Garbage in a channel is an error that names its producer.
func TestGarbageInChannel(t *testing.T) {
	in, _, _, c, _ := neighbours(t)
	binary.LittleEndian.PutUint64(c.mem[channelData:], 1<<64-1)
	if _, _, err := in.Next(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("garbage in a channel: %v", err)
	}
}

// All ranks decide alike about each barrier, in whatever order they look at the board, also while
// one of them has ended.
func TestBoard(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	for range 300 {
		ranks := 1 + random.IntN(5)
		b, err := OpenBoard(make([]byte, BoardSize(ranks)), ranks)
		if err != nil {
			t.Fatal(err)
		}
		type state struct{ number, loud uint64 } // the barrier that it is in; the last that the node kernel must complete
		at := make([]state, ranks)
		waits := make([]bool, ranks)
		decided := make(map[uint64]bool)
		ended := -1
		for range 400 {
			rank := random.IntN(ranks)
			s := &at[rank]
			switch {
			case rank == ended:
			case random.IntN(200) == 0 && ended < 0:
				ended = rank
				b.End(rank)
				b.End(rank)
			case s.loud == s.number && s.number > 0 && slices.ContainsFunc(at, func(o state) bool { return o.loud < s.loud }):
				// It waits in the barrier of the node kernel, which needs all ranks.
			case !waits[rank]:
				s.number++
				waits[rank] = true
				b.Enter(rank, s.number, random.IntN(3) > 0)
			case b.Arrived(random.IntN(b.Arrived(0, s.number)+1), s.number) == ranks:
				quiet := b.Quiet(s.number)
				if had, ok := decided[s.number]; ok && had != quiet {
					t.Fatalf("barrier %d is quiet for some ranks", s.number)
				}
				decided[s.number] = quiet
				waits[rank] = false
				if !quiet {
					s.loud = s.number
				}
			}
			if ended >= 0 && decided[at[ended].number+1] {
				t.Fatalf("barrier %d is complete, which rank %d, which has ended, has not entered", at[ended].number+1, ended)
			}
		}
	}
}

// A message that takes a channel allocates nothing.
func TestNoAllocation(t *testing.T) {
	in, _, area, c, b := neighbours(t)
	out := NewOutlet(area, b, Header{Size: 2})
	area.Path().Store(PathDirect | PathFar | PathMeet)
	out.Open(c, 0, 0)
	payload := make([]byte, 64)
	n := testing.AllocsPerRun(1000, func() {
		if ok, _, err := out.Push(&Record{Handler: 1, Payload: payload}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, ok, err := in.Next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		in.Done()
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkChannel(b *testing.B) {
	c := channel(b)
	p, consumer := c.Producer(), c.Consumer()
	r := Record{Payload: make([]byte, 64)}
	for b.Loop() {
		if ok, err := p.Push(&r); !ok || err != nil {
			b.Fatal(ok, err)
		}
		if _, ok, err := consumer.Next(); !ok || err != nil {
			b.Fatal(ok, err)
		}
		consumer.Done()
	}
}
