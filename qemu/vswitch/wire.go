package vswitch

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A Fault describes the faults injected between a port and its peer, in both directions. The zero
// value injects none.
type Fault struct {
	Loss  float64       // probability that a frame is lost, 0 to 1
	Delay time.Duration // of each frame; frames keep their order
	Rate  int64         // bytes per second that pass in each direction; 0 means no limit
	Cut   bool          // nothing passes, and what was delayed is lost
}

func (f Fault) validate() error {
	switch {
	case !(f.Loss >= 0 && f.Loss <= 1):
		return fmt.Errorf("loss %v, want 0 to 1", f.Loss)
	case f.Delay < 0:
		return fmt.Errorf("delay %v is negative", f.Delay)
	case f.Rate < 0:
		return fmt.Errorf("rate %d bytes/s is negative", f.Rate)
	}
	return nil
}

// A wire is one direction of the cable between a port and its peer. It applies the port's Fault.
type wire struct {
	deliver func(frame []byte) // the far end; called in order, must neither keep the frame nor wait
	fault   *atomic.Pointer[Fault]
	count   *counters
	limit   int // bytes of delayed frames

	waiting atomic.Bool // whether late is not empty

	mu     sync.Mutex
	rng    *rand.Rand
	late   []lateFrame // in the order of arrival and of due
	bytes  int         // of late
	busy   time.Time   // until when earlier frames occupy the wire at the fault's rate
	last   time.Time   // when the newest of late is due
	timer  *time.Timer
	closed bool
}

type lateFrame struct {
	due   time.Time
	frame []byte
}

// send passes a frame on, now or later, or loses it.
func (w *wire) send(frame []byte) {
	f := w.fault.Load()
	if f == nil && !w.waiting.Load() {
		w.deliver(frame)
		return
	}
	if f == nil {
		f = &Fault{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		w.count.unsent.Add(1)
	case f.Cut:
		w.count.cutOff.Add(1)
	case f.Loss > 0 && w.rng.Float64() < f.Loss:
		w.count.lost.Add(1)
	default:
		w.sendAt(time.Now(), *f, frame)
	}
}

func (w *wire) sendAt(now time.Time, f Fault, frame []byte) {
	if w.bytes+len(frame) > w.limit {
		w.count.full.Add(1)
		return
	}
	due := now
	if f.Rate > 0 {
		start := later(now, w.busy)
		w.busy = start.Add(time.Duration(float64(len(frame)) / float64(f.Rate) * float64(time.Second)))
		due = w.busy
	}
	due = later(due.Add(f.Delay), w.last)
	if !due.After(now) && len(w.late) == 0 {
		w.deliver(frame)
		return
	}
	w.late = append(w.late, lateFrame{due, append([]byte(nil), frame...)})
	w.bytes += len(frame)
	w.last = due
	if len(w.late) == 1 {
		w.waiting.Store(true)
		w.timer = time.AfterFunc(due.Sub(now), w.release)
	}
}

// release delivers the frames that are due and sleeps until the next one is.
func (w *wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.fault.Load()
	cut := f != nil && f.Cut
	for now := time.Now(); len(w.late) > 0 && (cut || !w.late[0].due.After(now)); {
		frame := w.late[0].frame
		w.late = w.late[1:]
		w.bytes -= len(frame)
		if cut {
			w.count.cutOff.Add(1)
		} else {
			w.deliver(frame)
		}
	}
	if len(w.late) > 0 {
		w.timer.Reset(time.Until(w.late[0].due))
		return
	}
	w.late = nil
	w.waiting.Store(false)
}

// close discards delayed and future frames.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.count.unsent.Add(uint64(len(w.late)))
	w.late = nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
