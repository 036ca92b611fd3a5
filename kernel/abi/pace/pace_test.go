package pace

import (
	"testing"
	"time"

	"margay/kernel/abi/wire"
)

// wait polls in vain, each poll taking some time, until the call would sleep. It returns for how
// long the call spun and yielded.
func wait(path uint32, poll time.Duration) (spun, yielded time.Duration, looks int) {
	var p Pace
	for clock := time.Hour; ; clock += poll {
		var now time.Duration
		if p.Looks(path) {
			now = clock
			looks++
		}
		switch p.Next(path, now) {
		case Sleep:
			return spun, yielded, looks
		case Spin:
			spun += poll
		case Yield:
			yielded += poll
		}
	}
}

func TestWaits(t *testing.T) {
	const poll = 50 * time.Nanosecond
	const slack = 2 * Each * poll
	near := func(a, b time.Duration) bool { return a >= b-slack && a <= b+slack }
	for _, c := range []struct {
		name           string
		path           uint32
		spins, yielded time.Duration
	}{
		{"alone", wire.PathSpin | wire.PathYield, First, All - First},
		{"shared", wire.PathYield, 0, First},
		{"scheduled", wire.PathDirect | wire.PathMeet, 0, 0},
		{"scheduled, and nonsense", wire.PathSpin, 0, 0},
	} {
		spun, yielded, looks := wait(c.path, poll)
		if !near(spun, c.spins) || !near(yielded, c.yielded) {
			t.Errorf("%s: it spun for %v and yielded for %v, want %v and %v", c.name, spun, yielded, c.spins, c.yielded)
		}
		if c.spins > 0 && looks > int(spun/poll)/Each+int(yielded/poll)+Each {
			t.Errorf("%s: it looked %d times at the clock", c.name, looks)
		}
	}
}

// One yield that takes long, because the others compute, is followed by sleep.
func TestLongYield(t *testing.T) {
	var p Pace
	for i, now := range []time.Duration{time.Second, time.Second + 3*time.Millisecond} {
		if !p.Looks(wire.PathYield) {
			t.Fatal("a rank that yields must look at the clock")
		}
		if got, want := p.Next(wire.PathYield, now), []Action{Yield, Sleep}[i]; got != want {
			t.Errorf("at %v: action %d, want %d", now, got, want)
		}
	}
}

// The way of waiting may change during a wait.
func TestPathChanges(t *testing.T) {
	var p Pace
	for i, c := range []struct {
		path uint32
		want Action
	}{{wire.PathSpin | wire.PathYield, Spin}, {wire.PathYield, Yield}, {0, Sleep}, {wire.PathYield, Yield}} {
		var now time.Duration
		if p.Looks(c.path) {
			now = time.Hour
		}
		if got := p.Next(c.path, now); got != c.want {
			t.Errorf("poll %d: action %d, want %d", i, got, c.want)
		}
	}
}

// A program that polls again and again in vain yields where ranks share a CPU, and nowhere else.
func TestPolled(t *testing.T) {
	for path, want := range map[uint32]bool{wire.PathYield: true, wire.PathYield | wire.PathSpin: false, 0: false} {
		var n uint32
		var yields bool
		for i := range 3 * InVain {
			if n, yields = Polled(n, path, false); yields != (want && i >= InVain-1) {
				t.Errorf("path %b, poll %d: yield %v", path, i+1, yields)
			}
		}
		if n, yields = Polled(n, path, true); n != 0 || yields {
			t.Errorf("path %b: it yields although it has handled a message", path)
		}
	}
}
