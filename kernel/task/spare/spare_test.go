package spare

import (
	"math/rand/v2"
	"testing"
	"time"

	"margay/internal/check"
)

// world is a node as a plain model, with its invariants: processes that start, die and are given to
// jobs.
type world struct {
	t   *testing.T
	r   *rand.Rand
	m   *Machine
	now time.Time

	alive    map[Serial]bool // spares that no launch has got: true when ready
	ready    time.Time       // when the last spare became ready
	given    map[Serial]bool
	started  Serial
	launches int // under way
	running  int // jobs whose launch is over

	quiet    time.Time // until when a spare would disturb the ranks of the last job that has started or ended
	unused   int       // spares since the last used one that could not be used
	unusedAt time.Time
	closed   bool
	wake     time.Time
}

var limits = Limits{Start: 30 * time.Second, Settle: 50 * time.Millisecond, FirstPause: 100 * time.Millisecond, LastPause: time.Minute}

// step asks the machine what to do, does it, and checks that it may be done.
func (w *world) step() {
	for range 3 {
		a := w.m.Step(w.now)
		w.wake = a.Wake
		if a.Kill != 0 {
			if _, ok := w.alive[a.Kill]; !ok {
				w.t.Errorf("kills spare %d, which is not there", a.Kill)
			}
			delete(w.alive, a.Kill)
			w.failed()
		}
		if a.Start == 0 {
			break
		}
		w.start(a.Start)
	}
	if a := w.m.Step(w.now); a.Start != 0 || a.Kill != 0 {
		w.t.Errorf("does %+v when nothing has happened", a)
	}
	if len(w.alive) > 1 {
		w.t.Errorf("%d spares at a time", len(w.alive))
	}
	if !w.wake.IsZero() && !w.wake.After(w.now) {
		w.t.Errorf("wakes at %v, which is now or before", w.wake)
	}
	if len(w.alive) == 0 && w.launches == 0 && !w.closed && w.wake.Sub(w.now) > max(limits.Settle+mostRest, pause(w.unused)) {
		w.t.Errorf("waits for %v after %d failures", w.wake.Sub(w.now), w.unused)
	}
}

func (w *world) start(s Serial) {
	switch {
	case s != w.started+1:
		w.t.Errorf("spare %d follows %d", s, w.started)
	case w.closed:
		w.t.Error("starts a spare when closed")
	case w.launches > 0:
		w.t.Error("starts a spare during a launch")
	case len(w.alive) > 0:
		w.t.Error("starts a second spare")
	case w.now.Before(w.quiet):
		w.t.Error("starts a spare when ranks have just started, or other nodes need the processor")
	case w.unused > 0 && w.now.Sub(w.unusedAt) < pause(w.unused):
		w.t.Errorf("starts a spare %v after the failure of %d", w.now.Sub(w.unusedAt), w.unused)
	}
	w.started = s
	w.alive[s] = false
	if w.r.IntN(10) == 0 {
		w.die()
		w.m.Died(w.now, s)
	}
}

// pause is the least pause after so many failures.
func pause(failures int) time.Duration {
	p := limits.FirstPause
	for range failures - 1 {
		p = min(2*p, limits.LastPause)
	}
	return p
}

func (w *world) failed() {
	w.unused++
	w.unusedAt = w.now
}

// one returns the spare that is there, 0 for none.
func (w *world) one() Serial {
	for s := range w.alive {
		return s
	}
	return 0
}

// die ends the spare that is there. If it has waited for long, failures before it no longer count.
func (w *world) die() {
	s := w.one()
	if w.alive[s] && w.now.Sub(w.ready) > limits.LastPause {
		w.unused = 0
	}
	delete(w.alive, s)
	w.failed()
}

// becomesReady makes the spare that is there ready.
func (w *world) becomesReady(s Serial) {
	if !w.alive[s] {
		w.ready = w.now
	}
	w.alive[s] = true
	w.m.Ready(w.now, s)
}

// event has something happen.
func (w *world) event() {
	s := w.one()
	switch w.r.IntN(8) {
	case 0:
		w.launch()
	case 1: // a launch ends well
		if w.launches > 0 {
			w.launches--
			r := w.rest()
			w.m.Launched(w.now, r)
			w.quiet = w.now.Add(limits.Settle + r.Launched)
			w.running++
		}
	case 2: // a launch fails
		if w.launches > 0 {
			w.endLaunch()
		}
	case 3:
		if w.running > 0 {
			w.running--
			r := w.rest()
			w.m.Ended(w.now, false, r)
			w.quiet = w.now.Add(r.Ended)
		}
	case 4, 5:
		if s != 0 {
			w.becomesReady(s)
		}
		if late := Serial(w.r.Uint64N(uint64(w.started) + 1)); late != s {
			w.m.Ready(w.now, late)
		}
	case 6:
		if s != 0 && w.r.IntN(5) == 0 {
			w.die()
			w.m.Died(w.now, s)
		}
		if w.started > 0 && w.one() != w.started {
			w.m.Died(w.now, w.started) // late news
		}
	case 7:
		w.now = w.now.Add([]time.Duration{time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond, 10 * time.Second}[w.r.IntN(4)])
		if !w.wake.IsZero() && w.r.IntN(2) == 0 && w.now.Before(w.wake) {
			w.now = w.wake
		}
	}
}

func (w *world) launch() {
	s := w.m.Launch()
	w.launches++
	if s == 0 {
		if one := w.one(); one != 0 && w.alive[one] {
			w.t.Errorf("a launch does not get spare %d, which is ready", one)
		}
		return
	}
	if !w.alive[s] || w.given[s] {
		w.t.Errorf("a launch gets spare %d: %v, given %v", s, w.alive, w.given)
	}
	delete(w.alive, s)
	w.given[s] = true
	well := w.r.IntN(4) > 0
	w.m.Used(w.now, well)
	if well {
		w.unused = 0
	} else {
		w.failed()
	}
}

// endLaunch ends a launch that fails.
func (w *world) endLaunch() {
	w.launches--
	r := w.rest()
	w.m.Ended(w.now, true, r)
	w.quiet = w.now.Add(r.Ended)
}

// mostRest bounds the rest of a job.
const mostRest = 100 * time.Millisecond

// rest chooses the rest of a job: most have none.
func (w *world) rest() (r Rest) {
	if w.r.IntN(3) == 0 {
		r = Rest{Launched: time.Duration(w.r.Int64N(int64(mostRest))), Ended: time.Duration(w.r.Int64N(int64(mostRest)))}
	}
	return r
}

// settle lets all launches end and time pass; then a spare must be ready.
func (w *world) settle() {
	for w.launches > 0 {
		w.endLaunch()
	}
	for range 100 {
		w.step()
		if s := w.one(); s != 0 {
			w.becomesReady(s)
			return
		}
		if w.wake.IsZero() {
			break
		}
		w.now = w.wake
	}
	w.t.Error("there is no spare, and none will be")
}

// Random histories of launches, deaths and time.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	for n := range uint64(300) {
		w := &world{
			t: t, r: rand.New(rand.NewPCG(seed, n)), m: New(limits), now: time.Unix(1000, 0),
			alive: make(map[Serial]bool), given: make(map[Serial]bool),
		}
		for range 200 {
			w.step()
			w.event()
		}
		w.step()
		w.settle()
		w.m.Close()
		w.closed = true
		w.step()
		if len(w.alive) > 0 {
			t.Error("a spare is left")
		}
		for range 50 {
			w.event()
			w.step()
		}
		if t.Failed() {
			t.Fatalf("in history %d", n)
		}
	}
}

// A spare that waited for long and then died says nothing about the next one.
func TestOldSpare(t *testing.T) {
	m, now := New(limits), time.Unix(1000, 0)
	for range 10 {
		s := m.Step(now).Start
		if s == 0 {
			t.Fatal("no spare is started")
		}
		m.Ready(now, s)
		now = now.Add(2 * limits.LastPause)
		m.Died(now, s)
		a := m.Step(now)
		if got := a.Wake.Sub(now); a.Start != 0 || got != limits.FirstPause {
			t.Fatalf("%+v, a pause of %v", a, got)
		}
		now = a.Wake
	}
}

// The nodes of a job on one host prepare for the next job in turns, and not while others may still
// launch this one. In a job that is one turn, no node waits.
func TestRestOf(t *testing.T) {
	for _, c := range []struct {
		place, nodes, processors int
		launched, ended          time.Duration
	}{
		{0, 1, 1, 0, 0},
		{63, 64, 2, 0, 0},
		{63, 65, 2, restEach / 2, 0},
		{64, 250, 2, 186 * restEach / 2, 32 * restEach},
		{999, 1000, 2, 936 * restEach / 2, 15 * 32 * restEach},
		{999, 1000, 64, 0, 0},
	} {
		if got, want := RestOf(c.place, c.nodes, c.processors), (Rest{Launched: c.launched, Ended: c.ended}); got != want {
			t.Errorf("place %d of %d on %d processors: %v, not %v", c.place, c.nodes, c.processors, got, want)
		}
	}
}
