package launches

import (
	"context"
	"slices"
	"time"
)

// Processes are the processes of a measurement at a moment.
type Processes struct {
	At   time.Time
	IDs  []int         // in order
	Used time.Duration // their processor time since their start
}

// Rest is when a turn may begin.
type Rest struct {
	Window   time.Duration // for so long processes must be at rest
	Patience time.Duration // a turn waits no longer
	Look     func() (Processes, error)
}

// Processes at rest use at most this part of one processor: a machine of 1,000 hosted nodes uses a
// tenth for its heartbeats.
const idlePart = 4

// looksInWindow is how often processes are looked at in a window.
const looksInWindow = 4

// Wait waits until the processes are at rest: for the window none has begun or ended, and they have
// used little processor time. It returns false if they were not within the patience. An error is of
// Look, or the cause of ctx's end.
func (r Rest) Wait(ctx context.Context) (bool, error) {
	s := stillness{window: r.Window}
	for begun := time.Now(); ; {
		p, err := r.Look()
		if err != nil {
			return false, err
		}
		if s.add(p) {
			return true, nil
		}
		if time.Since(begun) > r.Patience {
			return false, nil
		}
		if _, err := Pause(r.Window / looksInWindow)(ctx); err != nil {
			return false, err
		}
	}
}

// Pause returns a Plan.Rest that only waits for so long.
func Pause(length time.Duration) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		select {
		case <-time.After(length):
			return true, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// stillness decides from looks at processes whether processes are at rest.
type stillness struct {
	window time.Duration
	seen   []Processes // all with the same processes, the first about a window ago
}

// add takes the processes of now, and reports whether the processes are at rest.
func (s *stillness) add(p Processes) bool {
	if n := len(s.seen); n > 0 && !slices.Equal(s.seen[n-1].IDs, p.IDs) {
		s.seen = nil
	}
	s.seen = append(s.seen, p)
	for len(s.seen) > 1 && p.At.Sub(s.seen[1].At) >= s.window {
		s.seen = s.seen[1:]
	}
	first := s.seen[0]
	passed := p.At.Sub(first.At)
	return passed >= s.window && p.Used-first.Used <= passed/idlePart
}
