package message

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/message/accumulate"
	"margay/internal/check"
	"margay/internal/rights"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/endpoint"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/keep"
	"margay/nimble/memory"
)

// awaitRing sleeps until the bell rings, as a library does.
func (a *app) awaitRing(wait time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(a.bell.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(wait.Milliseconds()))
	return err == nil && n == 1
}

// quiet takes all pending rings.
func (a *app) quiet() {
	for a.awaitRing(0) {
		unix.Read(int(a.bell.Fd()), make([]byte, 64))
	}
}

// Messages continue, in order and in all directions, when the node kernel of any node restarts, and
// so does everything else that a rank can ask for.
func TestRestart(t *testing.T) {
	j := open(t, 2, 2)
	var apps []*app
	for rank := range 4 {
		apps = append(apps, j.join(rank))
	}
	const step = 300 // more than a window
	for round := range 4 {
		for from := range apps {
			for to := range apps {
				pass(t, apps[from], apps[to], round*step, (round+1)*step)
			}
		}
		done := make(chan bool, len(apps))
		for _, a := range apps {
			go func() { done <- a.barrier(20 * time.Second) }()
		}
		for range apps {
			if !<-done {
				t.Fatalf("round %d: a rank is stuck in the barrier", round)
			}
		}
		j.noFault()
		if round < 2 {
			j.restart(round)
		} else {
			j.restart(0)
			j.restart(1)
		}
	}
	for rank, a := range apps {
		reply, files := a.ask(wire.Request{Op: wire.OpHello, Value: wire.Version}, nil)
		if reply.Status != wire.StatusOK || len(files) != 5 {
			t.Errorf("rank %d: hello again: %+v", rank, reply)
		}
		rights.Close(files)
	}
}

// A sleeping rank is woken by the next node kernel too, and wakes it.
func TestRestartKeepsBells(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	j.restart(1)
	b.quiet()
	if !b.receive.Wait() {
		t.Fatal("there is a message already")
	}
	check.Await(t, "sleep of the node kernel", func() bool { return b.area.SendWaiting().Load() == 1 })
	a.post(1, 1, 5, nil)
	if !b.awaitRing(10 * time.Second) {
		t.Fatal("nobody rang")
	}
	b.receive.Awake()
	if r, ok := b.next(0); !ok || r.Args[0] != 5 {
		t.Errorf("it was %v %+v that rang", ok, r)
	}
	b.post(0, 1, 6, nil)
	if r, ok := a.next(time.Minute); !ok || r.Args[0] != 6 {
		t.Errorf("the answer was %v %+v", ok, r)
	}
}

// A rank whose bell a node kernel was about to ring when it was killed is woken by the next one.
func TestRestartBeforeRing(t *testing.T) {
	j := open(t, 1, 1)
	a := j.join(0)
	a.quiet()
	j.kill(0)
	a.area.ReceiveWaiting().Store(0) // the rank sleeps, and the node kernel has seen it
	j.adopt(0)
	if !a.awaitRing(10 * time.Second) {
		t.Error("nobody rang")
	}
}

// The next node kernel answers StatusAgain to a request that was taken but not answered, and the
// rank can ask again.
func TestRestartBeforeAnswer(t *testing.T) {
	j := open(t, 1, 1)
	a := j.join(0)
	j.kill(0)
	j.ledger(0, func(l *counters) { l.asking[0] = 1 + 41 })
	j.adopt(0)
	if reply, _ := a.answer(); reply.Status != wire.StatusAgain || reply.Call != 41 {
		t.Errorf("it is told %+v", reply)
	}
	reply, files := a.ask(wire.Request{Op: wire.OpHello, Call: 42, Value: wire.Version}, nil)
	defer rights.Close(files)
	if reply.Status != wire.StatusOK || reply.Call != 42 {
		t.Errorf("asking again: %+v", reply)
	}
	check.Await(t, "end of the request", func() bool {
		answered := false
		j.ledger(0, func(l *counters) { answered = l.asking[0] == 0 })
		return answered
	})
}

// A sender that waits for its window loses nothing when its node kernel is killed.
func TestRestartOfWaitingSender(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	posted := fill(t, j, a, 1)
	j.restart(0)
	for i := range posted {
		if r, ok := b.next(time.Minute); !ok || r.Args[0] != uint64(i) {
			t.Fatalf("message %d of %d came as %v %v", i, posted, ok, r.Args)
		}
	}
	if r, ok := b.next(10 * time.Millisecond); ok {
		t.Errorf("a message came twice: %+v", r)
	}
	j.noFault()
}

// waiting returns how many messages for a rank wait for room in its receive ring.
func (j *testJob) waiting(rank id.Rank) int {
	n, _ := j.nodes[j.config.Nodes[rank]].job.local[rank].endpoint.Overflow()
	return n
}

func TestRestartWithLoss(t *testing.T) {
	t.Run("on the way", func(t *testing.T) {
		j := open(t, 2, 1)
		a, b := j.join(0), j.join(1)
		pass(t, a, b, 0, 3)
		j.lose(0, 1, true)
		a.post(1, 1, 3, nil)
		check.Await(t, "message on its way", func() bool { return j.sent(0, 1) == 4 })
		j.kill(0)
		j.net.mu.Lock()
		clear(j.net.cut)
		j.net.mu.Unlock()
		j.adopt(0)
		j.fault("messages between node0 and node1 were lost", "4 were sent, 3 came")
	})
	t.Run("without room", func(t *testing.T) {
		j := open(t, 3, 1)
		a, c := j.join(0), j.join(2)
		b := j.join(1)
		fill(t, j, a, 1)
		fill(t, j, c, 1)
		if j.waiting(1) == 0 {
			t.Fatal("all messages have room")
		}
		j.noFault()
		n := j.waiting(1)
		j.kill(1)
		j.adopt(1)
		j.fault(fmt.Sprint(n, " messages for rank 1"), "no room", "node1")
		b.next(0)
	})
	// A node kernel killed between two instructions.
	t.Run("to itself", func(t *testing.T) {
		j := open(t, 1, 2)
		pass(t, j.join(0), j.join(1), 0, 3)
		j.kill(0)
		j.ledger(0, func(l *counters) { l.flow.Sent[0]++ })
		j.adopt(0)
		j.fault("messages between node0 and node0 were lost", "4 were sent, 3 came")
	})
}

// The next node kernel reports a fault that the previous one has reported: the first report may
// have been lost.
func TestRestartWithFault(t *testing.T) {
	j := open(t, 1, 2)
	a := j.join(0)
	j.join(1)
	n := j.nodes[0]
	n.job.Ended(1)
	check.Await(t, "end of rank 1", func() bool {
		return n.job.local[1].endpoint.Left()
	})
	a.post(1, 1, 0, nil)
	const report = "rank 0 has sent a message to rank 1 on node0, which has ended"
	j.fault(report)
	check.Await(t, "kept fault", func() bool { return n.kept.has(keptFault) })
	j.restart(0)
	var ended *id.EndedError
	if again := j.fault(report); !errors.As(again, &ended) || ended.Rank != 1 {
		t.Errorf("the report comes again without the rank that had ended: %v", again)
	}
	j.kill(0) // before: it may keep the report at any moment
	n.kept.Keep(keep.Item{Name: keptFault, Words: json.RawMessage("7")})
	j.start(0)
	if job, err := n.engine.Adopt(j.configOf(0), n.kept.replay(t)); err == nil || !strings.Contains(err.Error(), keptFault) {
		t.Errorf("adopted %v, %v", job, err)
	}
	n.kept.Drop(keptFault)
	n.port.close()
	j.adopt(0)
}

// The next node kernel survives an area that a rank has overwritten: positions of rings lie within
// records.
func TestRestartWithDamagedArea(t *testing.T) {
	j := open(t, 1, 2)
	a, b := j.join(0), j.join(1)
	pass(t, a, b, 0, 3)
	j.kill(0)
	const tail, head = 0, 64 // of a ring (package wire)
	for _, ring := range []int{receiveControl, upcallControl} {
		for _, end := range []int{tail, head} {
			binary.LittleEndian.PutUint64(b.memory[ring+end:], wire.RingSize-4)
		}
	}
	j.adopt(0)
	a.post(1, 1, 3, nil)
	j.fault("the area was written over", "rank 1")
}

// ledger changes the ledger of a node whose kernel was killed.
func (j *testJob) ledger(node int, change func(*counters)) {
	j.t.Helper()
	job := j.nodes[node].job
	m, err := memory.Attach(keptCounters, int(j.nodes[node].kept.item(keptCounters).Files[0].Fd()), job.countersSize())
	if err != nil {
		j.t.Fatal(err)
	}
	defer m.Close()
	change(newCounters(m, len(job.config.Members), len(job.config.Nodes), len(job.config.Local)))
}

// The next node kernel completes a barrier that the previous one was killed in.
func TestRestartInBarrier(t *testing.T) {
	for name, c := range map[string]struct {
		node   int
		change func(*counters) // the part of the step that was written before the kill
	}{
		"child, before it told":     {1, func(*counters) {}},
		"root, before it completed": {0, func(l *counters) { *l.barrier.Reported = 1 }},
		"root, before it released":  {0, func(l *counters) { *l.barrier.Reported, *l.barrier.Released = 1, 1 }},
		"child, when it had told":   {1, func(l *counters) { *l.barrier.Reported = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 2, 1)
			apps := []*app{j.join(0), j.join(1)}
			done := make(chan bool, 2)
			enter := func(a *app) {
				go func() { done <- a.barrier(20 * time.Second) }()
				check.Await(t, "entry", func() bool { return a.area.Entered().Load() == 1 })
			}
			other := 1 - c.node
			enter(apps[other])
			if c.node == 0 {
				check.Await(t, "arrival", func() bool {
					job := j.nodes[0].job
					job.mu.Lock()
					defer job.mu.Unlock()
					return job.counters.barrier.Arrived[0] == 1
				})
			}
			j.kill(c.node)
			enter(apps[c.node])
			j.ledger(c.node, c.change)
			j.adopt(c.node)
			for range 2 {
				if !<-done {
					t.Error("a rank is stuck in the barrier")
				}
			}
			go func() { done <- apps[0].barrier(20 * time.Second) }()
			if !apps[1].barrier(20*time.Second) || !<-done {
				t.Error("a rank is stuck in the next barrier")
			}
			j.noFault()
		})
	}
}

// The end of a rank is remembered, whether it ended while there was no node kernel or before.
func TestRestartAfterEnd(t *testing.T) {
	j := open(t, 2, 1)
	a := j.join(0)
	j.join(1)
	j.nodes[1].job.Ended(1)
	j.restart(0) // and is notified of it again
	j.restart(1)
	j.nodes[1].job.Ended(1) // the error names the observing node
	a.barrier(0)
	j.fault("rank 1 on node1 has ended", "rank 0 on node0")
}

// insert puts a program into the message slot as a rank does.
func (a *app) insert(object []byte, settings ...wire.Setting) wire.Reply {
	a.t.Helper()
	file, err := memory.Create("object", len(object))
	if err != nil {
		a.t.Fatal(err)
	}
	defer file.Close()
	copy(file.Bytes(), object)
	f, err := keep.File(file)
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	reply, files := a.ask(wire.Request{Op: wire.OpInsert, Settings: settings}, f)
	rights.Close(files)
	return reply
}

// A region keeps its address, and new ones get other addresses.
func TestRestartKeepsPlaces(t *testing.T) {
	j := open(t, 1, 2)
	a, b := j.join(0), j.join(1)
	at := func(who *app, name string) uint64 {
		t.Helper()
		reply, files := who.ask(wire.Request{Op: wire.OpRegion, Name: name, Value: 10}, nil)
		rights.Close(files)
		if reply.Status != wire.StatusOK || len(files) != 1 {
			t.Fatalf("region %s: %+v", name, reply)
		}
		return reply.Values[3]
	}
	z, y := at(a, "z"), at(a, "y") // not in alphabetical order
	for range 2 {
		if z2, y2 := at(b, "z"), at(a, "y"); z2 != z || y2 != y {
			t.Errorf("the regions are at %#x and %#x, they were at %#x and %#x", z2, y2, z, y)
		}
		j.restart(0)
	}
	if x := at(a, "x"); z == 0 || x == z || x == y || z == y || x%memory.MaxSize != 0 {
		t.Errorf("regions at %#x, %#x and %#x", x, y, z)
	}
}

// Extensions keep their order, numbers, settings, state and regions.
func TestRestartKeepsExtensions(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	reply, files := b.ask(wire.Request{Op: wire.OpRegion, Name: "totals", Value: 4096}, nil)
	if reply.Status != wire.StatusOK || len(files) != 1 {
		t.Fatalf("region: %+v", reply)
	}
	region, err := memory.Attach("totals", int(files[0].Fd()), 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	rights.Close(files)
	// The first one drops the messages that the last one would consume. The others, in between, are
	// 1..8, so that the order by name differs.
	var handles []uint32
	for range 9 {
		handles = append(handles, b.insert(extensiontest.Object(t, extensiontest.Answer("deliver", "0"))).Handle)
	}
	counter := b.insert(accumulate.Object, wire.Setting{Kind: wire.SetConstant, Name: "handler", Value: 5})
	dropper := b.insert(extensiontest.Object(t, extensiontest.Answer("drop", "2")))
	handles = append(handles, counter.Handle, dropper.Handle)
	for round := range uint64(3) {
		a.post(1, 5, 10, []byte("word"))
		check.Await(t, "count", func() bool { return region.Bytes()[0] == byte(round+1) && region.Bytes()[8] == byte(10*(round+1)) })
		a.post(1, 6, 1, []byte("word"))
		check.Await(t, "drop", func() bool { return j.received(1, 0) == 2*(round+1) })
		if r, ok := b.next(0); ok {
			t.Errorf("%+v was delivered", r)
		}
		var got []uint32
		for _, x := range j.nodes[1].manager.List() {
			got = append(got, uint32(x.Handle))
		}
		if !slices.Equal(got, handles) {
			t.Errorf("extensions %v, want %v", got, handles)
		}
		j.restart(1)
	}
	// The state of a map that is not a region is kept as well, and can be fetched.
	reply, files = b.ask(wire.Request{Op: wire.OpState, Handle: counter.Handle, Name: "table"}, nil)
	if reply.Status != wire.StatusOK || len(files) != 1 {
		t.Fatalf("state: %+v", reply)
	}
	table, err := memory.Attach("table", int(files[0].Fd()), int(reply.Values[0]))
	rights.Close(files)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	sum := byte(0)
	for entry := range slices.Chunk(table.Bytes(), int(reply.Values[2])) {
		if entry[0] == 4 && string(entry[16:20]) == "word" {
			sum = entry[8]
		}
	}
	if sum != 30 || reply.Values[1] != 1024 {
		t.Errorf("the word was counted up to %d in a table of %d", sum, reply.Values[1])
	}
	if next := b.insert(accumulate.Object); slices.Contains(handles, next.Handle) || next.Status != wire.StatusOK {
		t.Errorf("the next extension: %+v", next)
	}
	j.noFault()
}

// A removed extension does not come back, whichever rank removed it.
func TestRestartWithoutRemovedExtensions(t *testing.T) {
	for name, remove := range map[string]func(j *testJob, a *app, handle uint32) error{
		"by a rank": func(j *testJob, a *app, handle uint32) error {
			if reply, _ := a.ask(wire.Request{Op: wire.OpRemove, Handle: handle}, nil); reply.Status != wire.StatusOK {
				return errors.New(reply.Text)
			}
			return nil
		},
		"by an operator": func(j *testJob, _ *app, handle uint32) error {
			return j.nodes[0].manager.Remove(id.Handle(handle), "an operator")
		},
		"by its faults": func(j *testJob, a *app, handle uint32) error {
			pass(j.t, a, a, 0, 20)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 1, 1)
			a := j.join(0)
			reply := a.insert(extensiontest.Object(t, extensiontest.Message("faulty", "ldxdw r0, [r1-8]", "exit")))
			if reply.Status != wire.StatusOK {
				t.Fatalf("insert: %+v", reply)
			}
			item := extension.Item(id.Handle(reply.Handle))
			if !j.nodes[0].kept.has(item) {
				t.Error("it is not kept")
			}
			if err := remove(j, a, reply.Handle); err != nil {
				t.Fatal(err)
			}
			check.Await(t, "removal from what is kept", func() bool { return !j.nodes[0].kept.has(item) })
			j.restart(0)
			if list := j.nodes[0].manager.List(); len(list) != 0 {
				t.Errorf("there is %+v again", list)
			}
			if _, err := j.nodes[0].job.config.Set.Find(id.Handle(reply.Handle)); !errors.Is(err, extension.ErrNotFound) {
				t.Error(err)
			}
		})
	}
}

// State that was kept incompletely is an error, and leaves no open files.
func TestAdoptIncomplete(t *testing.T) {
	garbage := func(item *keep.Item) { item.Words = json.RawMessage(`[]`) }
	noFiles := func(item *keep.Item) { item.CloseFiles(); item.Files = nil }
	pipes := func(item *keep.Item) {
		for i, f := range item.Files {
			f.Close()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
			item.Files[i] = r
		}
	}
	for name, c := range map[string]struct {
		item   string
		change func(*keep.Item)
		says   string
	}{
		"no ledger":              {keptCounters, noFiles, "not kept"},
		"ledger in a pipe":       {keptCounters, pipes, "ledger"},
		"rank without files":     {endpoint.Item(1), noFiles, "rank 1"},
		"rank in pipes":          {endpoint.Item(1), pipes, "rank/1"},
		"rank without its bell":  {endpoint.Item(0), func(item *keep.Item) { item.Files[3].Close(); item.Files = item.Files[:3] }, "rank 0"},
		"area is the ledger's":   {endpoint.Item(0), func(item *keep.Item) { item.Files[1], item.Files[2] = item.Files[2], item.Files[1] }, "rank/0"},
		"socket is the area":     {endpoint.Item(0), func(item *keep.Item) { item.Files[0], item.Files[1] = item.Files[1], item.Files[0] }, "rank/0"},
		"region without memory":  {extension.RegionItem("r"), noFiles, "not kept"},
		"region of no place":     {extension.RegionItem("r"), garbage, "its place"},
		"extension, no words":    {extension.Item(1), garbage, "extension/1"},
		"extension, no files":    {extension.Item(1), noFiles, "0 files, want 4"},
		"extension in pipes":     {extension.Item(1), pipes, "extension/1"},
		"extension of no number": {extension.Item(1), func(item *keep.Item) { item.Name = "extension/one" }, "no extension"},
		"extension, no object":   {extension.Item(1), func(item *keep.Item) { item.Files[0], item.Files[1] = item.Files[1], item.Files[0] }, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 1, 2)
			a := j.join(0)
			if reply, files := a.ask(wire.Request{Op: wire.OpRegion, Name: "r", Value: 10}, nil); reply.Status != wire.StatusOK {
				t.Fatalf("region: %+v", reply)
			} else {
				rights.Close(files)
			}
			if reply := a.insert(accumulate.Object); reply.Handle != 1 {
				t.Fatalf("insert: %+v", reply)
			}
			j.kill(0)
			j.start(0)
			n := j.nodes[0]
			config := j.configOf(0)
			items := n.kept.replay(t)
			for _, item := range items {
				if item.Name == c.item {
					c.change(item)
				}
			}
			before := check.Descriptors(t)
			for _, item := range items {
				before -= len(item.Files)
			}
			if job, err := n.engine.Adopt(config, items); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("adopted %v, %v; it should say %q", job, err, c.says)
			}
			if err := config.Set.Close(); err != nil {
				t.Error(err)
			}
			if after := check.Descriptors(t); after > before {
				t.Errorf("%d descriptors are open, %d should be", after, before)
			}
			n.port.close()
			j.adopt(0)
			pass(t, a, a, 0, 10)
		})
	}
}

func TestAdoptByStranger(t *testing.T) {
	j := open(t, 1, 1)
	items := j.nodes[0].kept.replay(t)
	config := j.configOf(0)
	config.Set = j.nodes[0].job.config.Set
	config.Members = nil
	if _, err := j.nodes[0].engine.Adopt(config, items); err == nil {
		t.Error("a job without nodes was adopted")
	}
	if _, err := j.nodes[0].engine.Open(config); err == nil {
		t.Error("a job without nodes was opened")
	}
}
