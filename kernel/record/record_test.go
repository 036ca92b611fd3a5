package record

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
)

func all(*Event) bool { return true }

// drain reads all there is behind a cursor.
func drain(t testing.TB, r *Recorder, c Cursor) (events []Event, lost uint64, _ Cursor) {
	t.Helper()
	for {
		b := r.Read(c, 1<<16, all)
		list, err := Parse(b.Events)
		if err != nil {
			t.Fatal(err)
		}
		events, lost, c = append(events, list...), lost+b.Lost, b.Cursor
		if !b.More {
			return events, lost, c
		}
	}
}

func TestOffAndOn(t *testing.T) {
	r := patient(3)
	r.Add(Event{Kind: Switch})
	r.Switch(0, 1, 7, 0, "")
	if r.On() || r.Begin() != 0 {
		t.Error("a recorder that nobody reads records")
	}
	if b := r.Read(Cursor{}, 1000, all); b.Events != nil || b.Cursor.Generation != 0 {
		t.Errorf("it has %+v", b)
	}
	if begins, err := r.Follow(1); !begins || err != nil || !r.On() {
		t.Fatal("it does not record")
	}
	var on []bool
	r.Watch(func(is bool) { on = append(on, is) })
	if !slices.Equal(on, []bool{true}) {
		t.Errorf("who watches later hears %v", on)
	}
	if begins, err := r.Follow(1); begins || err != nil {
		t.Error("reader 1 is new for a second time")
	}
	before := Now()
	r.Switch(0, 1, 7, 4, "it is alone")
	r.End(0, Event{Kind: Run}) // began while recording was off
	begin := r.Begin()
	r.End(begin, Event{Kind: Run, Job: 7, Number: 9, Core: 2})
	r.Add(Event{Kind: Fault, Core: 99, Job: 7, Text: "it broke"}) // no core of this node
	events, lost, _ := drain(t, r, Cursor{})
	if len(events) != 3 || lost != 0 {
		t.Fatalf("%d events, %d lost", len(events), lost)
	}
	for i, want := range []Event{
		{Kind: Fault, Job: 7, Text: "it broke"},
		{Kind: Switch, Core: 1, Job: 7, Rank: 4, Text: "it is alone"},
		{Kind: Run, Core: 2, Job: 7, Number: 9, Took: events[2].Took},
	} {
		if events[i].Time < before || events[i].Time > Now() {
			t.Errorf("event %d happened at %d", i, events[i].Time)
		}
		want.Time = events[i].Time
		if events[i] != want {
			t.Errorf("event %d is %+v, not %+v", i, events[i], want)
		}
	}
	if events[2].Time != begin {
		t.Errorf("the run began at %d, not %d", begin, events[2].Time)
	}
	r.Leave(1)
	if r.On() {
		t.Error("nobody reads it and it records")
	}
}

func TestNil(t *testing.T) {
	var r *Recorder
	r.Add(Event{Kind: Switch})
	r.Switch(0, 1, 7, 0, "")
	r.End(r.Begin(), Event{Kind: Run})
	if r.On() {
		t.Error("nothing records")
	}
}

// A late reader gets the current rank of each core, however old the switch.
func TestLateReader(t *testing.T) {
	r := patient(4)
	r.Follow(1)
	r.Switch(5, 1, 7, 3, "turns")
	r.Switch(5, 2, 7, 4, "turns")
	r.Switch(6, 2, 0, 0, "turns")
	for range 2 * len(r.rings.Load().rings[1].events) {
		r.Add(Event{Kind: Sent, Core: 1, Job: 7})
		r.Add(Event{Kind: Sent, Core: 2, Job: 7})
	}
	r.Follow(2)
	events, _, _ := drain(t, r, Cursor{})
	var cores []Event
	for _, e := range events {
		if e.Kind == Switch {
			cores = append(cores, e)
		}
	}
	if want := []Event{{Time: 5, Kind: Switch, Core: 1, Job: 7, Rank: 3, Text: "turns"}}; !slices.Equal(cores, want) {
		t.Errorf("told %+v, not %+v", cores, want)
	}
}

// Several follow, each at its own pace and with its own selection.
func TestReaders(t *testing.T) {
	r := patient(2)
	r.Follow(1)
	r.Follow(2)
	r.Switch(0, 1, 7, 0, "")
	_, _, slow := drain(t, r, Cursor{})
	r.Switch(0, 1, 8, 0, "")
	r.Switch(0, 0, 8, 1, "")
	list, _, _ := drain(t, r, slow)
	if len(list) != 2 || list[0].Rank != 1 || list[1].Job != 8 {
		t.Errorf("behind the first there are %+v", list)
	}
	b := r.Read(Cursor{}, 1000, func(e *Event) bool { return e.Job == 7 })
	if list, err := Parse(b.Events); err != nil || len(list) != 1 || !reflect.DeepEqual(b.Cursor.Positions, []uint64{1, 2}) {
		t.Errorf("of job 7 there are %+v, %v, and then %v", list, err, b.Cursor)
	}
	r.Leave(1)
	if !r.On() {
		t.Error("the other reader is still there")
	}
	r.Leave(2)
	r.Follow(3)
	if b := r.Read(slow, 1000, all); b.Cursor.Generation == slow.Generation || b.Events != nil {
		t.Errorf("recording was off in between, and the cursor %v goes on to %v", slow, b.Cursor)
	}
	r.Leave(3)
	for i := range uint64(MaxReaders) {
		r.Follow(i)
	}
	if _, err := r.Follow(MaxReaders); !errors.Is(err, ErrReaders) {
		t.Error("the number of readers is not bounded")
	}
	if _, err := r.Follow(0); err != nil {
		t.Error(err)
	}
}

// patient makes a recorder whose recording does not end because a busy machine takes long for a
// test.
func patient(cores int) *Recorder {
	r := New(cores)
	r.lease = time.Hour
	return r
}

// The oldest events give way, and are counted.
func TestOverwritten(t *testing.T) {
	r := patient(2)
	r.Follow(1)
	defer r.Leave(1)
	size := len(r.rings.Load().rings[0].events)
	for i := range size + 10 {
		r.Add(Event{Kind: Sent, Core: 1, Number: uint64(i)})
	}
	r.Switch(0, 0, 1, 2, "")
	if b := r.Read(Cursor{}, 4000, all); b.Lost != 0 {
		t.Errorf("who begins now has lost %d events", b.Lost)
	}
	begin := Cursor{Generation: r.rings.Load().generation, Positions: make([]uint64, 2)}
	b := r.Read(begin, 4000, all) // which is less than there is
	if b.Lost != 10 || !b.More || len(b.Events) > 4000+2*copied*fixed {
		t.Errorf("%d lost, %d bytes, more: %v", b.Lost, len(b.Events), b.More)
	}
	events, lost, _ := drain(t, r, begin)
	if len(events) != size+1 || lost != 10 {
		t.Fatalf("%d events, %d lost", len(events), lost)
	}
	for i, e := range events[1:] {
		if e.Number != uint64(i+10) {
			t.Fatalf("event %d has number %d", i, e.Number)
		}
	}
	for _, positions := range [][]uint64{{1 << 63, 1<<64 - 1}, {0}, make([]uint64, 100)} {
		b := r.Read(Cursor{Generation: b.Cursor.Generation, Positions: positions}, 1<<20, all)
		if len(b.Cursor.Positions) != 2 || b.Cursor.Positions[0] != 1 || b.Cursor.Positions[1] > uint64(size+10) {
			t.Errorf("the positions %v became %v", positions, b.Cursor)
		}
	}
}

// However many cores there are, memory is bounded.
func TestMemory(t *testing.T) {
	if unsafe.Sizeof(Event{}) != eventSize {
		t.Errorf("an event takes %d bytes, not %d", unsafe.Sizeof(Event{}), eventSize)
	}
	for _, cores := range []int{1, 2, 3, 9, 65} {
		size := len(newRings(1, cores).rings[0].events)
		if total := size * cores * eventSize; size < minRing || size&(size-1) != 0 || total > memory {
			t.Errorf("%d cores have %d events each, %d bytes in all", cores, size, total)
		}
	}
}

// Recording ends without readers.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(1)
		r.Follow(1)
		time.Sleep(Lease - time.Second)
		r.Follow(2)
		time.Sleep(Lease - time.Second)
		if !r.On() {
			t.Error("the second reader was there a moment ago")
		}
		time.Sleep(2 * time.Second)
		if r.On() {
			t.Error("nobody has read for long and it records")
		}
		r.Follow(1)
		if !r.On() {
			t.Error("it does not begin again")
		}
		time.Sleep(2 * Lease)
		if r.On() {
			t.Error("it does not end for a second time")
		}
	})
}

// Every event is read once or counted as lost, with concurrent writers.
func TestConcurrent(t *testing.T) {
	const writers, each = 8, 10_000
	r := patient(3)
	r.Follow(1)
	defer r.Leave(1)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				r.Add(Event{Kind: Arrived, Core: uint16(w % 3), Rank: id.Rank(w), Number: uint64(i), Text: "text"})
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	next := make(map[id.Rank]uint64)
	var total, lost uint64
	for c, last := (Cursor{Generation: r.rings.Load().generation, Positions: make([]uint64, 3)}), false; ; {
		events, l, after := drain(t, r, c)
		c, lost, total = after, lost+l, total+uint64(len(events))
		for _, e := range events {
			if e.Number < next[e.Rank] || e.Text != "text" || int(e.Core) != int(e.Rank)%3 {
				t.Fatalf("after number %d of writer %d comes %+v", next[e.Rank], e.Rank, e)
			}
			next[e.Rank] = e.Number + 1
		}
		if last {
			break
		}
		select {
		case <-done:
			last = true
		default:
		}
	}
	if total+lost != writers*each {
		t.Errorf("%d events were read and %d lost, of %d", total, lost, writers*each)
	}
}

// The clock is CLOCK_MONOTONIC.
func TestClock(t *testing.T) {
	for range 100 {
		var before, after unix.Timespec
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &before)
		now := int64(Now())
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &after)
		// The two clocks were related with the error of one reading.
		const slack = int64(time.Millisecond)
		if now < before.Nano()-slack || now > after.Nano()+slack {
			t.Fatalf("%d is not between %d and %d", now, before.Nano(), after.Nano())
		}
	}
}

func TestNothingWhenOff(t *testing.T) {
	r := New(2)
	if n := testing.AllocsPerRun(100, func() {
		r.Switch(0, 1, 7, 1, "why")
		r.End(r.Begin(), Event{Kind: Run, Job: 7})
	}); n != 0 {
		t.Errorf("%v allocations while recording is off", n)
	}
	r.Follow(1)
	defer r.Leave(1)
	if n := testing.AllocsPerRun(100, func() {
		r.Switch(0, 1, 7, 1, "why")
		r.End(r.Begin(), Event{Kind: Run, Job: 7})
	}); n != 0 {
		t.Errorf("%v allocations while recording is on", n)
	}
}

func TestEncoding(t *testing.T) {
	e := Event{1, 2, Fault, 4, 5, 6, 7, 8, 9, 10, 11, 12, "thirteen"}
	other := Event{Time: maxTime, Kind: Switch, Text: strings.Repeat("x", maxText+1)}
	b := other.Append(e.Append(nil))
	if len(b) != 2*fixed+8+maxText {
		t.Errorf("%d bytes", len(b))
	}
	other.Text = other.Text[:maxText]
	if list, err := Parse(b); err != nil || !reflect.DeepEqual(list, []Event{e, other}) {
		t.Errorf("%+v, %v", list, err)
	}
	bad := func(change func(b []byte) []byte) []byte { return change(e.Append(nil)) }
	for name, b := range map[string][]byte{
		"cut":           bad(func(b []byte) []byte { return b[:len(b)-1] }),
		"cut before":    bad(func(b []byte) []byte { return b[:fixed-1] }),
		"kind 0":        bad(func(b []byte) []byte { b[16] = 0; return b }),
		"kind":          bad(func(b []byte) []byte { b[16] = byte(kinds); return b }),
		"negative time": bad(func(b []byte) []byte { b[7] = 0x80; return b }),
		"negative took": bad(func(b []byte) []byte { b[15] = 0x80; return b }),
		"late":          bad(func(b []byte) []byte { b[7] = 0x21; return b }),
		"long":          bad(func(b []byte) []byte { b[15] = 0x21; return b }),
		"long text":     bad(func(b []byte) []byte { b[57] = 0xff; return append(b, make([]byte, 1<<16)...) }),
	} {
		if list, err := Parse(b); !errors.Is(err, ErrEncoding) {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	e := Event{1, 2, Fault, 4, 5, 6, 7, 8, 9, 10, 11, 12, "thirteen"}
	f.Add(e.Append(e.Append(nil)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := Parse(b)
		if err != nil {
			return
		}
		var again []byte
		for _, e := range list {
			again = e.Append(again)
		}
		if !bytes.Equal(b, again) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

// What an event costs.
func BenchmarkEvent(b *testing.B) {
	for _, on := range []bool{false, true} {
		r := New(3)
		if on {
			r.Follow(1)
		}
		state := map[bool]string{false: "off", true: "on"}[on]
		b.Run("switch/"+state, func(b *testing.B) {
			for i := range b.N {
				r.Switch(0, 1, 7, id.Rank(i), "a message has come")
			}
		})
		b.Run("run/"+state, func(b *testing.B) {
			for i := range b.N {
				r.End(r.Begin(), Event{Kind: Run, Core: 1, Job: 7, Number: uint64(i)})
			}
		})
		b.Run("contended/"+state, func(b *testing.B) {
			b.SetParallelism(4)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r.Switch(0, 1, 7, 1, "a message has come")
				}
			})
		})
		r.Leave(1)
	}
}
