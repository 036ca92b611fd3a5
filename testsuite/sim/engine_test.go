package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"margay/internal/check"
)

// Events happen in the order of their times, and at one time in the order in which they were
// scheduled, also when events schedule others.
func TestOrder(t *testing.T) {
	seed := check.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	e := NewEngine(seed)
	scheduled := 0
	schedule := func() {
		e.At(e.Now()+time.Duration(rng.IntN(20)), Event{Value: int32(scheduled)})
		scheduled++
	}
	for range 100 {
		schedule()
	}
	happened, last, lastValue := 0, time.Duration(0), int32(-1)
	for {
		event, ok := e.Next()
		if !ok {
			break
		}
		if e.Now() < last || e.Now() == last && event.Value < lastValue {
			t.Fatalf("event %d at %v follows %d at %v", event.Value, e.Now(), lastValue, last)
		}
		happened, last, lastValue = happened+1, e.Now(), event.Value
		for scheduled < 5000 && rng.IntN(3) > 0 {
			schedule()
		}
	}
	if happened != scheduled || scheduled < 100 {
		t.Errorf("%d of %d events happened", happened, scheduled)
	}
}

// An event in the past is a defect of a model.
func TestNoPast(t *testing.T) {
	e := NewEngine(0)
	e.At(5, Event{})
	e.Next()
	e.At(5, Event{}) // now
	defer func() {
		if recover() == nil {
			t.Error("an event in the past is scheduled")
		}
	}()
	e.At(4, Event{})
}

// Works on a host share its processors alike, and none has more than one.
func TestHost(t *testing.T) {
	h := host{processors: 2}
	var got []time.Duration
	run := func(until time.Duration) {
		for {
			at, _, ok := h.next()
			if !ok || at > until {
				return
			}
			if e, ok := h.done(at); !ok || e.Value != int32(len(got)) {
				t.Fatalf("at %v, %v, %v is done", at, e, ok)
			}
			got = append(got, at)
		}
	}
	h.add(0, 30, Event{Value: 1}) // alone, and beside one other: a processor
	run(10)
	h.add(10, 10, Event{Value: 0})
	run(20)
	for i := range int32(4) { // with the first one, five share two processors
		h.add(20, 20+time.Duration(i), Event{Value: 2 + i})
	}
	run(time.Hour)
	// From 20 on, each has 2/5 until the first is done after 10; then four have half each.
	want := []time.Duration{20, 45, 65, 67, 68, 69}
	if !slices.Equal(got, want) {
		t.Errorf("works are done at %v, not at %v", got, want)
	}
}
