package mirror

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// side is one end of the model: a rank, and what its node kernel has of it.
type side struct {
	mem      []byte
	out, in  *wire.Channel
	producer *wire.ChannelProducer
	consumer *wire.ChannelConsumer
	end      *End
	peer     Peer
	sent     uint64 // messages
	got      uint64
	silent   int // steps in which the rank does not call its library
}

func newSide(t testing.TB, peer Peer) *side {
	t.Helper()
	s := &side{mem: make([]byte, wire.MirrorSize), peer: peer}
	var err error
	if s.out, s.in, err = wire.OpenMirror(s.mem); err != nil {
		t.Fatal(err)
	}
	s.producer, s.consumer = s.out.Producer(), s.in.Consumer()
	s.end = NewEnd(s.out, s.in, peer)
	return s
}

// payload is the payload of the n-th message of a side.
func payload(n uint64) []byte {
	r := rand.New(rand.NewPCG(n, 5))
	b := make([]byte, []int{0, 8, 64, 200, wire.MaxPayload}[r.IntN(5)])
	for i := range b {
		b[i] = byte(n) + byte(i)
	}
	return b
}

// push sends messages of the rank while there is room.
func (s *side) push(t testing.TB, most int) {
	t.Helper()
	for range most {
		r := wire.Record{Handler: 1, Args: [2]uint64{s.sent}, Payload: payload(s.sent)}
		ok, err := s.producer.Push(&r)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			s.producer.Wait(len(r.Payload))
			return
		}
		s.sent++
	}
}

// take handles messages for the rank.
func (s *side) take(t testing.TB, most int) {
	t.Helper()
	for range most {
		r, ok, err := s.consumer.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		if r.Args[0] != s.got || !bytes.Equal(r.Payload, payload(s.got)) {
			t.Fatalf("message %d comes as %d with %d bytes", s.got, r.Args[0], len(r.Payload))
		}
		s.got++
		s.consumer.Done()
	}
}

// onWay is a datagram on its way.
type onWay struct {
	to int
	at time.Duration
	b  []byte
}

// model is two ends and a network between them that loses, repeats, delays and reorders.
type model struct {
	t       testing.TB
	random  *rand.Rand
	sides   [2]*side
	network []onWay
	now     time.Duration
	lossy   bool
	most    int // datagrams that were sent
}

func (m *model) transmit(from int, b []byte) {
	m.most++
	if len(b) > m.sides[from].peer.Largest {
		m.t.Fatalf("a datagram has %d bytes", len(b))
	}
	for _, delay := range check.Delays(m.random, m.lossy) {
		m.network = append(m.network, onWay{1 - from, m.now + delay, bytes.Clone(b)})
	}
}

// deliver gives a rank the datagrams that have come by now. A rank that is silent finds them later.
func (m *model) deliver() {
	slices.SortStableFunc(m.network, func(a, b onWay) int { return int(a.at - b.at) })
	m.network = slices.DeleteFunc(m.network, func(w onWay) bool {
		s := m.sides[w.to]
		if w.at > m.now || s.silent > 0 {
			return false
		}
		h, data, err := Parse(w.b)
		if err != nil {
			m.t.Fatal(err)
		}
		if other := m.sides[1-w.to].peer; h.Number != other.Number || h.Key != other.Key {
			m.t.Fatalf("%+v is for another end than %+v", h, other)
		}
		s.end.Arrive(&h, data, m.now)
		return true
	})
}

// emit sends the datagrams of an end that are due.
func (m *model) emit(from int, e *End) {
	for range 2 * mostWindow {
		b := e.Emit(nil, m.now)
		if len(b) == 0 {
			return
		}
		m.transmit(from, b)
	}
	m.t.Fatal("there is no end of datagrams that are due")
}

// step has each side do something.
func (m *model) step() {
	m.now += time.Duration(m.random.IntN(400)) * time.Microsecond
	m.deliver()
	for i, s := range m.sides {
		if s.silent > 0 {
			if s.silent--; s.silent%20 == 0 { // the node kernel
				e := NewEnd(s.out, s.in, s.peer)
				e.Ask()
				m.emit(i, e)
			}
			continue
		}
		if m.lossy && m.random.IntN(200) == 0 {
			s.silent = m.random.IntN(100)
		}
		if m.random.IntN(3) == 0 && m.lossy {
			s.push(m.t, m.random.IntN(40))
		}
		if m.random.IntN(3) == 0 || !m.lossy {
			s.take(m.t, m.random.IntN(80))
		}
		if m.random.IntN(8) == 0 {
			s.end.Hurry()
		}
		if m.lossy && s.end.Gathers() && m.random.IntN(2) == 0 {
			continue // the rank has not polled since it wrote
		}
		m.emit(i, s.end)
	}
}

func newModel(t testing.TB, random *rand.Rand) *model {
	largest := []int{Least, 1372, 1472, Most}[random.IntN(4)]
	m := &model{t: t, random: random, lossy: true}
	for i := range m.sides {
		m.sides[i] = newSide(t, Peer{Number: uint32(i), Key: random.Uint64(), Largest: largest})
	}
	return m
}

// Each message arrives once and in order, whatever the network does and however long ranks are
// silent. When the network is well again, everything arrives.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	for round := range uint64(20) {
		m := newModel(t, rand.New(rand.NewPCG(seed, round)))
		for range 10000 {
			m.step()
		}
		m.lossy = false
		a, b := m.sides[0], m.sides[1]
		for steps := 0; a.got != b.sent || b.got != a.sent || !a.end.Quiet() || !b.end.Quiet(); steps++ {
			if m.step(); steps > 20000 {
				t.Fatalf("round %d: of %d and %d messages %d and %d have come", round, a.sent, b.sent, b.got, a.got)
			}
		}
		for range 2000 { // what still waits for its time
			m.step()
		}
		before := m.most
		for range 2000 {
			m.step()
		}
		if m.most != before || len(m.network) > 0 || a.end.Busy() || b.end.Busy() {
			t.Fatalf("round %d: %d datagrams although all is quiet", round, m.most-before)
		}
		if a.sent < 300 {
			t.Errorf("only %d messages were sent", a.sent)
		}
	}
}

// A message is sent at once, and an answer carries the acknowledgement. On a network without losses
// nothing is sent twice.
func TestRoundTrip(t *testing.T) {
	m := newModel(t, rand.New(rand.NewPCG(1, 1)))
	m.lossy = false
	a, b := m.sides[0], m.sides[1]
	const trips = 1000
	for range trips {
		for i, s := range []*side{a, b} {
			s.push(t, 1)
			m.emit(i, s.end)
			m.now += 30 * time.Microsecond
			m.deliver()
			m.sides[1-i].take(t, 1)
		}
	}
	wraps := 2 * int(a.end.acked/wire.ChannelRing) // a datagram does not cross the ring's end
	if a.got != trips || b.got != trips || m.most > 2*trips+wraps {
		t.Errorf("%d and %d of %d messages came, in %d datagrams", a.got, b.got, trips, m.most)
	}
}

// The first messages of a rank that writes without a pause leave one by one, the others together,
// and all of them when it polls. It gathers none when the other rank has handled the earlier ones.
func TestGather(t *testing.T) {
	m := newModel(t, rand.New(rand.NewPCG(1, 1)))
	m.lossy = false
	a, b := m.sides[0], m.sides[1]
	a.end.window = mostWindow
	// write sends messages of one kind without a pause, and returns how many datagrams leave behind
	// each.
	write := func(n int) (left []int) {
		for range n {
			if ok, err := a.producer.Push(&wire.Record{Args: [2]uint64{a.sent}, Payload: make([]byte, 64)}); !ok || err != nil {
				t.Fatalf("message %d: %t, %v", a.sent, ok, err)
			}
			a.sent++
			before := m.most
			if !a.end.Gathers() {
				m.emit(0, a.end)
			}
			left = append(left, m.most-before)
		}
		return left
	}
	const record = wire.ChannelHeader + 64
	together := (gather + record - 1) / record
	for i, n := range write(few + 2*together) {
		switch {
		case i < few && n != 1, i >= few && (i-few)%together != together-1 && n > 0, i >= few && (i-few)%together == together-1 && n == 0:
			t.Errorf("%d datagrams behind message %d", n, i)
		}
	}
	before := m.most
	write(3)
	if m.most != before {
		t.Errorf("%d datagrams before the rank polls", m.most-before)
	}
	m.emit(0, a.end) // it polls
	if m.most != before+1 {
		t.Errorf("%d datagrams when the rank polls", m.most-before)
	}
	m.now += 30 * time.Microsecond
	m.deliver()
	for range a.sent {
		if _, ok, err := b.consumer.Next(); !ok || err != nil {
			t.Fatalf("a message is missing: %v", err)
		}
		b.consumer.Done()
	}
	m.emit(1, b.end)
	m.now += 30 * time.Microsecond
	m.deliver()
	for i, n := range write(few) {
		if n != 1 {
			t.Errorf("%d datagrams behind message %d after a pause", n, i)
		}
	}
	if got := a.end.position() - a.out.Taken().Load(); got >= wire.ChannelRing/2 {
		t.Errorf("%d bytes that the other rank has handled count as if it had not", got)
	}
}

// A rank whose handlers take long sees that it must acknowledge before the other end sends again.
func TestLate(t *testing.T) {
	m := newModel(t, rand.New(rand.NewPCG(1, 1)))
	m.lossy = false
	a, b := m.sides[0], m.sides[1]
	a.push(t, 5)
	m.emit(0, a.end)
	m.now += 30 * time.Microsecond
	m.deliver()
	if b.end.Late(m.now) || b.end.Late(m.now+ackDelay-1) || !b.end.Late(m.now+ackDelay) || a.end.Late(m.now+time.Second) {
		t.Error("an acknowledgement is late at another time")
	}
	m.now += ackDelay
	if m.emit(1, b.end); b.end.Late(m.now) {
		t.Error("it is late when it was sent")
	}
	m.deliver()
	before := m.most
	m.now += 100 * time.Microsecond
	m.deliver()
	for ; m.now < firstTimeout; m.now += time.Millisecond {
		m.emit(0, a.end)
	}
	if m.most != before {
		t.Errorf("%d datagrams are sent again", m.most-before)
	}
}

// While the other rank has much to do, even the first messages after an acknowledgement wait for
// more.
func TestGatherBusy(t *testing.T) {
	m := newModel(t, rand.New(rand.NewPCG(1, 1)))
	m.lossy = false
	a := m.sides[0]
	a.end.window = mostWindow
	for a.end.position() < wire.ChannelRing/2 {
		a.push(t, 1)
	}
	m.emit(0, a.end)
	m.now += 30 * time.Microsecond
	m.deliver()
	m.sides[1].end.Hurry()
	m.emit(1, m.sides[1].end)
	m.now += 30 * time.Microsecond
	m.deliver()
	if a.push(t, 1); !a.end.Gathers() {
		t.Errorf("a message leaves alone: acknowledged %d of %d bytes, %d handled", a.end.acked, a.end.position(), a.out.Taken().Load())
	}
}

// When the other end becomes slow, data are sent again only until that is measured. An
// acknowledgement of data that were sent again measures nothing, so the longer time-out stays.
func TestSlower(t *testing.T) {
	m := newModel(t, rand.New(rand.NewPCG(1, 1)))
	a, b := m.sides[0], m.sides[1]
	reach := uint64(0)
	// until sends without a pause, and returns how many datagrams had new data, and how many were
	// sent again.
	until := func(end, delay time.Duration) (fresh, again int) {
		for ; m.now < end; m.now += delay / 10 {
			m.deliver()
			a.push(t, 100)
			b.take(t, 100)
			for i, s := range m.sides {
				for d := s.end.Emit(nil, m.now); len(d) > 0; d = s.end.Emit(nil, m.now) {
					m.network = append(m.network, onWay{1 - i, m.now + delay, d})
					switch h, data, _ := Parse(d); {
					case i != 0 || len(data) == 0:
					case h.Offset < reach:
						again++
					default:
						fresh++
						reach = h.Offset + uint64(len(data))
					}
				}
			}
		}
		return fresh, again
	}
	if fresh, again := until(10*time.Millisecond, 30*time.Microsecond); fresh == 0 || again > 0 {
		t.Errorf("%d datagrams, and %d were sent again when nothing was late", fresh, again)
	}
	until(2*time.Second, 30*time.Millisecond)
	if fresh, again := until(6*time.Second, 30*time.Millisecond); fresh == 0 || again > fresh/4 {
		t.Errorf("%d datagrams, and %d were sent again", fresh, again)
	}
}

// What was lost is sent again when it is due, and not before.
func TestDue(t *testing.T) {
	m := newModel(t, rand.New(rand.NewPCG(1, 1)))
	e := m.sides[0].end
	if e.Due() != 0 {
		t.Errorf("due at %v, before there is anything to send", e.Due())
	}
	m.sides[0].push(t, 1)
	last := time.Duration(0)
	for range 20 {
		if b := e.Emit(nil, last); len(b) <= HeaderSize {
			t.Fatalf("a datagram of %d bytes at %v", len(b), last)
		}
		for _, now := range []time.Duration{last, max(last, e.Due()-1)} {
			if b := e.Emit(nil, now); len(b) > 0 {
				t.Fatalf("due at %v, a datagram of %d bytes at %v", e.Due(), len(b), now)
			}
		}
		if wait := e.Due() - last; wait < leastTimeout || wait > mostTimeout {
			t.Fatalf("due %v after %v", wait, last)
		}
		last = e.Due()
	}
	e.Arrive(&Header{Arrived: m.sides[0].end.position()}, nil, last)
	if b := e.Emit(nil, last); len(b) > 0 || e.Due() != 0 {
		t.Errorf("a datagram of %d bytes, and one due at %v, when all has arrived", len(b), e.Due())
	}
}

// Before a rank sleeps, it acknowledges at once, unless its last acknowledgements have travelled
// with data. Then it must wake for the next one, if no data follow.
func TestRest(t *testing.T) {
	m := newModel(t, rand.New(rand.NewPCG(1, 1)))
	m.lossy = false
	a, b := m.sides[0], m.sides[1]
	// rests lets b sleep with a message to acknowledge, and returns whether it does so at once.
	rests := func() bool {
		a.push(t, 1)
		m.emit(0, a.end)
		m.now += 30 * time.Microsecond
		m.deliver()
		before := m.most
		b.end.Rest()
		m.emit(1, b.end)
		return m.most > before
	}
	answer := func() {
		b.push(t, 1)
		m.emit(1, b.end)
	}
	if !rests() {
		t.Error("no acknowledgement, although no data have followed another one")
	}
	answer() // soon: the acknowledgement would have travelled with it
	for range 3 {
		if rests() {
			t.Error("an acknowledgement did not wait for data, which had followed the last one")
		}
		answer()
	}
	if rests() {
		t.Fatal("an acknowledgement did not wait for data")
	}
	due := b.end.Due()
	if due <= m.now || due > m.now+ackDelay {
		t.Fatalf("due at %v, at %v", due, m.now)
	}
	m.now = due
	if n := len(b.end.Emit(nil, m.now)); n != HeaderSize {
		t.Errorf("a datagram of %d bytes when an acknowledgement is due", n)
	}
	if !rests() {
		t.Error("no acknowledgement, although no data have followed the last one")
	}
}

// An end takes any datagram, as a hostile peer sends it, and stays usable.
func FuzzArrive(f *testing.F) {
	h := Header{Offset: 8, Arrived: 1 << 63, Taken: 16}
	f.Add(h.append(nil), uint16(3))
	f.Add(append(h.append(nil), make([]byte, 64)...), uint16(900))
	f.Fuzz(func(t *testing.T, b []byte, sent uint16) {
		h, data, err := Parse(b)
		if err != nil {
			return
		}
		if again := append(h.append(nil), data...); !bytes.Equal(again, b) {
			t.Fatalf("%x becomes %x", b, again)
		}
		s := newSide(t, Peer{Largest: Least})
		s.push(t, int(sent%200))
		for len(s.end.Emit(nil, 0)) > 0 {
		}
		before := s.end.position()
		s.end.Arrive(&h, data, time.Millisecond)
		if s.end.acked > before || s.out.Taken().Load() > s.end.acked || s.in.Arrived().Load() > uint64(len(data)) {
			t.Fatalf("%+v with %d bytes makes %+v", h, len(data), s.end)
		}
		for range 2 * mostWindow {
			if len(s.end.Emit(nil, time.Second)) == 0 {
				break
			}
		}
		if _, err := s.producer.Push(&wire.Record{}); err != nil {
			t.Fatal(err)
		}
	})
}

// A rank may write anything into its words. The node kernel sends for it none the less, and never
// more than a window.
func FuzzWords(f *testing.F) {
	f.Add(uint64(1<<63), uint64(0), uint64(1<<64-8), uint64(8), []byte{1, 2})
	f.Fuzz(func(t *testing.T, position, acked, arrived, taken uint64, ring []byte) {
		s := newSide(t, Peer{Largest: Least})
		s.out.Position().Store(position)
		s.out.Acked().Store(acked)
		s.in.Arrived().Store(arrived)
		s.in.Taken().Store(taken)
		copy(s.out.Ring(), ring)
		e := NewEnd(s.out, s.in, s.peer)
		e.Ask()
		n := 0
		for b := e.Emit(nil, 0); len(b) > 0; b = e.Emit(nil, 0) {
			if n++; n > mostWindow+2 || len(b) > Least {
				t.Fatalf("datagram %d of %d bytes", n, len(b))
			}
		}
		h := Header{Offset: arrived, Arrived: acked}
		e.Arrive(&h, binary.LittleEndian.AppendUint64(nil, 1), 0)
	})
}

// The rest of a datagram that was cut on its way is sent at once, without a time-out.
func TestCut(t *testing.T) {
	a, b := newSide(t, Peer{Number: 1, Largest: Least}), newSide(t, Peer{Number: 2, Largest: Least})
	for range 5 {
		if ok, err := a.producer.Push(&wire.Record{Handler: 1}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for n := range uint64(5) {
		datagram := a.end.Emit(nil, time.Duration(n))
		h, data, err := Parse(datagram)
		if err != nil || h.Offset != n*wire.ChannelHeader || len(data) != int(5-n)*wire.ChannelHeader {
			t.Fatalf("datagram %d has %d bytes at %d, %v", n, len(data), h.Offset, err)
		}
		b.end.Arrive(&h, data[:wire.ChannelHeader], time.Duration(n))
		b.end.Hurry()
		answer, _, err := Parse(b.end.Emit(nil, time.Duration(n)))
		if err != nil {
			t.Fatal(err)
		}
		a.end.Arrive(&answer, nil, time.Duration(n))
	}
	if !a.end.Quiet() {
		t.Error("some has not arrived")
	}
}
