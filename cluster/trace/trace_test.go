package trace

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"margay/cluster/trace/tracetest"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/record"
)

// place is where an extension's slot is in the table.
func place(name slot.Name) uint8 {
	for i, row := range slot.Table {
		if row.Name == name {
			return uint8(i)
		}
	}
	panic(name)
}

// lines are the events of a trace for people: thread, phase, time, name, and some more.
func lines(t *tracetest.Trace) (list []string) {
	for _, e := range t.Events {
		if e.Phase == "M" {
			continue
		}
		text := fmt.Sprintf("%d %s: %s %.3f", *e.PID-1, t.Thread(e), e.Phase, *e.Time)
		if e.Took != nil {
			text += fmt.Sprintf("+%.3f", *e.Took)
		}
		text += " " + *e.Name
		if e.ID != "" {
			text += " " + e.ID
		}
		if by, ok := e.Args["called_by"]; ok {
			text += fmt.Sprint(" by ", by)
		}
		list = append(list, text)
	}
	return list
}

const second = id.Time(time.Second)

func TestTrace(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out, time.Unix(1e9, 5))
	w.SetClock(0, Clock{Ahead: 100 * time.Second, Error: time.Microsecond})
	w.SetClock(3, Clock{Ahead: time.Hour, Error: 2 * time.Microsecond})
	at := func(us float64) id.Time { return (100 * second).Add(time.Duration(us * 1000)) }
	there := func(us float64) id.Time { return (3600 * second).Add(time.Duration(us * 1000)) }
	if err := w.Events(0, at(42), []record.Event{
		{Kind: record.Start, Time: at(-500), Core: 1, Job: 7, Rank: 1}, // before the trace
		{Kind: record.Sent, Time: at(-100), Core: 1, Job: 7, Rank: 1},  // the same
		{Kind: record.Switch, Time: at(1), Core: 1, Job: 7, Rank: 1, Text: "it is alone"},
		{Kind: record.Sent, Time: at(2.5), Core: 1, Job: 7, Rank: 1, Peer: 4, Node: 3, Size: 8, Number: 12},
		{Kind: record.Barrier, Time: at(10), Took: 5000, Core: 1, Job: 7, Rank: 1, Number: 3},
		{Kind: record.Switch, Time: at(20), Core: 1, Job: 7, Rank: 1, Text: "again"}, // it has it already
		{Kind: record.Delivered, Time: at(21), Took: 1500, Core: 1, Job: 7, Rank: 1, Peer: 4, Node: 3},
		{Kind: record.End, Time: at(30), Took: time.Second, Core: 1, Job: 7, Rank: 1, Text: "exited with status 0"},
		{Kind: record.Switch, Time: at(31), Core: 1},
		{Kind: record.Switch, Time: at(40), Core: 1, Job: 8, Rank: 0}, // and nothing more of it
		{Kind: record.End, Time: at(41), Job: 8, Rank: 9},             // its beginning was not recorded
		{Kind: record.Fault, Time: at(42), Job: 8, Text: "it cannot \"go\" on\xff"},
	}, 4); err != nil {
		t.Fatal(err)
	}
	if err := w.Events(3, there(10), []record.Event{
		{Kind: record.Start, Time: there(1), Core: 2, Job: 7, Rank: 4},
		{Kind: record.Run, Time: there(5), Took: 2000, Slot: place(slot.Message), Job: 7, What: uint64(slot.Consume), Number: 2, Text: "accumulate"},
		{Kind: record.Arrived, Time: there(4), Took: 4000, Core: 2, Job: 7, Rank: 4, Peer: 1, Size: 8, What: uint64(slot.Consume), Number: 12},
		{Kind: record.Run, Time: there(6), Took: 3000, Slot: 200, Job: 7, What: 77, Number: 2}, // it had to wait for the first
		{Kind: record.Forwarded, Time: there(8.5), Core: 2, Job: 7, Rank: 4, Peer: 1, Node: 0, Number: 5},
		{Kind: record.Fault, Time: there(9), Job: 7, Number: 2, Text: "kind=memory"},
		{Kind: record.Called, Time: there(9), Took: 500, Slot: place(slot.Message), Job: 7, What: uint64(slot.Drop), Number: 2, Peer: 5, Text: "accumulate"},
	}, 0); err != nil {
		t.Fatal(err)
	}
	w.Gap(3, there(50), there(60), "the node kernel was started again")
	if err := w.Events(3, there(70), []record.Event{ // a rank that began to run earlier is repeated
		{Kind: record.Start, Time: there(1), Core: 2, Job: 7, Rank: 4},
		{Kind: record.Switch, Time: there(1), Core: 2, Job: 7, Rank: 4, Text: "it is alone"},
		{Kind: record.End, Time: there(65), Core: 2, Job: 7, Rank: 4},
		{Kind: record.Switch, Time: there(70), Core: 2},
	}, 0); err != nil {
		t.Fatal(err)
	}
	w.SetDrift(3, -7)
	summaries, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	trace, err := tracetest.Parse(out.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	want := []string{
		"0 job 7 rank 1: X 2.500+0.001 send to rank 4",
		"0 job 7 rank 1: s 2.500 message 7:0>3:12",
		"0 job 7 rank 1: X 10.000+5.000 barrier 3",
		"0 job 7 rank 1: i 22.500 delivered late",
		"0 job 7 rank 1: X 0.000+30.000 runs",
		"0 core 1: X 1.000+30.000 job 7 rank 1",
		"0 node kernel: i 42.000 fault",
		"3 extension 3.2: X 5.000+2.000 accumulate",
		"3 messages of job 7: X 4.000+4.000 message for rank 4: CONSUME",
		"3 messages of job 7: f 4.000 message 7:0>3:12",
		"3 extension 3.2: X 7.000+2.000 run",
		"3 messages of job 7: X 8.500+0.001 forward to rank 1",
		"3 messages of job 7: s 8.500 message 7:3>0:5",
		"3 extension 3.2: i 9.000 fault",
		"3 extension 3.2: X 9.000+0.500 accumulate by extension 3.5",
		"3 job 7 rank 4: X 1.000+49.000 runs",
		"3 node kernel: X 50.000+10.000 nothing is known",
		"3 job 7 rank 4: X 60.000+5.000 runs",
		"3 core 2: X 60.000+10.000 job 7 rank 4",
		"0 core 1: X 40.000+2.000 job 8 rank 0",
	}
	if got := lines(trace); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the trace has\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	nodes := trace.Other.Nodes
	if len(nodes) != 2 || len(summaries) != 2 || nodes[0].Lost != 4 || nodes[0].Events != 12 || nodes[0].ClockAhead != 100e9 || nodes[0].ClockError != 1000 ||
		nodes[1].Node != 3 || nodes[1].ClockDrift != -7 || len(nodes[1].Gaps) != 1 || nodes[1].Gaps[0].To != 60 || summaries[0].Lost != 4 {
		t.Errorf("otherData: %+v", trace.Other)
	}
	if trace.Other.Begun != "2001-09-09T01:46:40.000000005Z" {
		t.Errorf("it began %s", trace.Other.Begun)
	}
}

func TestEmpty(t *testing.T) {
	var out bytes.Buffer
	if _, err := NewWriter(&out, time.Now()).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tracetest.Parse(out.Bytes()); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// full is a device without room.
type full struct{}

var errFull = errors.New("no room")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestNoRoom(t *testing.T) {
	w := NewWriter(full{}, time.Now())
	w.SetClock(0, Clock{})
	var err error
	for range 10_000 {
		if err = w.Events(0, 1, []record.Event{{Kind: record.Fault, Text: "some text"}}, 0); err != nil {
			break
		}
	}
	if _, last := w.Close(); !errors.Is(err, errFull) || !errors.Is(last, errFull) {
		t.Errorf("%v, %v", err, last)
	}
}

// The check itself detects errors.
func TestCheck(t *testing.T) {
	head := `{"displayTimeUnit":"ns","traceEvents":[{"name":"process_name","ph":"M","ts":0,"pid":1,"tid":0,"args":{"name":"node0"}},
		{"name":"thread_name","ph":"M","ts":0,"pid":1,"tid":1,"args":{"name":"core 1"}},`
	tail := `],"otherData":{}}`
	for name, c := range map[string]struct{ events, says string }{
		"phase":       {`{"name":"a","cat":"c","ph":"Q","ts":1,"pid":1,"tid":1}`, "phase"},
		"field":       {`{"name":"a","cat":"c","ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"color":"red"}`, "unknown field"},
		"no time":     {`{"name":"a","cat":"c","ph":"X","dur":1,"pid":1,"tid":1}`, "no time"},
		"no duration": {`{"name":"a","cat":"c","ph":"X","ts":1,"pid":1,"tid":1}`, "dur"},
		"no thread":   {`{"name":"a","cat":"c","ph":"X","ts":1,"dur":1,"pid":1,"tid":2}`, "without a name"},
		"scope":       {`{"name":"a","cat":"c","ph":"i","ts":1,"pid":1,"tid":1,"s":"x"}`, "scope"},
		"overlap":     {`{"name":"a","cat":"c","ph":"X","ts":1,"dur":3,"pid":1,"tid":1},{"name":"b","cat":"c","ph":"X","ts":2,"dur":3,"pid":1,"tid":1}`, "ends after"},
		"loose arrow": {`{"name":"a","cat":"c","ph":"s","ts":1,"pid":1,"tid":1,"id":"7"}`, "attached to nothing"},
		"back in time": {`{"name":"a","cat":"c","ph":"X","ts":1,"dur":1,"pid":1,"tid":1},{"name":"a","cat":"c","ph":"X","ts":5,"dur":1,"pid":1,"tid":1},
			{"name":"a","cat":"c","ph":"s","ts":5,"pid":1,"tid":1,"id":"7"},{"name":"a","cat":"c","ph":"f","bp":"e","ts":1,"pid":1,"tid":1,"id":"7"}`, "before it begins"},
		"two names": {`{"name":"thread_name","ph":"M","ts":0,"pid":1,"tid":1,"args":{"name":"core 2"}}`, "two names"},
	} {
		if _, err := tracetest.Parse([]byte(head + c.events + tail)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever a node says, the trace is one that can be read, or there is none.
func FuzzEvents(f *testing.F) {
	e := record.Event{Kind: record.Arrived, Time: 5, Took: 6, Job: 7, Rank: 8, What: 1, Number: 3, Text: "text"}
	for kind := record.Switch; kind <= record.Called; kind++ {
		e.Kind = kind
		f.Add(e.Append(nil), int64(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, ahead int64) {
		events, err := record.Parse(b)
		if err != nil {
			return
		}
		var out bytes.Buffer
		w := NewWriter(&out, time.Unix(0, 0))
		w.SetClock(0, Clock{Ahead: time.Duration(ahead / 4)})
		if err := w.Events(0, 1, events, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := tracetest.Readable(out.Bytes()); err != nil {
			t.Errorf("%v\n%s", err, out.String())
		}
	})
}

// What it costs to write an event of a message.
func BenchmarkEvents(b *testing.B) {
	w := NewWriter(new(nowhere), time.Unix(0, 0))
	w.SetClock(0, Clock{})
	e := []record.Event{{Kind: record.Arrived, Time: 5, Took: 6, Job: 7, Rank: 8, What: 1, Number: 3}}
	for b.Loop() {
		w.Events(0, 1, e, 0)
	}
}

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
