package message

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/flow"
	"margay/kernel/keep"
)

// byHandler returns the message's handler as its verdict, and faults for handler 9.
var byHandler = extensiontest.Message("byhandler",
	"ldxw r0, [r1+16]",
	"jne r0, 9, +1",
	"ldxdw r0, [r1-8]",
	"exit")

// awaitRuns waits until at least so many runs of an extension are counted. A message reaches its
// rank before the burst ends in which the extension has seen it.
func (a *app) awaitRuns(handle uint32, runs uint64) {
	a.t.Helper()
	check.Await(a.t, "count of runs", func() bool {
		stats, _ := a.ask(wire.Request{Op: wire.OpStats, Handle: handle}, nil)
		return stats.Status != wire.StatusOK || stats.Values[0] >= runs
	})
}

// Messages that an extension consumes or drops reach no rank, and give their room back to the
// sender. The others are delivered, in order.
func TestVerdicts(t *testing.T) {
	for name, target := range map[string]int{"on the same node": 1, "on another node": 2} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 2, 2)
			a, b := j.join(0), j.join(target)
			reply := b.insert(extensiontest.Object(t, byHandler))
			if reply.Status != wire.StatusOK {
				t.Fatalf("insert: %+v", reply)
			}
			const n = 2000 // several windows, while no rank reads
			for i := range n {
				verdict := slot.Consume
				if i%4 == 0 {
					verdict = slot.Drop
				}
				check.Await(t, "room in the ring", func() bool { return a.post(target, uint16(verdict), uint64(i), make([]byte, 1000)) })
			}
			for i := range 10 {
				check.Await(t, "room in the ring", func() bool { return a.post(target, uint16(slot.Deliver), uint64(i), nil) })
			}
			for i := range 10 {
				if r, ok := b.next(time.Minute); !ok || r.Handler != uint16(slot.Deliver) || r.Args[0] != uint64(i) {
					t.Fatalf("message %d came as %v %v", i, ok, r.Args)
				}
			}
			b.awaitRuns(reply.Handle, n+10)
			list := j.nodes[j.config.Nodes[target]].manager.List()
			if len(list) != 1 || list[0].Dropped != n/4 || list[0].Stats.Runs != n+10 || list[0].Stats.Faults != 0 {
				t.Errorf("list %+v", list)
			}
			stats, _ := b.ask(wire.Request{Op: wire.OpStats, Handle: reply.Handle}, nil)
			if stats.Status != wire.StatusOK || stats.Values[0] != n+10 || stats.Values[1] != 3*(n+10) || stats.Values[2] != 0 || stats.Text != "" {
				t.Errorf("stats %+v", stats)
			}
			j.noFault()
		})
	}
}

// No extension sees the messages of the libraries.
func TestLibraryMessages(t *testing.T) {
	j := open(t, 2, 2)
	a, b := j.join(0), j.join(2)
	reply := b.insert(extensiontest.Object(t, byHandler))
	if reply.Status != wire.StatusOK {
		t.Fatalf("insert: %+v", reply)
	}
	for i := range 10 {
		a.post(2, wire.HandlerCollective, uint64(i), nil)
	}
	for i := range 10 {
		if r, ok := b.next(time.Minute); !ok || r.Handler != wire.HandlerCollective || r.Args[0] != uint64(i) {
			t.Fatalf("message %d came as %v %v", i, ok, r)
		}
	}
	if stats, _ := b.ask(wire.Request{Op: wire.OpStats, Handle: reply.Handle}, nil); stats.Values[0] != 0 {
		t.Errorf("stats %+v", stats)
	}
	j.noFault()
}

// A message on which an extension faults is delivered. After a number of faults the extension is
// removed, and nothing was lost.
func TestFaultsFallBack(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	reply := b.insert(extensiontest.Object(t, byHandler))
	const n = 3 * slot.FaultLimit
	for i := range n {
		a.post(1, 9, uint64(i), nil)
		if r, ok := b.next(time.Minute); !ok || r.Args[0] != uint64(i) {
			t.Fatalf("message %d came as %v %v", i, ok, r.Args)
		}
		if i == 0 {
			stats, _ := b.ask(wire.Request{Op: wire.OpStats, Handle: reply.Handle}, nil)
			if stats.Values[2] != 1 || !bytes.Contains([]byte(stats.Text), []byte("kind=memory")) {
				t.Errorf("stats %+v", stats)
			}
		}
	}
	check.Await(t, "removal", func() bool { return j.nodes[1].job.config.Set.Empty(slot.Message) })
	if stats, _ := b.ask(wire.Request{Op: wire.OpStats, Handle: reply.Handle}, nil); stats.Status != wire.StatusNotFound {
		t.Errorf("stats of what is gone: %+v", stats)
	}
	a.post(1, uint16(slot.Drop), 0, nil)
	if _, ok := b.next(time.Minute); !ok {
		t.Error("an extension that is gone dropped a message")
	}
	j.noFault()
}

// The scheduler of the ranks is notified of each message that arrives for one of them, and of no
// others.
func TestArrived(t *testing.T) {
	type arrival struct {
		rank    id.Rank
		waiting uint32
	}
	came := make(chan arrival, 10)
	j := openWith(t, 2, 1, JobConfig{Job: 7, Secret: []byte("12345678"), InitTimeout: time.Minute,
		Arrived: func(rank id.Rank, waiting uint32) { came <- arrival{rank, waiting} }})
	a, b := j.join(0), j.join(1)
	b.insert(extensiontest.Object(t, byHandler))
	for round := range 2 {
		for i := range 3 {
			a.post(1, uint16(slot.Consume), 0, nil)
			a.post(1, uint16(slot.Deliver), 0, nil)
			if got, want := <-came, (arrival{1, uint32(i + 1)}); got != want {
				t.Errorf("round %d: %+v has come, not %+v", round, got, want)
			}
		}
		for i := range 3 {
			if n := j.nodes[1].job.Waiting(1); n != 3 {
				t.Errorf("after %d of 3 were taken, at most %d wait", i, n)
			}
			b.next(time.Minute)
		}
		if n := j.nodes[1].job.Waiting(1); n != 0 {
			t.Errorf("when all are taken %d wait", n)
		}
	}
	if n := j.nodes[1].job.Waiting(0); n != 0 {
		t.Errorf("%d wait for a rank that is elsewhere", n)
	}
	if len(came) != 0 {
		t.Errorf("and %+v", <-came)
	}
}

// The scheduler of the ranks is notified of each rank that is woken for a reason other than a
// message.
func TestWoken(t *testing.T) {
	var woken [2]atomic.Bool
	j := openWith(t, 2, 1, JobConfig{Job: 7, Secret: []byte("12345678"), InitTimeout: time.Minute,
		Arrived: func(id.Rank, uint32) {}, Woken: func(rank id.Rank) { woken[rank].Store(true) }})
	a, b := j.join(0), j.join(1)
	reset := func() {
		for i := range woken {
			woken[i].Store(false)
		}
	}

	reset()
	b.area.ReceiveWaiting().Store(1) // it sleeps, a does not
	b.enter()
	if !a.barrier(10 * time.Second) {
		t.Fatal("the barrier is not complete")
	}
	check.Await(t, "news of rank 1, which the barrier wakes up", woken[1].Load)
	if woken[0].Load() {
		t.Error("rank 0, which does not sleep, was woken up by the barrier")
	}

	reset()
	sent := 0
	payload := make([]byte, wire.MaxPayload)
	for full := false; !full; { // until the rings of rank 1 and rank 0 have no room
		for a.post(1, uint16(slot.Deliver), 0, payload) {
			sent++
		}
		woken[0].Store(false)
		full = a.send.Wait(len(payload)) && j.waiting(1) > 0
	}
	if woken[1].Load() {
		t.Error("messages count as something else")
	}
	for i := range sent {
		if _, ok := b.next(time.Minute); !ok {
			t.Fatalf("%d of %d messages came", i, sent)
		}
	}
	check.Await(t, "news of rank 0, which has room again", woken[0].Load)
	check.Await(t, "news of rank 1, to which what waited for room has been given", woken[1].Load)
	j.noFault()
}

// The context of a message has its source, its way and contents, and nothing of the message before
// it.
func TestContext(t *testing.T) {
	j := open(t, 2, 2)
	job := j.nodes[1].job
	dirty := bytes.Repeat([]byte{0xff}, slot.PacketSize)
	for _, size := range []int{wire.MaxPayload, 0, 1, 7, 500, 1008} {
		total := size
		if size == 1008 {
			total = wire.MaxMessage // this is its beginning
		}
		p := frame.Message{Source: 1, Target: 3, Hops: 2, Handler: 1<<16 - 1, Args: [2]uint64{5, 1 << 63}, Payload: bytes.Repeat([]byte("x"), size)}
		copy(job.receiver.event.Bytes(), dirty) // as an extension may leave it
		job.receiver.handled.begin(6, &p, total, 0)
		job.receiver.handled.fill()
		var got slot.PacketContext
		if _, err := binary.Decode(job.receiver.event.Bytes(), binary.LittleEndian, &got); err != nil {
			t.Fatal(err)
		}
		want := slot.PacketContext{Message: slot.MessageContext{
			Job: 7, SourceNode: 0, SourceRank: 1, TargetRank: 3, Handler: 1<<16 - 1, Length: uint32(size), Args: p.Args,
			Total: uint64(total),
		}, FromNode: 6, Hops: 2}
		copy(want.Message.Data[:], p.Payload)
		if got != want {
			t.Errorf("context of a message of %d bytes is not as it should be", size)
		}
	}
}

// A rank cannot choose the source of its messages: the value that it writes there is ignored.
func TestSourceIsTrue(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	if ok, _, err := a.send.Push(wire.Record{Handler: 1, Peer: 1, Node: wire.NodeExtension | 77}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	a.ring()
	if r, ok := b.next(time.Minute); !ok || r.Peer != 0 || r.Node != 0 {
		t.Errorf("it came as %v %+v", ok, r)
	}
}

// A receiver that does not read stops its senders, each at its window, and nothing else. When it
// reads, all messages arrive, in order.
func TestWindow(t *testing.T) {
	j := open(t, 2, 3)
	var apps []*app
	for rank := range 6 {
		apps = append(apps, j.join(rank))
	}
	local, remote, deaf := 4, 0, 5 // ranks 0..2 are on node 0
	posted := make(map[int]int)
	for _, from := range []int{local, remote} {
		posted[from] = fill(t, j, apps[from], deaf)
		const cost = frame.MessageHeader + 1000
		if most := 2*(wire.RingSize/1000) + flow.Window/cost; posted[from] > most {
			t.Errorf("rank %d could send %d messages to a rank that does not read, at most %d are allowed", from, posted[from], most)
		}
	}
	for _, pair := range [][2]int{{1, 3}, {3, 1}, {1, 2}, {3, 3}, {deaf, remote}, {deaf, local}} {
		pass(t, apps[pair[0]], apps[pair[1]], 0, 1000)
	}
	next := make(map[int]int)
	for range posted[local] + posted[remote] {
		r, ok := apps[deaf].next(time.Minute)
		if from := int(r.Peer); !ok || r.Args[0] != uint64(next[from]) {
			t.Fatalf("after %v came %v %v from rank %d", next, ok, r.Args, from)
		}
		next[int(r.Peer)]++
	}
	// Their windows are as wide as before.
	for _, from := range []int{local, remote} {
		pass(t, apps[from], apps[deaf], 0, 1000)
		again := fill(t, j, apps[from], deaf)
		if again < posted[from]-3 { // the unusable end of a ring
			t.Errorf("rank %d could send %d messages, and then only %d", from, posted[from], again)
		}
		for i := range again {
			if r, ok := apps[deaf].next(time.Minute); !ok || r.Args[0] != uint64(i) {
				t.Fatalf("message %d came as %v %v", i, ok, r.Args)
			}
		}
	}
	j.noFault()
}

// A job that does not read, or one that has ended, does not affect another job on the same nodes.
func TestJobsApart(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	other := &testJob{t: t, net: j.net, config: j.config, faults: make(chan error, 16)}
	other.config.Job, other.config.Secret = 8, []byte("87654321")
	for i, n := range j.nodes {
		mate := &testNode{engine: n.engine, port: n.port, manager: n.manager, kept: &keptItems{items: make(map[string]*keep.Item)}}
		other.nodes = append(other.nodes, mate)
		var err error
		if mate.job, err = n.engine.Open(other.configOf(i)); err != nil {
			t.Fatal(err)
		}
	}
	c, d := other.join(0), other.join(1)
	fill(t, j, a, 1)
	pass(t, c, d, 0, 1000)
	pass(t, d, c, 0, 1000)
	for _, n := range other.nodes {
		n.job.Close()
		if err := n.job.config.Set.Close(); err != nil {
			t.Error(err)
		}
		for _, item := range n.kept.items {
			item.CloseFiles()
		}
	}
	for i := range 300 {
		if r, ok := b.next(time.Minute); !ok || r.Args[0] != uint64(i) {
			t.Fatalf("message %d came as %v %v", i, ok, r.Args)
		}
	}
	// Late frames for the other job belong to no job.
	j.nodes[0].engine.Frame(id.Node(1), frame.New(frame.Released, 8, Key([]byte("87654321")), 1))
	j.noFault()
}

// Messages that a rank sent before it ended arrive. A message sent to it afterwards is a fault that
// names both ranks.
func TestEndedRank(t *testing.T) {
	for name, from := range map[string]int{"on the same node": 1, "on another node": 2} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 2, 2)
			ending, a := j.join(0), j.join(from)
			for i := range 100 {
				ending.post(from, 1, uint64(i), make([]byte, 1000))
			}
			j.nodes[0].job.Ended(0)
			j.nodes[0].job.Ended(0)  // may be reported again
			j.nodes[0].job.Ended(3)  // is not here
			j.nodes[0].job.Ended(99) // is nowhere
			for i := range 100 {
				if r, ok := a.next(time.Minute); !ok || r.Args[0] != uint64(i) {
					t.Fatalf("message %d came as %v %v", i, ok, r.Args)
				}
			}
			check.Await(t, "end", func() bool {
				return j.nodes[0].job.local[0].endpoint.Left()
			})
			j.noFault()
			a.post(0, 1, 0, nil)
			j.fault(fmt.Sprintf("rank %d has sent a message to rank 0 on node0, which has ended", from))
		})
	}
}

// Messages that have no room when their rank ends never get any.
func TestEndWithMessagesWaiting(t *testing.T) {
	j := open(t, 2, 1)
	a := j.join(0)
	j.join(1)
	fill(t, j, a, 1)
	if j.waiting(1) == 0 {
		t.Fatal("all messages have room")
	}
	j.noFault()
	j.nodes[1].job.Ended(1)
	j.fault("rank 0 has sent a message to rank 1 on node1, which has ended")
}

// A barrier that a rank can no longer enter fails. The fault names the rank that has ended and the
// rank that waits.
func TestBarrierWithEndedRank(t *testing.T) {
	for _, c := range []struct{ ends, waits int }{{0, 1}, {1, 0}, {0, 3}, {3, 0}, {2, 4}} {
		t.Run(fmt.Sprintf("rank %d ends, rank %d waits", c.ends, c.waits), func(t *testing.T) {
			j := open(t, 3, 2)
			var apps []*app
			for rank := range 6 {
				apps = append(apps, j.join(rank))
			}
			done := make(chan bool, 6)
			for _, a := range apps {
				go func() { done <- a.barrier(20 * time.Second) }()
			}
			for range apps {
				if !<-done {
					t.Fatal("a rank is stuck in the barrier before")
				}
			}
			j.nodes[c.ends/2].job.Ended(id.Rank(c.ends))
			if apps[c.waits].barrier(50 * time.Millisecond) {
				t.Error("a barrier was completed without all ranks")
			}
			j.fault(fmt.Sprintf("rank %d on node%d has ended, but rank %d on node%d waits", c.ends, c.ends/2, c.waits, c.waits/2))
		})
	}
}

// Ranks may end at different times in a barrier that all of them have left.
func TestEndAfterBarrier(t *testing.T) {
	j := open(t, 3, 1)
	apps := []*app{j.join(0), j.join(1), j.join(2)}
	done := make(chan bool, 3)
	for rank, a := range apps {
		go func() {
			ok := a.barrier(20 * time.Second)
			j.nodes[rank].job.Ended(id.Rank(rank))
			done <- ok
		}()
	}
	for range apps {
		if !<-done {
			t.Error("a rank is stuck in the barrier")
		}
	}
	check.Await(t, "ends", func() bool {
		for _, n := range j.nodes {
			n.job.mu.Lock()
			ended := len(n.job.barrier.Ended())
			n.job.mu.Unlock()
			if ended < 3 {
				return false
			}
		}
		return true
	})
	j.noFault()
}

// When one rank uses messages, all must, except for those that have ended.
func TestWhoMustTakePart(t *testing.T) {
	const short = 10 * time.Millisecond
	config := JobConfig{Job: 7, Secret: []byte("12345678"), InitTimeout: short}
	t.Run("nobody", func(t *testing.T) {
		j := openWith(t, 2, 1, config)
		time.Sleep(3 * short)
		j.noFault()
	})
	t.Run("one does not", func(t *testing.T) {
		j := openWith(t, 2, 1, config)
		j.join(0)
		j.fault("rank 1 on node1 has not joined", "10ms")
	})
	t.Run("one has ended", func(t *testing.T) {
		j := openWith(t, 2, 1, config)
		j.nodes[1].job.Ended(1)
		j.join(0)
		time.Sleep(3 * short)
		j.noFault()
	})
	t.Run("one does after the restart", func(t *testing.T) {
		c := config
		c.InitTimeout = time.Minute
		j := openWith(t, 2, 1, c)
		j.join(0)
		j.config.InitTimeout = short
		j.restart(0)
		j.restart(1)
		j.fault("rank 1 on node1 has not joined")
	})
}
