package message

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/rights"
	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/channel"
	"margay/kernel/extension/extensiontest"
)

// farRank is a rank with mirrored channels to one rank of another node, as in a library.
type farRank struct {
	*neighbour
	end     *mirror.End
	own     wire.Mirror
	out     *wire.Channel // to the other rank
	socket  int
	start   time.Time
	losing  bool // all datagrams from here are lost
	dormant bool // it does not call its library
}

// openFar starts a job with a rank on each of two nodes, which may have mirrored channels.
func openFar(t *testing.T, border ...Border) (*testJob, *farRank, *farRank) {
	t.Helper()
	here := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	j := openWith(t, 2, 1, JobConfig{
		Job: 7, Secret: []byte("12345678"), InitTimeout: time.Minute,
		Remote: &Remote{Self: here, Ranks: 2, Address: func(id.Rank) netip.Addr { return here }, Largest: 1372},
	}, border...)
	a, b := &farRank{neighbour: j.neighbour(0), start: time.Now()}, &farRank{neighbour: j.neighbour(1), start: time.Now()}
	a.send(1, 1, 0)
	b.expect(0, 0)
	for _, f := range []*farRank{a, b} {
		check.Await(t, "mirrored channels", func() bool { f.fetch(); return f.end != nil })
	}
	check.Await(t, "settled message", a.ready)
	check.Await(t, "open channels", func() bool { return b.out.Closed().Load() == 0 })
	return j, a, b
}

// fetch fetches the mirrored channels when they are there.
func (f *farRank) fetch() {
	f.t.Helper()
	index, missing := f.in.Missing()
	if !missing {
		return
	}
	reply, files := f.ask(wire.Request{Op: wire.OpChannel, Value: uint64(index)}, nil)
	m, ok := wire.MirrorOf(reply.Values)
	if reply.Status != wire.StatusOK || len(files) != 2 || !ok {
		f.t.Fatalf("channel %d: %+v, %d descriptors", index, reply, len(files))
	}
	defer rights.Close(files)
	mem, err := unix.Mmap(int(files[0].Fd()), 0, wire.MirrorSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.t.Fatal(err)
	}
	if f.socket, err = unix.FcntlInt(files[1].Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { unix.Munmap(mem); unix.Close(f.socket) })
	out, in, err := wire.OpenMirror(mem)
	if err != nil {
		f.t.Fatal(err)
	}
	f.own, f.out = m, out
	f.end = mirror.NewEnd(out, in, mirror.Peer{Number: m.PeerNumber, Key: m.PeerKey, Largest: int(m.Largest)})
	f.neighbour.out.OpenMirror(out, int(m.Rank), int(m.Largest)-mirror.HeaderSize)
	f.in.OpenMirror(in, m.Rank)
	f.in.Fetched()
}

// ready reports whether messages may take the mirrored channel.
func (f *farRank) ready() bool {
	return f.out.Closed().Load() == 0 && f.out.Settled().Load() >= f.area.SendProducer().Position()
}

// emit sends the datagrams that are due.
func (f *farRank) emit() {
	to := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(f.own.Port)}
	for b := f.end.Emit(nil, time.Since(f.start)); len(b) > 0; b = f.end.Emit(nil, time.Since(f.start)) {
		if !f.losing {
			_ = unix.Sendto(f.socket, b, unix.MSG_DONTWAIT, to)
		}
	}
}

// poll takes datagrams and sends those that are due.
func (f *farRank) poll() {
	if f.fetch(); f.end == nil || f.dormant {
		return
	}
	b := make([]byte, mirror.Most)
	for {
		n, _, err := unix.Recvfrom(f.socket, b, unix.MSG_DONTWAIT)
		if err != nil {
			break
		}
		h, data, err := mirror.Parse(b[:n])
		if err != nil || h.Number != f.own.Number || h.Key != f.own.Key {
			f.t.Fatalf("%+v: %v", h, err)
		}
		f.end.Arrive(&h, data, time.Since(f.start))
	}
	f.emit()
}

// send sends a message.
func (f *farRank) send(target int, handler uint16, arg uint64) {
	f.t.Helper()
	ok, wake, err := f.neighbour.out.Push(&wire.Record{Handler: handler, Peer: uint32(target), Args: [2]uint64{arg}})
	if err != nil || !ok {
		f.t.Fatal(ok, err)
	}
	switch wake {
	case wire.WakeKernel:
		f.ring()
	case wire.WakeMirror:
		f.emit()
	}
}

// expect waits for the message with a number from a rank, while the other one polls too.
func (f *farRank) expect(source int, number uint64, others ...*farRank) {
	f.t.Helper()
	check.Await(f.t, "message", func() bool {
		for _, o := range append(others, f) {
			o.poll()
		}
		r, ok, err := f.in.Next()
		if err != nil {
			f.t.Fatal(err)
		}
		if ok && (r.Args[0] != number || int(r.Peer) != source || int(r.Node) != source) {
			f.t.Fatalf("message %d of rank %d came as %+v", number, source, r)
		}
		if ok && f.in.Done() == wire.WakeKernel {
			f.ring()
		}
		return ok
	})
}

// Messages between ranks of two nodes pass the node kernels until there are mirrored channels, and
// while there is an extension or a recording on either node. They are handled in order across all
// changes of path, also while there are no node kernels.
func TestMirroredChannels(t *testing.T) {
	j, a, b := openFar(t)
	number := uint64(0)
	exchange := func(what string, passes bool) {
		t.Helper()
		before, next := j.sent(0, 1), number+1
		for range 300 {
			number++
			a.send(1, uint16(slot.Deliver), number)
			if number%3 > 0 {
				b.expect(0, next, a)
				next++
			}
		}
		for ; next <= number; next++ {
			b.expect(0, next, a)
		}
		if n := j.sent(0, 1) - before; passes != (n > 0) {
			t.Errorf("%s: %d messages have passed the node kernels", what, n)
		}
	}
	settled := func() {
		t.Helper()
		number++
		a.send(1, uint16(slot.Deliver), number) // may pass the node kernels
		b.expect(0, number, a)
		check.Await(t, "settled messages", a.ready)
	}
	exchange("alone", false)
	for node, r := range []*farRank{a, b} {
		x := r.insert(extensiontest.Object(t, byHandler))
		exchange("with an extension", true)
		j.restart(node)
		exchange("with an extension that was adopted", true)
		if reply, _ := r.ask(wire.Request{Op: wire.OpRemove, Handle: x.Handle}, nil); reply.Status != wire.StatusOK {
			t.Fatalf("%+v", reply)
		}
		settled()
		exchange("when it was removed", false)
	}
	for node := range 2 {
		if _, err := j.nodes[node].events.Follow(1); err != nil {
			t.Fatal(err)
		}
		check.Await(t, "other path", func() bool {
			return a.out.Closed().Load() != 0 || a.area.Path().Load()&wire.PathFar == 0
		})
		exchange("with a recording", true)
		j.nodes[node].events.Leave(1)
		check.Await(t, "direct path", func() bool {
			return a.area.Path().Load()&wire.PathFar != 0 && a.out.Closed().Load() == 0
		})
		settled()
		exchange("when it has ended", false)
	}
	j.kill(0)
	j.kill(1)
	for range 300 {
		number++
		a.send(1, uint16(slot.Deliver), number)
		b.expect(0, number, a)
	}
	j.adopt(0)
	j.adopt(1)
	exchange("after a restart", false)
	if sent, _ := j.nodes[0].job.Counts(0); sent < 1000 {
		t.Errorf("rank 0 has sent %d messages", sent)
	}
	if _, arrived := j.nodes[1].job.Counts(1); arrived < 1000 {
		t.Errorf("rank 1 has had %d messages", arrived)
	}
	j.noFault()
}

// The node kernel of a rank that does not call its library sends lost datagrams and
// acknowledgements for it.
func TestCare(t *testing.T) {
	j, a, b := openFar(t)
	a.losing = true
	a.send(1, 1, 1)
	a.dormant = true
	b.expect(0, 1)
	b.dormant = true
	a.dormant, a.losing = false, false
	check.Await(t, "acknowledgement", func() bool { a.poll(); return a.end.Quiet() })
	j.noFault()
}

// A message that a rank of another node did not receive before it ended is a fault. A message that
// it received and did not handle is not.
func TestFarRankEnds(t *testing.T) {
	j, a, b := openFar(t)
	b.dormant = true
	a.send(1, 1, 1) // has reached the socket
	j.nodes[1].job.Ended(1)
	check.Await(t, "acknowledgement", func() bool { a.poll(); return a.end.Quiet() })
	check.Await(t, "closed channel", func() bool { return a.out.Closed().Load() == wire.ChannelEnded })
	j.noFault()
	a.send(1, 1, 2)
	j.fault("rank 0 has sent a message to rank 1 on node1, which has ended")
}

// A rank that computes does not know that its messages have arrived when their receiver ends:
// nothing is lost.
func TestFarRankEndsUnseen(t *testing.T) {
	j, a, b := openFar(t)
	a.dormant = true
	for number := range uint64(100) {
		a.send(1, 1, number)
		b.expect(0, number)
	}
	if a.end.Quiet() {
		t.Fatal("it does know")
	}
	j.nodes[1].job.Ended(1)
	check.Await(t, "closed channel", func() bool { return a.out.Closed().Load() == wire.ChannelEnded })
	j.restart(1)
	j.nodes[1].job.Ended(1)
	time.Sleep(30 * channel.TendEach)
	j.noFault()
	a.send(1, 1, 100)
	j.fault("rank 0 has sent a message to rank 1 on node1, which has ended")
}

// A message that was lost on its way to a rank that has ended is a fault, too.
func TestLostToFarRank(t *testing.T) {
	j, a, _ := openFar(t)
	a.losing = true
	a.send(1, 1, 1)
	a.dormant = true
	j.nodes[1].job.Ended(1)
	j.fault("rank 0 has sent a message to rank 1 on node1, which has ended")
}

// The last messages of a rank that has ended arrive, even if they were lost on their way at first.
func TestLastWords(t *testing.T) {
	j, a, b := openFar(t)
	a.losing = true
	for number := range uint64(100) {
		a.send(1, 1, number)
	}
	a.dormant = true
	j.nodes[0].job.Ended(0)
	for number := range uint64(100) {
		b.expect(0, number)
	}
	j.noFault()
}

// In the second barrier of a job, only the leaders of its nodes get mirrored channels, even if a
// node kernel is killed in that barrier. Their messages about barriers then need no node kernel.
func TestIntroduction(t *testing.T) {
	here := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	j := openWith(t, 2, 2, JobConfig{
		Job: 7, Secret: []byte("12345678"), InitTimeout: time.Minute, Meets: true,
		Remote: &Remote{Self: here, Ranks: 4, Address: func(id.Rank) netip.Addr { return here }, Largest: 1372},
	})
	var apps []*app
	for rank := range 4 {
		apps = append(apps, j.join(rank))
	}
	for number := range uint64(wire.Untried) {
		for _, a := range apps {
			if n := a.area.Channels().Load(); n != 0 {
				t.Errorf("%d channels before barrier %d", n, number+1)
			}
		}
		for i, a := range apps {
			if a.enter(); number+1 == wire.Untried && i == 1 { // the last rank of node 0 has entered
				j.restart(0)
			}
		}
		for _, a := range apps {
			check.Await(t, "barrier", func() bool { return a.area.Released().Load() == number+1 })
		}
	}
	for rank, want := range []uint32{1, 0, 1, 0} {
		check.Await(t, "mirrored channels", func() bool { return apps[rank].area.Channels().Load() == want })
	}
	j.noFault()
}

// After a leader has ended, no rank completes barriers on the boards that lack its part. Neither
// restarted node kernels, nor later reports, nor ranks of other nodes can undo this.
func TestBound(t *testing.T) {
	j, a, b := openFar(t)
	if n := a.area.Bound().Load(); n != 0 {
		t.Errorf("barriers are bounded by %d while all leaders live", n)
	}
	b.board.Decide(3, wire.OutcomeQuiet)
	j.nodes[1].job.Ended(1)
	for _, f := range []*farRank{a, b} {
		check.Await(t, "bound", func() bool { return f.area.Bound().Load() == 4 })
	}
	b.board.Decide(9, wire.OutcomeQuiet)
	j.restart(1)
	j.nodes[1].job.Ended(1)
	j.restart(0)
	check.Await(t, "report of the end again", func() bool {
		n := j.nodes[0].job
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.barrier.Ended()) == 1
	})
	for _, f := range []*farRank{a, b} {
		if n := f.area.Bound().Load(); n != 4 {
			t.Errorf("bound %d", n)
		}
	}
	j.nodes[0].job.Ended(0) // a report of node 0 follows all that node 1 has sent
	check.Await(t, "report of the other end", func() bool {
		n := j.nodes[1].job
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.barrier.Ended()) == 2
	})
	if n := b.area.Bound().Load(); n != 1 {
		t.Errorf("bound %d, although the leader of node 0 has decided no barrier", n)
	}
	j.noFault()
}

// The end of a rank that does not lead its node bounds no barriers.
func TestNoBound(t *testing.T) {
	j := open(t, 2, 2)
	a := j.join(0)
	j.join(1)
	j.join(2)
	j.join(3)
	j.nodes[1].job.Ended(3)
	check.Await(t, "report of its end", func() bool {
		n := j.nodes[0].job
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.barrier.Ended()) == 1
	})
	if n := a.area.Bound().Load(); n != 0 {
		t.Errorf("barriers are bounded by %d", n)
	}
}

// No value that a rank writes into its mirrored channels harms a node kernel.
func TestHostileMirrors(t *testing.T) {
	j, a, b := openFar(t)
	for _, w := range []uint64{1<<64 - 1, 1<<64 - 8, 1 << 63, 4} {
		for _, c := range []*wire.Channel{a.out} {
			c.Position().Store(w)
			c.Acked().Store(w - 64)
			c.Arrived().Store(w)
			c.Taken().Store(w)
			for i := range c.Ring() {
				c.Ring()[i] = 0xff
			}
		}
		time.Sleep(60 * time.Millisecond) // for some looks of the node kernel
	}
	j.nodes[0].job.Ended(0)
	j.restart(0)
	j.nodes[0].job.Ended(0)
	for _, op := range slices.Repeat([]uint64{1, 1 << 40}, 500) {
		if reply, files := b.ask(wire.Request{Op: wire.OpChannel, Value: op}, nil); reply.Status != wire.StatusInvalid || len(files) > 0 {
			t.Fatalf("%+v", reply)
		}
	}
}
