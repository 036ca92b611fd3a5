package message

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"margay/ext/packet/firewall"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/border"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
)

// packetByHandler is byHandler in slot packet.
var packetByHandler = extensiontest.Program{Section: "packet", Name: "packet", Code: byHandler.Code}

// packets inserts a program into slot packet of a node.
func (j *testJob) packets(node int, p extensiontest.Program) *extension.Extension {
	j.t.Helper()
	x, err := j.nodes[node].job.config.Set.Insert(extension.Request{Object: extensiontest.Object(j.t, p)})
	if err != nil {
		j.t.Fatal(err)
	}
	return x
}

// An extension in slot packet stops messages of other nodes, and sees none of its own node. What it
// stops gives its room back to the sender, and no barrier waits for it.
func TestPackets(t *testing.T) {
	j := open(t, 2, 2)
	apps := j.joinAll()
	x := j.packets(1, packetByHandler)
	const n, size = 2000, 1000 // several windows
	for i := range uint64(n) {
		verdict := slot.Consume
		if i%4 == 0 {
			verdict = slot.Drop
		}
		apps[0].sendTo(2, uint16(verdict), [2]uint64{i}, make([]byte, size))
	}
	apps[0].sendTo(2, uint16(slot.Pass), [2]uint64{n}, nil)
	apps[3].sendTo(2, uint16(slot.Drop), [2]uint64{n + 1}, nil) // does not come from another node
	came := make(map[uint64]bool)
	for range 2 {
		r, ok := apps[2].next(time.Minute)
		if !ok {
			t.Fatalf("only %v came", came)
		}
		came[r.Args[0]] = true
	}
	if !came[n] || !came[n+1] {
		t.Errorf("%v came", came)
	}
	apps[0].sendTo(2, uint16(slot.Drop), [2]uint64{}, nil)
	for _, a := range apps {
		a.enter()
	}
	for rank, a := range apps {
		check.Await(t, fmt.Sprint("release of rank ", rank), func() bool { return a.area.Released().Load() == 1 })
	}
	list := j.nodes[1].manager.List()
	if len(list) != 1 || list[0].Handle != x.Handle() || list[0].Slot != slot.Packet || list[0].Dropped != n/4+1 || list[0].Stats.Runs != n+2 || list[0].Stats.Faults != 0 {
		t.Errorf("list %+v", list)
	}
	j.nothingHeld()
	j.noFault()
}

// A message of the libraries is seen and always delivered: another verdict is a fault.
func TestPacketsOfLibraries(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	x := j.packets(1, extensiontest.Program{Section: "packet", Name: "drop", Code: []string{"mov r0, 2", "exit"}})
	memory := b.window(1, 1, 64)
	for i := range uint64(3) {
		a.sendTo(1, wire.HandlerCollective, [2]uint64{i}, nil)
		if r, ok := b.next(time.Minute); !ok || r.Handler != wire.HandlerCollective || r.Args[0] != i {
			t.Fatalf("message %d came as %v %+v", i, ok, r)
		}
	}
	a.postRemote(1, wire.Remote{Token: 5, Kind: wire.RemotePut, Window: 1, Length: 3}, []byte("put"))
	if q, _ := a.answered(5); q.Status != wire.RemoteOK || string(memory[:3]) != "put" {
		t.Errorf("a put was answered by %+v, the window has %q", q, memory[:3])
	}
	if s := x.Stats(); s.Runs != 4 || s.Faults != 4 {
		t.Errorf("%+v", s)
	}
	a.sendTo(1, 7, [2]uint64{}, nil)
	check.Await(t, "the drop of an application's message", func() bool { return j.nodes[1].manager.List()[0].Dropped == 1 })
	j.noFault()
}

// The extensions in slot packet come before those in slot message, which see no stopped messages,
// and see the others as they are, although the former have written into the context.
func TestPacketsBeforeMessages(t *testing.T) {
	j := open(t, 2, 2)
	apps := j.joinAll()
	j.packets(1, extensiontest.Program{Section: "packet", Name: "liar", Code: []string{
		"ldxw r0, [r1+16]", "mov r2, 77", "stxw [r1+8], r2", "stxw [r1+1072], r2", "exit", // source rank, node on its way
	}})
	x, err := j.nodes[1].manager.Machine().Insert(extension.Request{Object: extensiontest.Object(t, extensiontest.Message("source",
		"ldxw r2, [r1+8]", "mov r0, 0", "jne r2, 77, +1", "mov r0, 2", "exit"))})
	if err != nil {
		t.Fatal(err)
	}
	for _, verdict := range []slot.Verdict{slot.Drop, slot.Consume, slot.Pass} {
		apps[1].sendTo(2, uint16(verdict), [2]uint64{uint64(verdict)}, nil)
	}
	if r, ok := apps[2].next(time.Minute); !ok || r.Peer != 1 || r.Handler != uint16(slot.Pass) {
		t.Fatalf("%v: %+v", ok, r)
	}
	if s := x.Stats(); s.Runs != 1 {
		t.Errorf("the extension in slot message ran %d times", s.Runs)
	}
	j.noFault()
}

// The verdict about the beginning of a long message counts for all of it.
func TestLongPackets(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	x := j.packets(1, extensiontest.Program{Section: "packet", Name: "bytotal", Code: byTotal.Code})
	var pieces wire.Assembler
	for i, handler := range []slot.Verdict{slot.Drop, slot.Pass, slot.Consume, slot.Pass} {
		a.push(long(1, uint16(handler), uint64(i))...)
	}
	for _, want := range []uint64{1, 3} {
		isLong(t, b.whole(&pieces), 0, uint16(slot.Pass), want)
	}
	if s := x.Stats(); s.Runs != 4 || s.Faults != 0 || j.nodes[1].manager.List()[0].Dropped != 1 {
		t.Errorf("%+v", s)
	}
	j.undecided(1)
	j.noFault()
}

// An extension in slot packet refuses a message in the place of its rank, and a barrier waits for
// the answer.
func TestAnswersToPackets(t *testing.T) {
	j := open(t, 2, 2)
	apps := j.joinAll()
	settings := []extension.Setting{{Name: firewall.Handler, Value: 3}, {Name: firewall.Refuse, Value: 8}}
	x, err := j.nodes[1].job.config.Set.Insert(extension.Request{Object: firewall.Object, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	way := j.net.hold(1, 0)
	apps[0].sendTo(2, 4, [2]uint64{41}, []byte("passes"))
	apps[0].sendTo(2, 3, [2]uint64{42, 43}, []byte("refused"))
	for _, a := range apps {
		a.enter()
	}
	<-way.waits
	j.holdsBarrier(apps, way)
	if r := j.take(apps[0], 2, 8); r.Args != [2]uint64{42, 43} || len(r.Payload) != 0 {
		t.Errorf("%+v", r)
	}
	if r, ok := apps[2].next(0); !ok || r.Args[0] != 41 || apps[2].receive.Ready() {
		t.Errorf("%v: %+v, or more has come", ok, r)
	}
	counts, err := firewall.Read(x.Map(firewall.Counts).Memory().Bytes())
	if want := (firewall.Count{Messages: 2, Bytes: 13, Dropped: 1}); err != nil || counts[0] != want {
		t.Errorf("it counts %+v, %v", counts[0], err)
	}
	j.nothingHeld()
	j.noFault()
}

// With an extension in slot packet, the ranks of its node have channels, and so have messages to
// other nodes. Only messages from other nodes pass the node kernels. The next node kernel goes on
// so.
func TestPathOfPackets(t *testing.T) {
	j, a, b := openFar(t)
	x := j.packets(1, packetByHandler)
	exchange := func(from, to *farRank, passes bool) {
		t.Helper()
		source, target := int(from.header.Rank), int(to.header.Rank)
		before := j.sent(source, target)
		for i := range uint64(100) {
			from.send(target, uint16(slot.Pass), i)
			to.expect(source, i, from)
		}
		if n := j.sent(source, target) - before; passes != (n == 100) || !passes && n != 0 {
			t.Errorf("%d of 100 messages from rank %d to rank %d have passed the node kernels", n, source, target)
		}
	}
	exchange(a, b, true)
	exchange(b, a, false)
	j.restart(1)
	exchange(a, b, true)
	if b.area.Path().Load()&wire.PathDirect == 0 {
		t.Error("ranks of the node have no channels")
	}
	a.send(1, uint16(slot.Drop), 0)
	check.Await(t, "the drop of a message", func() bool { return j.nodes[1].manager.List()[0].Dropped == 1 })
	if err := j.nodes[1].manager.Remove(x.Handle(), "the test"); err != nil {
		t.Fatal(err)
	}
	check.Await(t, "open channel", a.ready)
	exchange(a, b, false)
	j.noFault()
}

// sham is a border that has no program, and so changes no datagram.
type sham struct {
	judges atomic.Bool
	pairs  atomic.Int32
	broken atomic.Bool // it admits no pair
}

func (s *sham) Judges(all []*extension.Extension) bool {
	for _, x := range all {
		if x.Slot() == slot.Message && !slot.OnInterface(x.Section()) {
			return false
		}
	}
	return len(all) > 0 && s.judges.Load()
}

func (s *sham) Admit(p border.Pair, _, _ uint64) (bool, error) {
	if p.Job != 7 || p.From.Addr() != netip.AddrFrom4([4]byte{127, 0, 0, 1}) || p.Source == p.Target || p.Node != id.Node(p.Source) || s.broken.Load() {
		return false, fmt.Errorf("pair %+v", p)
	}
	s.pairs.Add(1)
	return true, nil
}

func (*sham) Advance(border.Pair, uint64) error { return nil }

func (s *sham) Leave(border.Pair) { s.pairs.Add(-1) }

// Messages to a rank pass no node kernel while the border judges them for all extensions in the
// slots packet and message. Those within the node do with one in slot message.
func TestJudgedPath(t *testing.T) {
	s := new(sham)
	t.Cleanup(func() {
		if n := s.pairs.Load(); n != 0 {
			t.Errorf("%d pairs have not left", n)
		}
	})
	j, a, b := openFar(t, s)
	number := uint64(0)
	exchange := func(what string, passes bool) {
		t.Helper()
		if !passes {
			a.send(1, uint16(slot.Pass), number) // may pass the node kernels
			b.expect(0, number, a)
			check.Await(t, "settled messages", a.ready)
			number++
		}
		before := j.sent(0, 1)
		for range 20 {
			a.send(1, uint16(slot.Pass), number)
			b.expect(0, number, a)
			number++
		}
		if n := j.sent(0, 1) - before; passes != (n == 20) || !passes && n != 0 {
			t.Errorf("%s: %d of 20 messages have passed the node kernels", what, n)
		}
	}
	insert := func(set *extension.Set, section string) *extension.Extension {
		t.Helper()
		x, err := set.Insert(extension.Request{Object: extensiontest.Object(t, extensiontest.Program{Section: section, Name: "judge", Code: byHandler.Code})})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	node := j.nodes[1]
	insert(node.manager.Machine(), "packet")
	exchange("not yet judged", true)
	s.broken.Store(true)
	s.judges.Store(true)
	node.engine.Repath()
	exchange("no pair is admitted", true)
	s.broken.Store(false)
	node.engine.Repath()
	exchange("judged", false)
	if n := s.pairs.Load(); n != 1 {
		t.Errorf("%d pairs are admitted", n)
	}
	insert(node.job.config.Set, "packet")
	exchange("with an extension of the job", false)
	insert(node.job.config.Set, slot.MessageOnInterface)
	exchange("with one that handles messages", false)
	if path := b.area.Path().Load() & (wire.PathDirect | wire.PathFar | wire.PathMeet); path != wire.PathFar {
		t.Errorf("the path is %d", path)
	}
	own := insert(node.job.config.Set, "message")
	exchange("with one that handles messages here alone", true)
	if path := b.area.Path().Load() & (wire.PathDirect | wire.PathFar); path != 0 {
		t.Errorf("the path is %d", path)
	}
	if err := node.job.config.Set.Remove(own.Handle(), "the test"); err != nil {
		t.Fatal(err)
	}
	exchange("without it", false)
	s.judges.Store(false)
	node.engine.Repath()
	exchange("no longer judged", true)
	j.noFault()
}

// A pair that the border does not admit when its other end is known is admitted later. Until then
// its rank uses the node kernels, and so does the other one, unless it has its end: then the
// messages wait.
func TestNotAdmitted(t *testing.T) {
	for _, first := range []int{0, 1} {
		t.Run(fmt.Sprintf("rank %d is first", first), func(t *testing.T) {
			s := new(sham)
			here := netip.AddrFrom4([4]byte{127, 0, 0, 1})
			j := openWith(t, 2, 1, JobConfig{
				Job: 7, Secret: []byte("12345678"), InitTimeout: time.Minute,
				Remote: &Remote{Self: here, Ranks: 2, Address: func(id.Rank) netip.Addr { return here }, Largest: 1372},
			}, s)
			a, b := &farRank{neighbour: j.neighbour(0), start: time.Now()}, &farRank{neighbour: j.neighbour(1), start: time.Now()}
			if _, err := j.nodes[1].manager.Machine().Insert(extension.Request{Object: extensiontest.Object(t, packetByHandler)}); err != nil {
				t.Fatal(err)
			}
			s.judges.Store(true)
			j.nodes[1].engine.Repath()
			unmet := func() int {
				job := j.nodes[1].job
				job.mu.Lock()
				defer job.mu.Unlock()
				return len(job.mirroring.unmet)
			}
			s.broken.Store(true)
			if first == 0 {
				for number := range uint64(50) {
					a.send(1, uint16(slot.Pass), number)
					b.expect(0, number, a)
					time.Sleep(5 * time.Millisecond)
				}
			} else {
				b.send(0, uint16(slot.Pass), 0)
				a.expect(1, 0)
				check.Await(t, "mirrored channels of the other rank", func() bool { a.poll(); return a.end != nil && a.ready() })
				a.send(1, uint16(slot.Pass), 50)
				check.Await(t, "attempt", func() bool { a.poll(); b.poll(); return unmet() == 1 })
				if b.end != nil || a.end.Quiet() {
					t.Error("the pair is admitted")
				}
			}
			s.broken.Store(false)
			if first == 1 {
				b.expect(0, 50, a)
			}
			check.Await(t, "mirrored channels", func() bool { a.poll(); b.poll(); return a.end != nil && b.end != nil && a.ready() })
			for number := range uint64(50) {
				a.send(1, uint16(slot.Pass), 100+number)
				b.expect(0, 100+number, a)
			}
			if n := unmet(); n != 0 {
				t.Errorf("%d pairs are not met", n)
			}
			j.noFault()
		})
	}
}
