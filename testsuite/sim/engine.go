package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Event is something that happens at a simulated time. Its meaning is the model's.
type Event struct {
	Kind  uint8
	Job   uint8 // the attempt that it belongs to: a model ignores events of an earlier one
	Node  int32
	Value int32
}

// entry is an event in the queue.
type entry struct {
	at    time.Duration
	order uint64 // of scheduling: events of one time happen in this order
	event Event
}

func (e entry) before(other entry) bool {
	return e.at < other.at || e.at == other.at && e.order < other.order
}

// Engine is a queue of events and the simulated time, which begins at 0 and has no relation to any
// clock. Two engines with the same seed that get the same calls make the same events happen at the
// same times, on every machine: all arithmetic is of integers. It is not safe for concurrent use.
type Engine struct {
	now   time.Duration
	order uint64
	heap  []entry // binary: an entry is not before its parent
	rng   *rand.Rand
}

// NewEngine returns an engine without events.
func NewEngine(seed uint64) *Engine { return &Engine{rng: rand.New(rand.NewPCG(seed, 0))} }

// Now returns the simulated time.
func (e *Engine) Now() time.Duration { return e.now }

// At makes an event happen at a time, which must not have passed.
func (e *Engine) At(at time.Duration, event Event) {
	if at < e.now {
		panic(fmt.Sprintf("sim: an event at %v is scheduled at %v", at, e.now))
	}
	e.order++
	e.heap = append(e.heap, entry{at, e.order, event})
	for i := len(e.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !e.heap[i].before(e.heap[parent]) {
			break
		}
		e.heap[i], e.heap[parent] = e.heap[parent], e.heap[i]
		i = parent
	}
}

// Next takes the next event, whose time becomes the simulated time. It returns false if there is
// none.
func (e *Engine) Next() (Event, bool) {
	if len(e.heap) == 0 {
		return Event{}, false
	}
	first, last := e.heap[0], len(e.heap)-1
	e.heap[0] = e.heap[last]
	e.heap = e.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if e.heap[child].before(e.heap[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		e.heap[i], e.heap[least] = e.heap[least], e.heap[i]
		i = least
	}
	e.now = first.at
	return first.event, true
}

// Chance reports whether an event happens that happens in parts of a million cases.
func (e *Engine) Chance(parts uint32) bool { return parts > 0 && e.rng.Uint32N(1e6) < parts }
