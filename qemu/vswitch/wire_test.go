package vswitch

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// rig is a wire under test: in the bubble of synctest its time is a fake one.
type rig struct {
	wire
	cause atomic.Pointer[Fault]
	stats counters
	got   []byte          // first byte of each frame delivered
	at    []time.Duration // since the start
}

func newRig(seed uint64, f Fault) *rig {
	r := &rig{}
	start := time.Now()
	r.cause.Store(&f)
	r.fault, r.count, r.limit = &r.cause, &r.stats, 1000
	r.rng = rand.New(rand.NewPCG(seed, 0))
	r.deliver = func(frame []byte) {
		r.got = append(r.got, frame[0])
		r.at = append(r.at, time.Since(start))
	}
	return r
}

func (r *rig) sendByte(b byte, size int) {
	f := bytes.Repeat([]byte{b}, size)
	r.send(f)
	clear(f) // the wire must have copied what it keeps
}

// settle lets a second of the fake time pass and everything due in it happen.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestWireDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(0, Fault{Delay: 10 * time.Millisecond})
		r.sendByte('a', 20)
		time.Sleep(4 * time.Millisecond)
		r.sendByte('b', 20)
		time.Sleep(time.Millisecond)
		r.cause.Store(nil)
		r.sendByte('c', 20) // must not overtake
		settle()
		r.sendByte('d', 20)
		ms := time.Millisecond
		if want := []time.Duration{10 * ms, 14 * ms, 14 * ms, 1005 * ms}; string(r.got) != "abcd" || !slices.Equal(r.at, want) {
			t.Errorf("got %q at %v, want abcd at %v", r.got, r.at, want)
		}
	})
}

func TestWireRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(0, Fault{Rate: 100_000}) // 10 us a byte
		for _, b := range []byte("abcdefghijkl") {
			r.sendByte(b, 100)
		}
		settle()
		if string(r.got) != "abcdefghij" || r.stats.full.Load() != 2 {
			t.Errorf("got %q, %d dropped; 1000 bytes fit the queue", r.got, r.stats.full.Load())
		}
		for i, at := range r.at {
			if want := time.Duration(i+1) * time.Millisecond; at != want {
				t.Errorf("frame %d at %v, want %v", i, at, want)
			}
		}
	})
}

func TestWireCutLosesWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(0, Fault{Delay: 10 * time.Millisecond})
		r.sendByte('a', 20)
		r.cause.Store(&Fault{Cut: true})
		r.sendByte('b', 20)
		settle()
		r.cause.Store(nil)
		r.sendByte('c', 20)
		if string(r.got) != "c" || r.stats.cutOff.Load() != 2 {
			t.Errorf("got %q, %d cut", r.got, r.stats.cutOff.Load())
		}
	})
}

func TestWireClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(0, Fault{Delay: time.Millisecond})
		r.sendByte('a', 20)
		r.close()
		r.sendByte('b', 20)
		settle()
		if len(r.got) != 0 || r.stats.unsent.Load() != 2 {
			t.Errorf("got %q, %d unsent", r.got, r.stats.unsent.Load())
		}
	})
}

func TestWireLossIsSeeded(t *testing.T) {
	run := func(seed uint64) string {
		r := newRig(seed, Fault{Loss: 0.5})
		for i := range 200 {
			r.sendByte(byte(i), 20)
		}
		if lost := r.stats.lost.Load(); lost+uint64(len(r.got)) != 200 || lost < 60 || lost > 140 {
			t.Errorf("seed %d: %d of 200 lost", seed, lost)
		}
		return string(r.got)
	}
	first, again, other := run(1), run(1), run(2)
	if first != again {
		t.Error("the same seed lost other frames")
	}
	if first == other {
		t.Error("two seeds lost the same frames")
	}
}
