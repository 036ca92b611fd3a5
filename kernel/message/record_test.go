package message

import (
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/record"
)

// recorded returns the events of some kinds that a node has recorded.
func (j *testJob) recorded(node int, kinds ...record.Kind) (events []record.Event) {
	j.t.Helper()
	b := j.nodes[node].events.Read(record.Cursor{}, 1<<24, func(e *record.Event) bool {
		for _, k := range kinds {
			if e.Kind == k {
				return true
			}
		}
		return false
	})
	events, err := record.Parse(b.Events)
	if err != nil || b.Lost != 0 || b.More {
		j.t.Fatalf("%v, %d lost, more: %v", err, b.Lost, b.More)
	}
	return events
}

// Each message is recorded under the same number where it is sent and where it arrives.
func TestRecorded(t *testing.T) {
	for _, target := range []int{1, 2} { // on the same node, on another
		j := open(t, 2, 2)
		there := int(j.config.Nodes[target])
		a, b := j.join(0), j.join(target)
		a.post(target, 0, 0, nil) // before recording is on
		b.next(time.Minute)
		for _, n := range j.nodes {
			n.events.Follow(1)
			defer n.events.Leave(1)
		}
		reply := b.insert(extensiontest.Object(t, byHandler))
		const n = 40
		for i := range n {
			verdict := []slot.Verdict{slot.Deliver, slot.Consume, slot.Drop, 9}[i%4]
			a.post(target, uint16(verdict), uint64(i), make([]byte, i))
		}
		for range n / 2 {
			if _, ok := b.next(time.Minute); !ok {
				t.Fatal("a message is missing")
			}
		}
		check.Await(t, "sent messages", func() bool { return len(j.recorded(0, record.Sent)) == n })
		sent, arrived := j.recorded(0, record.Sent), j.recorded(there, record.Arrived)
		if len(arrived) != n {
			t.Fatalf("%d came", len(arrived))
		}
		for i, e := range sent {
			want := record.Event{
				Kind: record.Sent, Core: 1, Job: 7, Rank: 0, Peer: uint32(target), Node: id.Node(there), Size: uint32(i), Number: uint64(1 + i),
				Time: e.Time,
			}
			if e != want {
				t.Errorf("message %d was sent as %+v, not %+v", i, e, want)
			}
			verdict := []slot.Verdict{slot.Deliver, slot.Consume, slot.Drop, slot.Deliver}[i%4]
			got := arrived[i]
			want = record.Event{
				Kind: record.Arrived, Core: uint16(1 + target%2), Job: 7, Rank: id.Rank(target), Size: uint32(i), Number: uint64(1 + i),
				What: uint64(verdict),
				Time: got.Time, Took: got.Took,
			}
			if got != want || got.Time < e.Time {
				t.Errorf("message %d came as %+v, not %+v", i, got, want)
			}
		}
		runs, faults := j.recorded(there, record.Run), j.recorded(there, record.Fault)
		if len(runs) != n || len(faults) != n/4 {
			t.Fatalf("%d runs, %d faults", len(runs), len(faults))
		}
		for i, e := range runs {
			if e.Text != "byhandler" || e.Number != uint64(reply.Handle) || e.Job != 7 || slot.Table[e.Slot].Name != slot.Message ||
				e.Time < arrived[i].Time || e.Time.Add(e.Took) > arrived[i].Time.Add(arrived[i].Took) {
				t.Errorf("run %d is %+v, for %+v", i, e, arrived[i])
			}
		}
		if s, _ := j.nodes[0].job.Counts(0); s != n+1 {
			t.Errorf("rank 0 has sent %d messages", s)
		}
		if _, c := j.nodes[there].job.Counts(id.Rank(target)); c != n+1 {
			t.Errorf("%d have come", c)
		}
		if s, c := j.nodes[0].job.Counts(99); s != 0 || c != 0 {
			t.Errorf("a rank that is not there has sent %d and got %d", s, c)
		}
	}
}

// A message that must wait for room is recorded when it gets room.
func TestRecordedLate(t *testing.T) {
	j := open(t, 1, 2)
	a, b := j.join(0), j.join(1)
	j.nodes[0].events.Follow(1)
	defer j.nodes[0].events.Leave(1)
	n := 0
	for j.waiting(1) == 0 {
		if a.post(1, 0, uint64(n), make([]byte, 1000)) {
			n++
		}
	}
	for range n {
		if _, ok := b.next(time.Minute); !ok {
			t.Fatal("a message is missing")
		}
	}
	late := j.recorded(0, record.Delivered)
	if len(late) == 0 || len(late) >= n {
		t.Errorf("%d of %d messages had to wait", len(late), n)
	}
	for _, e := range late {
		if e.Took <= 0 || e.Rank != 1 || e.Peer != 0 || e.Core != 2 {
			t.Errorf("%+v", e)
		}
	}
}

// A barrier lasts from a rank's entry to its release.
func TestRecordedBarrier(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	for _, n := range j.nodes {
		n.events.Follow(1)
		defer n.events.Leave(1)
	}
	for n := range uint64(3) {
		a.enter()
		b.enter()
		check.Await(t, "release", func() bool { return a.area.Released().Load() == n+1 && b.area.Released().Load() == n+1 })
	}
	for node := range 2 {
		events := j.recorded(node, record.Barrier)
		if len(events) != 3 {
			t.Fatalf("node %d: %+v", node, events)
		}
		var released id.Time // of the previous barrier
		for i, e := range events {
			if e.Number != uint64(i+1) || e.Job != 7 || e.Rank != id.Rank(node) || e.Took <= 0 || e.Time < released {
				t.Errorf("barrier %d of node %d is %+v", i, node, e)
			}
			released = e.Time.Add(e.Took)
		}
	}
}

// A forwarded message is recorded at the node that forwards it, under the number by which it
// arrives at the next node.
func TestRecordedForward(t *testing.T) {
	j := open(t, 3, 1)
	a, b, c := j.join(0), j.join(1), j.join(2)
	for _, n := range j.nodes {
		n.events.Follow(1)
		defer n.events.Leave(1)
	}
	b.insert(extensiontest.Object(t, byArgument))
	const n = 5
	for range n {
		a.post(1, 0, 2, nil)
	}
	for range n {
		if _, ok := c.next(time.Minute); !ok {
			t.Fatal("a message is missing")
		}
	}
	on, arrived := j.recorded(1, record.Forwarded), j.recorded(2, record.Arrived)
	if len(on) != n || len(arrived) != n || len(j.recorded(1, record.Sent)) != 0 {
		t.Fatalf("%+v\n%+v", on, arrived)
	}
	for i, e := range on {
		if e.Rank != 1 || e.Peer != 2 || e.Node != 2 || e.Number != uint64(i) || arrived[i].Number != e.Number || arrived[i].Node != 1 || arrived[i].Peer != 0 {
			t.Errorf("%+v came as %+v", e, arrived[i])
		}
	}
	if sent, _ := j.nodes[1].job.Counts(1); sent != 0 {
		t.Errorf("rank 1 has sent %d messages", sent)
	}
}
