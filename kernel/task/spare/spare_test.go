package spare

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"margay/internal/check"
)

// world is a node as a plain model, with its invariants: processes that start, die, are given to
// jobs and come back from them.
type world struct {
	t   *testing.T
	r   *rand.Rand
	m   *Machine
	now time.Time

	alive    map[Serial]*one // spares that no launch has got
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

// one is a spare of the world.
type one struct {
	ready bool
	since time.Time // when it became ready
	owner string
}

var limits = Limits{
	Start: 30 * time.Second, Settle: 50 * time.Millisecond, FirstPause: 100 * time.Millisecond, LastPause: time.Minute,
	Idle: 5 * time.Second, Most: 4,
}

// step asks the machine what to do, does it, and checks that it may be done.
func (w *world) step() {
	for range 3 {
		a := w.m.Step(w.now)
		w.wake = a.Wake
		for _, s := range a.Kill {
			w.kill(s)
		}
		if a.Start == 0 {
			break
		}
		w.start(a.Start)
	}
	if a := w.m.Step(w.now); a.Start != 0 || a.Kill != nil {
		w.t.Errorf("does %+v when nothing has happened", a)
	}
	if len(w.alive) > limits.Most+1 {
		w.t.Errorf("%d spares at a time", len(w.alive))
	}
	for s, x := range w.alive {
		if len(w.waiting()) > 1 && x.ready && w.now.Sub(x.since) >= limits.Idle {
			w.t.Errorf("spare %d still waits beside others", s)
		}
	}
	if !w.wake.IsZero() && !w.wake.After(w.now) {
		w.t.Errorf("wakes at %v, which is now or before", w.wake)
	}
	if len(w.alive) == 0 && w.launches == 0 && !w.closed && w.wake.Sub(w.now) > max(limits.Settle+mostRest, pause(w.unused)) {
		w.t.Errorf("waits for %v after %d failures", w.wake.Sub(w.now), w.unused)
	}
}

// kill ends a spare that the machine gives up.
func (w *world) kill(s Serial) {
	x := w.alive[s]
	switch {
	case x == nil:
		w.t.Fatalf("kills spare %d, which is not there", s)
	case !x.ready:
		if !w.closed && w.now.Sub(x.since) < limits.Start {
			w.t.Errorf("kills spare %d, which is being started", s)
		}
		w.failed()
	case w.closed:
	case len(w.waiting()) < 2 || w.now.Sub(x.since) < limits.Idle:
		w.t.Errorf("kills spare %d, which is not too many", s)
	}
	for other, y := range w.alive {
		if x.ready && y.ready && other < s && y.since.Before(x.since) {
			w.t.Errorf("kills spare %d before %d, which is older", s, other)
		}
	}
	delete(w.alive, s)
}

// waiting returns the spares that are ready.
func (w *world) waiting() (ready []Serial) {
	for s, x := range w.alive {
		if x.ready {
			ready = append(ready, s)
		}
	}
	return ready
}

// comesBack offers the init of a job.
func (w *world) comesBack() {
	owner := owners[w.r.IntN(len(owners))]
	ready := len(w.waiting())
	s := w.m.Return(w.now, owner)
	if wanted := !w.closed && ready < limits.Most; (s != 0) != wanted {
		w.t.Errorf("an init that comes back to %d spares becomes spare %d", ready, s)
	}
	if s == 0 {
		return
	}
	if s != w.started+1 {
		w.t.Errorf("spare %d follows %d", s, w.started)
	}
	w.started = s
	w.alive[s] = &one{ready: true, since: w.now, owner: owner}
}

// owners have jobs.
var owners = []string{"a", "b"}

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
	w.alive[s] = &one{since: w.now}
	if w.r.IntN(10) == 0 {
		w.die(s)
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

// any returns a spare that is there, 0 for none.
func (w *world) any() Serial {
	if len(w.alive) == 0 {
		return 0
	}
	all := slices.Sorted(maps.Keys(w.alive))
	return all[w.r.IntN(len(all))]
}

// die ends a spare. If it has waited for long, failures before it no longer count.
func (w *world) die(s Serial) {
	if x := w.alive[s]; x.ready && w.now.Sub(x.since) > limits.LastPause {
		w.unused = 0
	}
	delete(w.alive, s)
	w.failed()
}

// becomesReady makes a spare ready.
func (w *world) becomesReady(s Serial) {
	if x := w.alive[s]; !x.ready {
		x.ready, x.since = true, w.now
	}
	w.m.Ready(w.now, s)
}

// event has something happen.
func (w *world) event() {
	s := w.any()
	switch w.r.IntN(9) {
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
			if w.r.IntN(2) == 0 {
				w.comesBack()
			}
			r := w.rest()
			w.m.Ended(w.now, false, r)
			w.quiet = w.now.Add(r.Ended)
		}
	case 4, 5:
		if s != 0 {
			w.becomesReady(s)
		}
		if late := Serial(w.r.Uint64N(uint64(w.started) + 1)); w.alive[late] == nil {
			w.m.Ready(w.now, late)
		}
	case 6:
		if s != 0 && w.r.IntN(5) == 0 {
			w.die(s)
			w.m.Died(w.now, s)
		}
		if w.started > 0 && w.alive[w.started] == nil {
			w.m.Died(w.now, w.started) // late news
		}
	case 7, 8:
		w.now = w.now.Add([]time.Duration{time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond, 10 * time.Second}[w.r.IntN(4)])
		if !w.wake.IsZero() && w.r.IntN(2) == 0 && w.now.Before(w.wake) {
			w.now = w.wake
		}
	}
}

func (w *world) launch() {
	owner := owners[w.r.IntN(len(owners))]
	s := w.m.Launch(owner)
	w.launches++
	if s == 0 {
		for other, x := range w.alive {
			if x.ready && (x.owner == "" || x.owner == owner) {
				w.t.Errorf("a launch of %s does not get spare %d of %q, which is ready", owner, other, x.owner)
			}
		}
		return
	}
	if x := w.alive[s]; x == nil || !x.ready || w.given[s] || x.owner != "" && x.owner != owner {
		w.t.Fatalf("a launch of %s gets spare %d: %+v, given %v", owner, s, x, w.given)
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
		if s := w.any(); s != 0 {
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
			alive: make(map[Serial]*one), given: make(map[Serial]bool),
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
// launch this one. After the end of a job that is one turn, no node waits.
func TestRestOf(t *testing.T) {
	for _, c := range []struct {
		place, nodes, processors int
		launched, ended          time.Duration
	}{
		{0, 1, 1, 0, 0},
		{15, 16, 2, 15 * restMeet / 2, 0},
		{63, 64, 2, 63 * restMeet / 2, 0},
		{63, 65, 2, 64 * restMeet / 2, 0},
		{64, 250, 2, 249 * restMeet / 2, 32 * restEach},
		{999, 1000, 2, 999 * restMeet / 2, 15 * 32 * restEach},
		{999, 1000, 64, 999 * restMeet / 64, 0},
	} {
		if got, want := RestOf(c.place, c.nodes, c.processors), (Rest{Launched: c.launched, Ended: c.ended}); got != want {
			t.Errorf("place %d of %d on %d processors: %v, not %v", c.place, c.nodes, c.processors, got, want)
		}
	}
}
