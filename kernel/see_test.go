package kernel

import (
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/message"
	"margay/kernel/record"
	"margay/kernel/sched"
	"margay/kernel/task"
)

// started runs two ranks of the node on core 1 and one on core 2, all of them this process.
func started(t *testing.T) (*Node, *job) {
	n, _ := node1(t, 2)
	j := n.prepared(t, 7, 1, 1, 2)
	n.jobs[7] = j
	t.Cleanup(j.leaveAll)
	for rank := id.Rank(1); rank <= 3; rank++ {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		j.running[rank] = true
		j.Started(task.RankProcess{Rank: rank, PID: os.Getpid(), File: f})
	}
	return n, j
}

// ask reads events; their times do not matter.
func (n *Node) ask(t *testing.T, q EventQuery) []record.Event {
	t.Helper()
	q.Reader, q.Size = 1, 1<<20
	b, err := n.Events(q)
	if err != nil {
		t.Fatal(err)
	}
	events, err := record.Parse(b.Events)
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		events[i].Time = 0
	}
	return events
}

// A new reader gets the ranks that run, and then their events.
func TestEventsOfRanks(t *testing.T) {
	n, j := started(t)
	events := n.ask(t, EventQuery{})
	starts := make(map[id.Rank]uint16)
	switches := 0
	for _, e := range events {
		switch {
		case e.Kind == record.Start && e.Job == 7:
			starts[e.Rank] = e.Core
		case e == record.Event{Kind: record.Switch, Core: 2, Job: 7, Rank: 3, Text: alone}:
			switches++
		default:
			t.Errorf("%+v", e)
		}
	}
	if want := map[id.Rank]uint16{1: 1, 2: 1, 3: 2}; !reflect.DeepEqual(starts, want) || switches != 1 {
		t.Errorf("ranks %v run, and there are %d switches", starts, switches)
	}
	b, _ := n.Events(EventQuery{Reader: 1, Size: 1 << 20})
	j.recordEnd(3, task.Status{Code: 4, Time: time.Second}, true)
	j.recordEnd(9, task.Status{}, false) // which is not of this node
	want := []record.Event{
		{Kind: record.End, Core: 2, Job: 7, Rank: 3, Took: time.Second, Text: "exited with status 4"},
		{Kind: record.Switch, Core: 2, Text: "the rank has ended"},
	}
	if got := n.ask(t, EventQuery{Cursor: b.Cursor}); !reflect.DeepEqual(got, want) {
		t.Errorf("the end of rank 3 is %+v", got)
	}
	if got := n.ask(t, EventQuery{Cursor: b.Cursor, Job: 8}); !reflect.DeepEqual(got, want[1:]) {
		t.Errorf("to those who want job 8 it is %+v", got)
	}
	if _, err := n.Events(EventQuery{Reader: 1, Leave: true}); err != nil || n.recorder.On() {
		t.Errorf("recording goes on, %v", err)
	}
	for i := range uint64(record.MaxReaders) {
		n.recorder.Follow(i)
	}
	if _, err := n.Events(EventQuery{Reader: 99}); !errors.Is(err, record.ErrReaders) {
		t.Error(err)
	}
}

// A rank with several cores has a turn on each of them.
func TestEventsOfWideRank(t *testing.T) {
	n, _ := node1(t, 3)
	j := n.preparedWide(t, 7, 1, 2, 3)
	const rank = 1
	begins, err := n.recorder.Follow(1)
	if err != nil || !begins {
		t.Fatal(begins, err)
	}
	j.recordStart(&process{Task: sched.Task{ID: sched.ID{Job: 7, Rank: rank}, Core: 1}, since: record.Now()})
	j.recordEnd(rank, task.Status{}, true)
	turns := make(map[uint16]string)
	for _, e := range n.ask(t, EventQuery{}) {
		if e.Kind == record.Switch {
			turns[e.Core] += e.Text + ";"
		}
	}
	turn := alone + ";the rank has ended;"
	if want := map[uint16]string{1: turn, 2: turn, 3: turn}; !reflect.DeepEqual(turns, want) {
		t.Errorf("the cores have the turns %v", turns)
	}
}

// deaf is a sink that takes everything.
type deaf struct{ Sink }

func (deaf) Record(id.Job, task.Record) {}

// A rank that ended before the node kernel looked at its process still has a lifetime. Its end
// gives the length.
func TestEventsOfBriefRank(t *testing.T) {
	n, j := started(t)
	n.config.Sink = deaf{}
	j.messages = new(message.Job)
	n.ask(t, EventQuery{})
	b, _ := n.Events(EventQuery{Reader: 1, Size: 1 << 20})
	j.leave(3) // as if it had never been here
	end := task.Record{Rank: 3, Stream: task.Exit, Status: task.Status{Time: time.Second}}
	j.Record(end)
	j.Record(end) // as it comes again when it was not acknowledged
	b, err := n.Events(EventQuery{Reader: 1, Size: 1 << 20, Cursor: b.Cursor})
	if err != nil {
		t.Fatal(err)
	}
	events, err := record.Parse(b.Events)
	if err != nil || len(events) != 4 {
		t.Fatalf("%+v, %v", events, err)
	}
	began, ended := events[0].Time, events[2].Time
	want := []record.Event{
		{Kind: record.Start, Time: began, Core: 2, Job: 7, Rank: 3},
		{Kind: record.Switch, Time: began, Core: 2, Job: 7, Rank: 3, Text: alone},
		{Kind: record.End, Time: ended, Core: 2, Job: 7, Rank: 3, Took: time.Second, Text: "exited with status 0"},
		{Kind: record.Switch, Time: events[3].Time, Core: 2, Text: "the rank has ended"},
	}
	if !reflect.DeepEqual(events, want) || ended.Sub(began) < time.Second {
		t.Errorf("%+v\nwant %+v", events, want)
	}
}

func TestSample(t *testing.T) {
	n, _ := started(t)
	s, err := n.Sample()
	if err != nil || s.Time <= 0 || len(s.Cores) != 2 || s.Cores[1].Core != 2 || len(s.Ranks) != 3 {
		t.Fatalf("%+v, %v", s, err)
	}
	if s.Recording {
		t.Error("nobody records")
	}
	for _, r := range s.Ranks {
		if core := map[id.Rank]id.Core{1: 1, 2: 1, 3: 2}[r.Rank]; r.Job != 7 || r.Core != core || r.PID != os.Getpid() || r.Usage.CPU <= 0 || (r.Why == alone) != (core == 2) {
			t.Errorf("%+v", r)
		}
	}
	n.opened().(*heard).cores = []sched.CoreInfo{{
		Core: 1, Tasks: []slot.SchedTask{{Job: 7, Rank: 2, State: slot.Held}, {Job: 7, Rank: 1, State: slot.Running}},
		Running: 1, Switches: 5, Asked: 6, Rescues: 7, Why: "edf",
	}}
	if s, err = n.Sample(); err != nil || s.Cores[0].Switches != 5 || s.Cores[0].Asked != 6 || s.Cores[0].Rescues != 7 || s.Cores[1].Switches != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, r := range s.Ranks {
		if want := map[id.Rank]string{1: "has the core: edf", 2: "held", 3: alone}[r.Rank]; r.Why != want {
			t.Errorf("rank %d: %q, want %q", r.Rank, r.Why, want)
		}
	}
	gone := n.jobs[7].tasks[2]
	gone.PID = 1 << 22 // no process has this pid
	n.jobs[7].tasks[2] = gone
	if s, err := n.Sample(); err != nil || len(s.Ranks) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}

// The load of the system core from a look at a node with three ranks.
func BenchmarkSample(b *testing.B) {
	n, _ := node1(&testing.T{}, 2)
	j := n.prepared(b, 7, 1, 1, 2)
	n.jobs[7] = j
	for rank := id.Rank(1); rank <= 3; rank++ {
		p := process{}
		p.PID = os.Getpid()
		j.tasks[rank] = p
	}
	for b.Loop() {
		if _, err := n.Sample(); err != nil {
			b.Fatal(err)
		}
	}
}
