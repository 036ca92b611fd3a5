package message

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/message/allreduce"
	"margay/ext/message/barrier"
	"margay/ext/message/broadcast"
	"margay/ext/message/echo"
	"margay/ext/message/fetchadd"
	"margay/ext/message/filter"
	"margay/ext/message/get"
	"margay/ext/message/put"
	"margay/internal/check"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/flow"
)

// equip inserts an object on all nodes.
func (j *testJob) equip(object []byte, settings ...extension.Setting) {
	j.t.Helper()
	for _, n := range j.nodes {
		if _, err := n.job.config.Set.Insert(extension.Request{Object: object, Settings: settings}); err != nil {
			j.t.Fatal(err)
		}
	}
}

// joinAll joins all ranks.
func (j *testJob) joinAll() (apps []*app) {
	for rank := range j.config.Nodes {
		apps = append(apps, j.join(rank))
	}
	return apps
}

// sendTo posts a message with two arguments as soon as there is room.
func (a *app) sendTo(target int, handler uint16, args [2]uint64, payload []byte) {
	a.t.Helper()
	check.Await(a.t, "room in the ring", func() bool {
		ok, wake, err := a.send.Push(wire.Record{Handler: handler, Peer: uint32(target), Args: args, Payload: payload})
		if err != nil {
			a.t.Fatal(err)
		}
		if wake {
			a.ring()
		}
		return ok
	})
}

// take returns the next message of a rank, which an extension has sent in response to a message to
// another rank.
func (j *testJob) take(a *app, source int, handler uint16) wire.Record {
	j.t.Helper()
	r, ok := a.next(time.Minute)
	node := uint32(j.config.Nodes[source])
	if !ok || int(r.Peer) != source || r.Node != node|wire.NodeExtension || r.Handler != handler {
		j.t.Fatalf("rank %d: %v, it came as %+v; want one for handler %d of the extension for rank %d", a.header.Rank, ok, r, handler, source)
	}
	return r
}

// An extension answers reads and additions from its own node and from another. The answers name the
// target as their source, and no rank of the target is woken.
func TestRemoteAccessByExtension(t *testing.T) {
	j := open(t, 2, 2)
	j.equip(get.Object, extension.Setting{Name: "handler", Value: 10})
	j.equip(fetchadd.Object, extension.Setting{Name: "handler", Value: 20}, extension.Setting{Name: "entries", Value: 4}, extension.Setting{Name: "words", Value: 4, Entries: true})
	j.equip(put.Object, extension.Setting{Name: "handler", Value: 30})
	apps := j.joinAll()
	for _, target := range []int{1, 0, 2, 3} {
		apps[0].sendTo(target, 30, [2]uint64{100, 1 << 62}, []byte("forty-two"))
		if r := j.take(apps[0], target, 31); r.Args != [2]uint64{100, 9} {
			t.Errorf("put: %v", r.Args)
		}
		for i := range uint64(3) {
			apps[0].sendTo(target, 20, [2]uint64{2, 5}, []byte("token"))
			if r := j.take(apps[0], target, 21); r.Args[0] != 2 || r.Args[1]%5 != 0 || string(r.Payload) != "token" {
				t.Errorf("addition %d: %v %q", i, r.Args, r.Payload)
			}
		}
		apps[0].sendTo(target, 20, [2]uint64{4, 5}, nil)
		if r := j.take(apps[0], target, 21); r.Args != [2]uint64{1<<63 | 4, 0} {
			t.Errorf("addition to no word: %v", r.Args)
		}
		apps[0].sendTo(target, 10, [2]uint64{1020, 5}, nil)
		if r := j.take(apps[0], target, 11); r.Args != [2]uint64{1020, 0} || len(r.Payload) != 0 {
			t.Errorf("get beyond the end: %v %q", r.Args, r.Payload)
		}
	}
	j.nothingHeld()
	j.noFault()
}

// values encodes numbers.
func values(numbers ...uint64) (b []byte) {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// The extensions of all nodes combine numbers of all ranks. Each rank gets each result once, after
// all have contributed.
func TestAllReduceByExtension(t *testing.T) {
	seed := check.Seed(t)
	for name, c := range map[string]struct{ nodes, perNode int }{"one rank": {1, 1}, "one node": {1, 3}, "a tree": {10, 1}, "wide nodes": {3, 4}} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			j := open(t, c.nodes, c.perNode)
			j.equip(allreduce.Object, extension.Setting{Name: "handler", Value: 40})
			apps := j.joinAll()
			const calls, ahead = 30, 3
			want := make([][2]uint64, calls)
			got := make([][calls]bool, len(apps)) // results of concurrent calls arrive in any order
			contribute := func(call int) {
				for _, rank := range random.Perm(len(apps)) {
					v := [2]uint64{random.Uint64N(1000), random.Uint64()}
					want[call] = [2]uint64{want[call][0] + v[0], want[call][1] + v[1]}
					apps[rank].sendTo(rank, 40, [2]uint64{uint64(call), allreduce.Sum}, values(v[:]...))
				}
			}
			for call := range calls + ahead {
				if call < calls {
					contribute(call)
				}
				if call -= ahead; call < 0 {
					continue
				}
				for rank, a := range apps {
					r, ok := a.next(time.Minute)
					if !ok || r.Handler != 42 || r.Node&wire.NodeExtension == 0 || r.Args[0] >= calls || r.Args[1] != allreduce.Sum {
						t.Fatalf("rank %d: %v, it came as %+v", rank, ok, r)
					}
					if n := r.Args[0]; got[rank][n] || string(r.Payload) != string(values(want[n][:]...)) {
						t.Fatalf("rank %d: again: %v, the result of call %d is %x", rank, got[rank][n], n, r.Payload)
					}
					got[rank][r.Args[0]] = true
				}
			}
			for rank, a := range apps {
				if a.receive.Ready() {
					t.Errorf("rank %d has another message", rank)
				}
			}
			j.nothingHeld()
			j.noFault()
		})
	}
}

// Ranks that disagree get an error, and none hangs.
func TestAllReduceDisagrees(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(allreduce.Object, extension.Setting{Name: "handler", Value: 40})
	apps := j.joinAll()
	for call, c := range [][2]struct {
		operation uint64
		values    []byte
	}{{{1, values(1)}, {2, values(1)}}, {{1, values(1)}, {1, values(1, 2)}}, {{1, values(1)}, {1, nil}}} {
		for rank, a := range apps {
			a.sendTo(rank, 40, [2]uint64{uint64(call), c[rank].operation}, c[rank].values)
		}
		for _, a := range apps {
			if r := j.take(a, 0, 42); r.Args[1]&allreduce.Failed == 0 {
				t.Errorf("call %d: %v", call, r.Args)
			}
		}
	}
	j.noFault()
}

// No rank leaves the barrier of the extensions before all have entered it.
func TestBarrierByExtension(t *testing.T) {
	j := open(t, 10, 2)
	j.equip(barrier.Object, extension.Setting{Name: "handler", Value: 50})
	apps := j.joinAll()
	for number := range uint64(5) {
		for rank, a := range apps {
			a.sendTo(rank, 50, [2]uint64{number}, nil)
		}
		for rank, a := range apps {
			if r, ok := a.next(time.Minute); !ok || r.Handler != 52 || r.Args[0] != number || r.Node&wire.NodeExtension == 0 {
				t.Fatalf("rank %d, barrier %d: %v %+v", rank, number, ok, r)
			}
		}
	}
	for rank, a := range apps[1:] {
		a.sendTo(rank+1, 50, [2]uint64{5}, nil)
	}
	apps[0].sendTo(1, 51, [2]uint64{5}, nil) // a rank cannot enter for a node,
	apps[1].sendTo(1, 52, [2]uint64{5}, nil) // nor release a rank,
	apps[1].sendTo(0, 50, [2]uint64{5}, nil) // nor enter for another rank
	if !apps[0].barrier(0) {                 // when this completes, all messages sent have been handled
		for rank := range apps[1:] {
			apps[rank+1].enter()
		}
	}
	check.Await(t, "the barrier of the node kernels", func() bool { return apps[0].area.Released().Load() == 1 })
	for rank, a := range apps {
		if a.receive.Ready() {
			t.Errorf("rank %d was released without rank 0", rank)
		}
	}
	apps[0].sendTo(0, 50, [2]uint64{5}, nil)
	for rank, a := range apps {
		if r, ok := a.next(time.Minute); !ok || r.Args[0] != 5 {
			t.Fatalf("rank %d: %v %+v", rank, ok, r)
		}
	}
	j.nothingHeld()
	j.noFault()
}

// A broadcast reaches every rank once, from any root.
func TestBroadcastByExtension(t *testing.T) {
	j := open(t, 10, 2)
	j.equip(broadcast.Object, extension.Setting{Name: "handler", Value: 60})
	apps := j.joinAll()
	for i, root := range []int{0, 1, 7, 19} {
		apps[root].sendTo(root, 60, [2]uint64{uint64(i)}, []byte("news"))
		for rank, a := range apps {
			if r, ok := a.next(time.Minute); !ok || r.Handler != 61 || r.Args != [2]uint64{uint64(i), uint64(root)} || string(r.Payload) != "news" {
				t.Fatalf("root %d: rank %d: %v %+v", root, rank, ok, r)
			}
		}
	}
	j.nothingHeld()
	for rank, a := range apps {
		if a.receive.Ready() {
			t.Errorf("rank %d has another message", rank)
		}
	}
	j.noFault()
}

// A message arrives as the extension left it.
func TestChangedMessage(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(filter.Object, extension.Setting{Name: "handler", Value: 3}, extension.Setting{Name: "keep", Value: 4})
	apps := j.joinAll()
	for _, target := range []int{0, 1} {
		for _, n := range []uint64{5, 5, 4, 7} {
			apps[0].sendTo(target, 3, [2]uint64{1, n}, []byte("longer than that"))
		}
		apps[0].sendTo(target, 3, [2]uint64{1, 8}, []byte("xy"))
		for _, want := range []struct {
			n    uint64
			text string
		}{{5, "long"}, {7, "long"}, {8, "xy"}} {
			r, ok := apps[target].next(time.Minute)
			if !ok || r.Args[1] != want.n || string(r.Payload) != want.text || r.Node != 0 {
				t.Errorf("to rank %d: %v %+v, want %+v", target, ok, r, want)
			}
		}
	}
	j.noFault()
}

// refusals returns how many answers the extension echo of a node could not send, and the last
// error.
func (j *testJob) refusals(node int) (number uint64, last unix.Errno) {
	j.t.Helper()
	s := j.nodes[node].job.config.Set
	x, err := s.Find(1)
	if err != nil {
		j.t.Fatal(err)
	}
	var b [16]byte
	if _, err := x.ReadMap("refused", 0, b[:]); err != nil {
		j.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b[:]), unix.Errno(-binary.LittleEndian.Uint64(b[8:]))
}

// Two extensions that answer each other's answers stop after slot.MaxHops hops.
func TestEndlessAnswers(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(echo.Object, extension.Setting{Name: "answer", Value: 0})
	apps := j.joinAll()
	apps[0].sendTo(1, 0, [2]uint64{}, nil)
	check.Await(t, "an answer too many", func() bool { n, _ := j.refusals(1); return n == 1 })
	if _, err := j.refusals(1); err != unix.ELOOP {
		t.Errorf("refused by %v", err)
	}
	for node, want := range []uint64{slot.MaxHops / 2, slot.MaxHops/2 + 1} {
		runs := func() uint64 { return j.nodes[node].manager.List()[0].Stats.Runs }
		check.Await(t, "the end of the last run", func() bool { return runs() >= want }) // its answer overtakes it
		if runs() != want {
			t.Errorf("node %d has handled %d messages, not %d", node, runs(), want)
		}
	}
	j.nothingHeld()
	j.noFault()
}

// A message causes at most slot.MaxCaused messages, including those that its messages cause in
// turn.
func TestShare(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	for range check.Rounds(15, 300) {
		total, most := 0, 1+random.IntN(slot.MaxSends)
		waits := []frame.Message{{}}
		for len(waits) > 0 {
			h := handling{message: &waits[len(waits)-1]}
			if h.message.Hops == slot.MaxHops || h.left() == 0 {
				waits = waits[:len(waits)-1]
				continue
			}
			for range random.IntN(min(most, h.left()) + 1) {
				m := frame.Message{Hops: h.message.Hops + 1}
				if random.IntN(4) == 0 {
					m.Used = slot.MaxCaused // a last one
				}
				h.sent = append(h.sent, m)
			}
			if total += len(h.sent); total > slot.MaxCaused {
				t.Fatalf("%d messages, %d at once, were sent for one", total, most)
			}
			forwarded := random.IntN(8) == 0
			h.share(forwarded)
			next := *h.message
			waits = append(waits[:len(waits)-1], h.sent...)
			if next.Hops++; forwarded {
				waits = append(waits, next)
			}
		}
	}
}

// A barrier completes only after the answers to earlier messages have arrived.
func TestBarrierAwaitsAnswers(t *testing.T) {
	for _, perNode := range []int{1, 2} {
		t.Run(fmt.Sprint(perNode, " a node"), func(t *testing.T) {
			j := open(t, 3, perNode)
			j.equip(echo.Object)
			apps := j.joinAll()
			way := j.net.hold(1, 0)
			apps[0].sendTo(perNode, 0, [2]uint64{42}, nil)
			for _, a := range apps {
				a.enter()
			}
			<-way.waits
			j.holdsBarrier(apps, way)
			if r, ok := apps[0].next(0); !ok || r.Args[0] != 42 || r.Handler != 1 {
				t.Errorf("rank 0 is out of the barrier with message %+v, %v", r, ok)
			}
			j.nothingHeld()
			j.noFault()
		})
	}
}

// A rank that does not read its answers makes the extension lose them. The extension gets an error,
// and no other rank is held up.
func TestAnswersToDeaf(t *testing.T) {
	j := open(t, 2, 2)
	j.equip(echo.Object, extension.Setting{Name: "copies", Value: 8})
	apps := j.joinAll()
	const deaf, target, n = 0, 2, 2000
	for i := range uint64(n) {
		apps[deaf].sendTo(target, 0, [2]uint64{i}, make([]byte, 100))
	}
	var refused uint64
	check.Await(t, "an answer that is refused", func() bool { n, _ := j.refusals(1); return n > 0 })
	job := j.nodes[1].job
	job.mu.Lock()
	held := job.flow.Held(target)
	job.mu.Unlock()
	if held > flow.Window {
		t.Errorf("%d bytes of rank 0 are held", held)
	}
	for i := range uint64(50) { // the others are answered
		apps[1].sendTo(target, 0, [2]uint64{i}, nil)
		for range 8 {
			j.take(apps[1], target, 1)
		}
	}
	came := uint64(0)
	check.Await(t, "all answers", func() bool {
		for {
			if _, ok := apps[deaf].next(0); !ok {
				break
			}
			came++
		}
		var err unix.Errno
		refused, err = j.refusals(1)
		if refused > 0 && err != unix.EAGAIN {
			t.Fatalf("refused by %v", err)
		}
		return came+refused == 8*n
	})
	j.nothingHeld()
	j.noFault()
}

// An extension puts into windows of ranks of its own and other nodes without waking a rank. A put
// outside a window ends the job.
func TestPutByExtension(t *testing.T) {
	j := open(t, 3, 1)
	j.equip(put.Object, extension.Setting{Name: "window", Value: 3})
	apps := j.joinAll()
	for _, owner := range []int{0, 1, 2} {
		memory := apps[owner].window(3, owner, 4096)
		apps[0].sendTo(1, 0, [2]uint64{4090, put.Other | uint64(owner)}, []byte("inside"))
		check.Await(t, fmt.Sprint("the put into the window of rank ", owner), func() bool { return string(memory[4090:]) == "inside" })
		if apps[owner].receive.Ready() {
			t.Errorf("rank %d has a message", owner)
		}
	}
	j.nothingHeld()
	j.noFault()
	apps[0].sendTo(1, 0, [2]uint64{4091, put.Other | 2}, []byte("beyond"))
	j.fault("an extension on node1 has put 6 bytes at offset 4091 into window 3 of rank 2, which does not have them")
}

// Killing a node kernel with answers on their way ends the job.
func TestAnswerAndRestart(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(echo.Object, extension.Setting{Name: "copies", Value: 3})
	apps := j.joinAll()
	way := j.net.hold(1, 0)
	apps[0].sendTo(1, 0, [2]uint64{}, nil)
	<-way.waits
	j.restart(1)
	close(way.release)
	j.fault("messages in forwarding (3) were lost when the node kernel of node1 was started again")
}

// An answer to a rank that has ended ends the job.
func TestAnswerToEnded(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(echo.Object)
	apps := j.joinAll()
	way := j.net.hold(1, 0)
	apps[0].sendTo(1, 0, [2]uint64{}, nil)
	<-way.waits
	j.nodes[0].job.Ended(0)
	check.Await(t, "end", func() bool { return j.nodes[0].job.local[0].endpoint.Left() })
	close(way.release)
	j.fault("an extension on node1, for a message to rank 1, has sent a message to rank 0 on node0, which has ended")
}

// The requests of an extension are checked, and dropped when its run fails.
func TestHandling(t *testing.T) {
	j := open(t, 2, 2)
	h := &j.nodes[0].job.receiver.handled
	m := frame.Message{Source: 3, Target: 0, Handler: 7, Hops: slot.MaxHops - 1, Used: slot.MaxCaused - 5, Args: [2]uint64{1, 2}, Payload: []byte("payload")}
	h.begin(1, &m, len(m.Payload)+1, slot.MaxHops)
	if err := h.Change(7); err != unix.EMSGSIZE {
		t.Errorf("the beginning of a long message changes: %v", err)
	}
	h.begin(1, &m, len(m.Payload), slot.MaxHops)
	for name, c := range map[string]struct{ got, want error }{
		"no such rank":    {h.Send(slot.Send{Rank: 4}, nil), unix.EINVAL},
		"a far rank":      {h.Send(slot.Send{Rank: 1<<32 - 1}, nil), unix.EINVAL},
		"a library's":     {h.Send(slot.Send{Handler: wire.MaxHandlers}, nil), unix.EINVAL},
		"a reply to it":   {h.Reply(slot.Send{Rank: 9, Handler: 1<<32 - 1}, nil), unix.EINVAL},
		"no such window":  {h.Put(slot.Put{Window: wire.MaxWindows}, []byte("x")), unix.EINVAL},
		"nothing to put":  {h.Put(slot.Put{}, nil), unix.EINVAL},
		"a longer one":    {h.Change(8), unix.EMSGSIZE},
		"a very long one": {h.Change(1<<64 - 1), unix.EMSGSIZE},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	if n, err := h.Room(1); n != 5 || err != nil || len(h.sent) != 0 {
		t.Fatalf("room for %d, %v; sent %+v", n, err, h.sent)
	}
	if err := h.Reply(slot.Send{Rank: 9, Handler: 8}, []byte("first")); err != nil {
		t.Fatal(err)
	}
	h.Keep()
	if err := h.Send(slot.Send{Rank: 1, Handler: 8}, nil); err != nil {
		t.Fatal(err)
	}
	if err := h.Change(3); err != nil {
		t.Fatal(err)
	}
	context := j.nodes[0].job.receiver.event.Bytes()
	clear(context)
	h.Discard()
	if context[16] != 7 || string(context[40:47]) != "payload" {
		t.Error("the next extension sees what one that has failed has written")
	}
	for i := range 4 {
		if err := h.Send(slot.Send{Rank: 1, Handler: 8}, nil); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if err := h.Send(slot.Send{Rank: 1}, nil); err != unix.EDQUOT {
		t.Errorf("more than it may cause: %v", err)
	}
	copy(context[40:], "PAY")
	if err := h.Change(3); err != nil {
		t.Fatal(err)
	}
	h.Keep()
	h.share(false)
	if len(h.sent) != 5 || h.sent[0].Target != 3 || string(h.sent[0].Payload) != "first" || string(m.Payload) != "PAY" {
		t.Fatalf("sent %+v, left %+v", h.sent, m)
	}
	for _, s := range h.sent {
		if s.Source != 0 || !s.Extension || s.Hops != slot.MaxHops || s.Used != slot.MaxCaused {
			t.Errorf("%+v", s)
		}
	}
	h.begin(0, &h.sent[0], len(h.sent[0].Payload), slot.MaxHops)
	if _, err := h.Room(0); err != unix.ELOOP || h.Send(slot.Send{}, nil) != unix.ELOOP || !h.ByExtension() {
		t.Errorf("of one that was forwarded as often as can be: %v", err)
	}
	m = frame.Message{Source: 3, Handler: wire.HandlerCollective, Payload: []byte("payload")}
	h.begin(1, &m, len(m.Payload), slot.MaxHops)
	if err := h.Reply(slot.Send{}, nil); err != unix.ENOTSUP || h.Change(3) != unix.ENOTSUP || h.Allow(slot.Pass) != nil || h.Allow(slot.Consume) == nil {
		t.Errorf("of one of the libraries: %v", err)
	}
}

// The fault names a node that sends messages which no extension can send.
func TestHostilePut(t *testing.T) {
	j := open(t, 2, 1)
	q := wire.Remote{Kind: wire.RemoteGet, Length: 8}
	b := frame.New(frame.Messages, j.config.Job, Key(j.config.Secret), 0)
	b = frame.AppendMessage(b, &frame.Message{Source: 1, Hops: 1, Extension: true, Handler: wire.HandlerRemote, Args: q.Args()})
	j.nodes[0].engine.Frame(1, b)
	j.fault("an extension on node1 has sent rank 0 a message", "makes no sense")
}
