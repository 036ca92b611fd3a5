package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"margay/internal/check"
)

// Events happen in the order of their times, those of one time in the order in which they were
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

// Processors do work in the order of its arrival, and each of them one thing at a time.
func TestProcessors(t *testing.T) {
	p := make(processors, 2)
	for i, c := range []struct{ now, work, done time.Duration }{{0, 10, 10}, {0, 4, 4}, {1, 4, 8}, {2, 1, 9}, {20, 1, 21}, {20, 5, 25}, {20, 1, 22}} {
		if done := p.take(c.now, c.work); done != c.done {
			t.Errorf("work %d is done at %d, not at %d", i, done, c.done)
		}
	}
}
