package timer

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"margay/ext/timer/heartbeat"
	"margay/internal/check"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
	"margay/nimble/engine/portable"
	"margay/nimble/state"
)

// node is a manager whose timers run.
func node(t *testing.T) (*extension.Manager, *Timers) {
	t.Helper()
	check.Leaks(t)
	m, err := extension.NewManager(portable.New(), 1, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	timers := New(5, m, t.Logf)
	t.Cleanup(timers.Close)
	return m, timers
}

func insert(t *testing.T, s *extension.Set, r extension.Request) *extension.Extension {
	t.Helper()
	x, err := s.Insert(r)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// beats reads what heartbeat has counted.
func beats(t *testing.T, x *extension.Extension) (h heartbeat.State) {
	t.Helper()
	err := x.Lend(heartbeat.Map, func(m *state.Map) (err error) {
		h, err = heartbeat.Read(m.Memory().Bytes())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestIntervals(t *testing.T) {
	m, _ := node(t)
	s := m.Open(7, 1<<20)
	x := insert(t, s, extension.Request{Object: heartbeat.Object, Settings: []extension.Setting{
		{Name: heartbeat.Interval, Value: uint64(2 * time.Millisecond)}, {Name: heartbeat.Beats, Value: 20},
	}})
	check.Await(t, "the last beat", func() bool { return beats(t, x).Beats == 20 })
	h := beats(t, x)
	if took, n := time.Duration(h.Last-h.First), 19+h.Missed; took < time.Duration(n)*2*time.Millisecond-time.Millisecond {
		t.Errorf("%d intervals of 2 ms in %v", n, took)
	}
	runs := x.Stats().Runs
	time.Sleep(20 * time.Millisecond)
	if now := x.Stats().Runs; runs != 20 || now != runs {
		t.Errorf("it has stopped after %d runs, and then was run %d times", runs, now-runs)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// An extension that is removed is not run again, and neither is one whose job has ended, whatever
// its interval.
func TestRemoved(t *testing.T) {
	m, _ := node(t)
	always := extensiontest.Program{Section: "timer", Name: "always", Code: []string{"mov r2, 1000000", "stxdw [r1+32], r2", "mov r0, 0", "exit"}}
	seldom := extensiontest.Program{Section: "timer", Name: "seldom", Code: []string{"mov r2, -1", "stxdw [r1+32], r2", "mov r0, 0", "exit"}}
	s := m.Open(7, 1<<20)
	request := func(p extensiontest.Program) extension.Request {
		return extension.Request{Object: extensiontest.Object(t, p)}
	}
	a, b, machines := insert(t, s, request(always)), insert(t, s, request(seldom)), insert(t, m.Machine(), request(always))
	check.Await(t, "runs", func() bool { return a.Stats().Runs > 3 && b.Stats().Runs > 0 && machines.Stats().Runs > 3 })
	if err := m.Remove(a.Handle(), "a test"); err != nil {
		t.Fatal(err)
	}
	runs, others := a.Stats().Runs, machines.Stats().Runs
	check.Await(t, "the machine's to go on", func() bool { return machines.Stats().Runs > others+10 })
	if now := a.Stats().Runs; now != runs {
		t.Errorf("it was run %d times after it was removed", now-runs)
	}
	if runs := b.Stats().Runs; runs != 1 {
		t.Errorf("the one with an endless interval was run %d times", runs)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Machine().Close(); err != nil {
		t.Error(err)
	}
}

// An extension gets true times, and a slow one gets the number of missed intervals.
func TestContext(t *testing.T) {
	m, _ := node(t)
	for what, want := range map[string]struct {
		offset int
		value  string
	}{"node": {0, "5"}, "job": {4, "9"}, "runs": {16, "0"}, "interval": {32, fmt.Sprint(uint64(time.Second))}} {
		load := "ldxdw"
		if want.offset < 8 {
			load = "ldxw"
		}
		// The right value is not a fault, and the wrong one is.
		p := extensiontest.Program{Section: "timer", Name: what, Code: []string{
			fmt.Sprintf("%s r0, [r1+%d]", load, want.offset), "mov r2, " + want.value, "sub r0, r2", "jeq r0, 0, +1", "mov r0, 99", "exit",
		}}
		s := m.Open(9, 1<<20)
		x := insert(t, s, extension.Request{Object: extensiontest.Object(t, p)})
		check.Await(t, "a run", func() bool { return x.Stats().Runs > 0 })
		if err := s.Close(); err != nil { // which waits for the run
			t.Error(err)
		}
		if faults := x.Stats().Faults; faults != 0 {
			t.Errorf("%s is not %s", what, want.value)
		}
	}
	if binary.Size(slot.TimerContext{}) != slot.TimerSize {
		t.Errorf("the context is encoded as %d bytes", binary.Size(slot.TimerContext{}))
	}
}
