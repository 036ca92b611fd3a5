package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Event is something that happens at a simulated time. Its meaning is the model's.
type Event struct {
	Kind  uint8
	Sends bool   // a message of this event leaves when the work for it is done
	Job   uint16 // the attempt that it belongs to: a model ignores events of an earlier one
	Node  int32
	Value int32
}

// entry is an event in a queue.
type entry struct {
	at    time.Duration
	order uint64 // of scheduling: events of one time happen in this order
	event Event
}

func (e entry) before(other entry) bool {
	return e.at < other.at || e.at == other.at && e.order < other.order
}

// queue is a binary heap: no entry is before its parent.
type queue []entry

func (q *queue) push(e entry) {
	h := append(*q, e)
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
	*q = h
}

// pop takes the first entry of a queue that is not empty.
func (q *queue) pop() entry {
	h := *q
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h[child].before(h[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	*q = h
	return first
}

// Engine is a queue of events and the simulated time, which begins at 0 and has no relation to any
// clock. Two engines with the same seed that get the same calls make the same events happen at the
// same times, on every machine: all arithmetic is of integers. It is not safe for concurrent use.
type Engine struct {
	now   time.Duration
	order uint64
	queue queue
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
	e.queue.push(entry{at, e.order, event})
}

// Next takes the next event, whose time becomes the simulated time. It returns false if there is
// none.
func (e *Engine) Next() (Event, bool) {
	if len(e.queue) == 0 {
		return Event{}, false
	}
	first := e.queue.pop()
	e.now = first.at
	return first.event, true
}

// Chance reports whether an event happens that happens in parts of a million cases.
func (e *Engine) Chance(parts uint32) bool { return parts > 0 && e.rng.Uint32N(1e6) < parts }
