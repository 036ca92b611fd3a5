//go:build guest

package border

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/packet/firewall"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/wire"
	"margay/kernel/channel"
	"margay/kernel/extension"
)

// Seals of the rig's border, as kernel/message has them.
type seals struct{ *Border }

func (s seals) pair(p channel.Peering) Pair {
	return Pair{Number: p.Own.Number, Key: p.Own.Key, Port: p.Own.Port, From: p.Address, Job: 5, Node: 6, Source: p.Rank, Target: id.Rank(p.Local)}
}

func (s seals) Admit(p channel.Peering, seal, position uint64) (bool, error) {
	return s.Border.Admit(s.pair(p), seal, position)
}

func (s seals) Advance(p channel.Peering, position uint64) error {
	return s.Border.Advance(s.pair(p), position)
}

func (s seals) Leave(p channel.Peering) { s.Border.Leave(s.pair(p)) }

// speaker is a rank with mirrored channels: the near one has the program in front of it.
type speaker struct {
	out      *wire.Channel
	producer *wire.ChannelProducer
	consumer *wire.ChannelConsumer
	end      *mirror.End
	seal     func() uint64
	key      uint64
	sent     []uint16 // handlers of its messages
	got      int
	stopped  int
	took     func() // it has compared the key of a datagram, and not taken it yet
}

func (s *speaker) open(t *testing.T, memory []byte, key uint64, peer mirror.Peer) {
	t.Helper()
	out, in, err := wire.OpenMirror(memory)
	if err != nil {
		t.Fatal(err)
	}
	s.out, s.producer, s.consumer = out, out.Producer(), in.Consumer()
	s.end, s.seal, s.key = mirror.NewEnd(out, in, peer), in.Seal().Load, key
}

// exchange is two ranks, the program between them, and a network that loses, repeats, delays and
// reorders.
type exchange struct {
	*rig
	*rand.Rand
	table *channel.Table
	near  *speaker
	far   *speaker
	frame *sender
	ways  []way
	now   time.Duration
	lossy bool

	budgets []time.Duration // of frames, at random
}

// way is a datagram on its way to a rank.
type way struct {
	to *speaker
	at time.Duration
	b  []byte
}

func newExchange(r *rig, random *rand.Rand) *exchange {
	t := r.t
	t.Helper()
	area, err := wire.NewArea(make([]byte, wire.AreaSize(2)), wire.Header{Size: 2, LocalSize: 1, Nodes: 2}, []uint32{0, 1})
	if err != nil {
		t.Fatal(err)
	}
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	x := &exchange{rig: r, Rand: random, near: new(speaker), far: new(speaker), lossy: true, budgets: []time.Duration{0, time.Hour}}
	x.table, err = channel.New(channel.Config{
		Ranks: []channel.Rank{{Area: area}}, Remote: &channel.Remote{Self: host, Ranks: 2, Address: func(id.Rank) netip.Addr { return host }, Largest: 1372},
		Keeper: r.kept, Seals: seals{r.Border}, Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.table.Close)
	own, _, ok := x.table.Meet(0, 1)
	peer := channel.Meeting{Number: 9, Key: random.Uint64(), Port: 9}
	if err := x.table.Met(0, 1, peer); err != nil || !ok {
		t.Fatal(ok, err)
	}
	f, err := x.table.Fetch(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Memory.Close()
	defer f.Bell.Close()
	memory, err := unix.Mmap(int(f.Memory.Fd()), 0, wire.MirrorSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(memory) })
	x.near.open(t, memory, own.Key, mirror.Peer{Number: peer.Number, Key: peer.Key, Largest: 1372})
	x.far.open(t, make([]byte, wire.MirrorSize), peer.Key, mirror.Peer{Number: own.Number, Key: own.Key, Largest: 1372})
	x.frame = &sender{Rand: random, pair: Pair{Port: own.Port, From: netip.AddrPortFrom(host, peer.Port)}}
	return x
}

// push writes messages while there is room.
func (x *exchange) push(s *speaker, most int) {
	for range most {
		r := wire.Record{Handler: uint16(1 + x.IntN(4)), Args: [2]uint64{uint64(len(s.sent))}, Payload: make([]byte, []int{0, 1, 60, 300, wire.MaxPayload}[x.IntN(5)])}
		if x.IntN(10) == 0 {
			r.Handler = wire.HandlerCollective
		}
		ok, err := s.producer.Push(&r)
		if err != nil {
			x.t.Fatal(err)
		}
		if !ok {
			s.producer.Wait(len(r.Payload))
			return
		}
		s.sent = append(s.sent, r.Handler)
	}
}

// take handles messages that have come from the other rank.
func (x *exchange) take(s, from *speaker, most int) {
	for range most {
		r, ok, err := s.consumer.Next()
		if err != nil {
			x.t.Fatal(err)
		}
		if !ok {
			return
		}
		switch want := from.sent[s.got]; {
		case r.Args[0] != uint64(s.got):
			x.t.Fatalf("message %d comes as %d", s.got, r.Args[0])
		case r.Handler == wire.HandlerStopped && s == x.near && (want == 2 || want == 3):
			s.stopped++
		case r.Handler != want:
			x.t.Fatalf("message %d comes for handler %d, not %d", s.got, r.Handler, want)
		}
		s.got++
		s.consumer.Done()
	}
}

// loaded reports whether the program has an extension.
func (x *exchange) loaded(e *extension.Extension) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Contains(x.rig.loaded, e.Handle())
}

// attached reports whether there is a program.
func (x *exchange) attached() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.link != nil
}

// emit sends the datagrams of a rank that are due.
func (x *exchange) emit(from, to *speaker) {
	for {
		b := from.end.Emit(nil, x.now)
		if len(b) == 0 {
			return
		}
		for _, delay := range check.Delays(x.Rand, x.lossy) {
			x.ways = append(x.ways, way{to, x.now + delay, bytes.Clone(b)})
		}
	}
}

// arrive gives the ranks the datagrams that have come by now.
func (x *exchange) arrive() {
	slices.SortStableFunc(x.ways, func(a, b way) int { return int(a.at - b.at) })
	x.ways = slices.DeleteFunc(x.ways, func(w way) bool {
		if w.at > x.now {
			return false
		}
		b := w.b
		if w.to == x.near && x.attached() {
			f := x.run(x.frame.frame(b))
			b = f[14+28 : 14+binary.BigEndian.Uint16(f[16:])] // it may have cut it off
		}
		h, data, err := mirror.Parse(b)
		if err != nil {
			x.t.Fatal(err)
		}
		if w.to.key != h.Key^w.to.seal() {
			return true
		}
		arrive := func() { w.to.end.Arrive(&h, data, x.now) }
		if w.to.took != nil {
			w.to.took()
			w.to.took = nil
		}
		if x.lossy && x.IntN(10) == 0 {
			w.to.took = arrive
		} else {
			arrive()
		}
		return true
	})
}

// step takes a step of everything.
func (x *exchange) step() {
	x.now += time.Duration(x.IntN(400)) * time.Microsecond
	if len(x.ways) == 0 && !x.lossy { // nothing happens until a time-out
		x.now += time.Duration(x.IntN(20)) * time.Millisecond
	}
	held := x.lossy && x.attached() && x.IntN(10) == 0
	if x.attached() {
		x.states.is.setBudget(x.budgets[x.IntN(len(x.budgets))])
	}
	if held {
		x.Lock()
	}
	x.arrive()
	if held {
		x.Unlock()
	}
	for _, s := range []*speaker{x.near, x.far} {
		other := x.near
		if s == x.near {
			other = x.far
		}
		if s.took != nil && (!x.lossy || x.IntN(5) == 0) {
			s.took()
			s.took = nil
		}
		if x.lossy && x.IntN(3) == 0 {
			x.push(s, x.IntN(10))
		}
		if !x.lossy || x.IntN(3) == 0 {
			x.take(s, other, 80)
		}
		x.emit(s, other)
	}
	if x.IntN(20) == 0 {
		x.table.Tend(x.now)
	}
}

// settle lets everything arrive.
func (x *exchange) settle(when string) {
	x.t.Helper()
	x.lossy = false
	defer func() { x.lossy = true }()
	for steps := 0; x.near.got < len(x.far.sent) || x.far.got < len(x.near.sent) || !x.near.end.Quiet() || !x.far.end.Quiet(); steps++ {
		if x.step(); steps > 3000 {
			x.t.Fatalf("%s: of %d and %d messages %d and %d have come after %v", when, len(x.far.sent), len(x.near.sent), x.near.got, x.far.got, x.now)
		}
	}
}

// Whatever is lost, late, or met by runs in the node kernel, and whenever extensions come and go,
// all messages arrive.
func TestExchange(t *testing.T) {
	r := newRig(t)
	x := newExchange(r, rand.New(rand.NewPCG(check.Seed(t), 0)))
	steps := func(what string, n int) {
		t.Helper()
		for range n {
			x.step()
		}
		x.settle(what)
	}
	// loaded waits until the program has an extension, and has the channels judged. Extensions that
	// are late have their messages pass the node kernels, but those in channels are judged.
	loaded := func(e *extension.Extension) {
		t.Helper()
		for begin := time.Now(); !x.loaded(e); time.Sleep(5 * time.Millisecond) {
			if x.step(); time.Since(begin) > patience {
				t.Fatal("there is no program")
			}
		}
		for range x.IntN(50) {
			x.step()
		}
		if err := x.table.Seal(true); err != nil {
			t.Fatal(err)
		}
	}
	steps("without a program", 200)
	var all []*extension.Extension
	r.start()
	for _, handler := range []uint64{2, 3} {
		e := r.insert(extension.Request{Object: firewall.Object, Settings: []extension.Setting{{Name: firewall.Handler, Value: handler}}})
		all = append(all, e)
		loaded(e)
		steps("judged", 1500)
	}
	// There is time for one message of a frame only. The others need no time-outs, which would add
	// up to more than 30 s.
	x.budgets = x.budgets[:1]
	before, begin := len(x.far.sent), x.now
	x.push(x.far, 200)
	x.settle("without time")
	took, n := x.now-begin, len(x.far.sent)-before
	if t.Logf("%d messages took %v", n, took); n < 100 || took > 10*time.Second {
		t.Errorf("%d messages took %v", n, took)
	}
	x.budgets = x.budgets[:2]
	for _, e := range all {
		for range x.IntN(100) {
			x.step()
		}
		if err := r.manager.Remove(e.Handle(), "the test"); err != nil {
			t.Fatal(err)
		}
		steps("with less", 500)
	}
	if x.near.stopped < 100 || x.far.stopped > 0 || r.states.is.Late == 0 || r.states.is.Met == 0 {
		t.Errorf("%d messages were stopped; %+v", x.near.stopped, r.states.is)
	}
	t.Logf("%d and %d messages, %d stopped, %d frames judged, %d late, %d met", len(x.far.sent), len(x.near.sent), x.near.stopped, r.states.is.Judged, r.states.is.Late, r.states.is.Met)
}
