package launches

import (
	"context"
	"testing"
	"time"
)

// Processes are at rest when for a window none has begun or ended, and they have used little
// processor time.
func TestStillness(t *testing.T) {
	const ms = time.Millisecond
	type look struct {
		at    time.Duration
		ids   []int
		used  time.Duration
		still bool
	}
	a, b := []int{1, 2}, []int{1, 3}
	for name, looks := range map[string][]look{
		"at once":               {{0, a, 0, false}, {25 * ms, a, 0, false}, {99 * ms, a, 25 * ms, false}, {100 * ms, a, 25 * ms, true}},
		"busy":                  {{0, a, 0, false}, {100 * ms, a, 26 * ms, false}, {150 * ms, a, 40 * ms, false}, {200 * ms, a, 41 * ms, true}},
		"another process":       {{0, a, 0, false}, {99 * ms, b, 0, false}, {198 * ms, b, 0, false}, {199 * ms, b, 0, true}},
		"a process that begins": {{0, a[:1], 0, false}, {50 * ms, a, 0, false}, {100 * ms, a, 0, false}, {150 * ms, a, 0, true}},
		"a process that ends":   {{0, a, 90 * ms, false}, {50 * ms, a[:1], 0, false}, {100 * ms, a[:1], 0, false}, {150 * ms, a[:1], 25 * ms, true}},
		"looked at seldom":      {{0, a, 0, false}, {time.Hour, a, 0, true}, {2 * time.Hour, b, 0, false}, {3 * time.Hour, b, time.Hour, false}},
	} {
		s := stillness{window: 100 * ms}
		for _, l := range looks {
			if got := s.add(Processes{time.Unix(0, 0).Add(l.at), l.ids, l.used}); got != l.still {
				t.Errorf("%s: after %v: %t", name, l.at, got)
			}
		}
	}
}

// A turn waits until all is at rest, and for processes that never rest until the patience ends.
func TestRestWait(t *testing.T) {
	now, looks := time.Unix(0, 0), 0
	r := Rest{Window: time.Microsecond, Patience: time.Hour, Look: func() (Processes, error) {
		now, looks = now.Add(time.Minute), looks+1
		return Processes{At: now, IDs: []int{min(looks, 3)}}, nil
	}}
	if atRest, err := r.Wait(context.Background()); !atRest || err != nil || looks != 4 {
		t.Errorf("%t, %v after %d looks", atRest, err, looks)
	}
	looks = 0
	r.Patience = 0
	if atRest, err := r.Wait(context.Background()); atRest || err != nil || looks > 3 {
		t.Errorf("%t, %v after %d looks", atRest, err, looks)
	}
}
