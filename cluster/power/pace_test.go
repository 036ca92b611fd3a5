package power

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"margay/internal/check"
)

// Nodes that ask together get their turns in groups, with gaps. A gap is from the last turn of a
// group.
func TestPacer(t *testing.T) {
	now := time.Now()
	p := NewPacer(Pace{Nodes: 3, Gap: time.Minute})
	for i, c := range []struct{ asked, turn time.Duration }{
		{0, 0}, {0, 0}, {10 * time.Second, 10 * time.Second}, // a group
		{10 * time.Second, 70 * time.Second}, {20 * time.Second, 70 * time.Second}, {71 * time.Second, 71 * time.Second},
		{72 * time.Second, 131 * time.Second}, {300 * time.Second, 300 * time.Second},
	} {
		if got := c.asked + p.Turn(now.Add(c.asked)); got != c.turn {
			t.Errorf("turn %d is after %v, want %v", i, got, c.turn)
		}
	}
	for _, pace := range []Pace{{}, {Nodes: 1}, {Gap: time.Hour}, {Nodes: -1, Gap: -1}} {
		p := NewPacer(pace)
		for range 100 {
			if wait := p.Turn(now); wait != 0 {
				t.Fatalf("without a bound (%v) a node waits for %v", pace, wait)
			}
		}
	}
}

// However nodes ask, in no gap more than the bound are switched on, in the order in which they have
// asked, and no node waits without a reason.
func TestPacerModel(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 0))
	for range 200 {
		pace := Pace{Nodes: 1 + random.IntN(5), Gap: time.Duration(1 + random.IntN(1000))}
		p, now := NewPacer(pace), time.Now()
		var turns []time.Time
		for range 100 {
			now = now.Add(time.Duration(random.Int64N(1 + 2*int64(pace.Gap)/int64(pace.Nodes))))
			turn := now.Add(p.Turn(now))
			if n := len(turns); n > 0 && turn.Before(turns[n-1]) {
				t.Fatalf("%v: a turn before an earlier one", pace)
			} else if n >= pace.Nodes && turn.Sub(turns[n-pace.Nodes]) < pace.Gap {
				t.Fatalf("%v: %d turns within %v", pace, pace.Nodes+1, turn.Sub(turns[n-pace.Nodes]))
			} else if turn.After(now) && turn.Sub(turns[n-1]) > pace.Gap {
				t.Fatalf("%v: a node waits for longer than the gap after the last one", pace)
			}
			turns = append(turns, turn)
		}
	}
}

// A node that waits for its turn reports that until it has it. It gives up with ctx.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		turns := NewTurns(Pace{Nodes: 1, Gap: 25 * time.Second})
		var waits []time.Duration
		note := func() { waits = append(waits, time.Since(begin)) }
		for range 2 {
			if err := turns.Wait(t.Context(), note); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(begin); d != 25*time.Second || !slices.Equal(waits, []time.Duration{0, 10 * time.Second, 20 * time.Second}) {
			t.Errorf("the second node waits for %v, and says so after %v", d, waits)
		}
		gone := errors.New("the machine goes down")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		if err := turns.Wait(ctx, note); !errors.Is(err, gone) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// played is a driver that takes a second for everything.
type played struct {
	state State
	did   []Action
	blind bool
}

func (p *played) do(ctx context.Context, a Action, state State) error {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.did, p.state = append(p.did, a), state
	return nil
}

func (p *played) On(ctx context.Context) error    { return p.do(ctx, SwitchOn, On) }
func (p *played) Off(ctx context.Context) error   { return p.do(ctx, SwitchOff, Off) }
func (p *played) Reset(ctx context.Context) error { return p.do(ctx, Reset, On) }

func (p *played) Status(context.Context) (State, error) {
	if p.blind {
		return Unknown, ErrUnsupported
	}
	return p.state, nil
}

// Actions that give power take turns, which are not a part of their time. A node that is on is left
// as it is.
func TestTurnsCarry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, begin := NewTurns(Pace{Nodes: 1, Gap: time.Minute}), time.Now()
		for _, c := range []struct {
			name   string
			node   played
			action Action
			takes  time.Duration // all of it, the turn included
			did    []Action
		}{
			{"off", played{state: On}, SwitchOff, time.Second, []Action{SwitchOff}},
			{"on", played{state: Off}, SwitchOn, time.Second, []Action{SwitchOn}},
			{"on already", played{state: On}, SwitchOn, 0, nil},
			{"status", played{state: Off}, Look, 0, nil},
			{"reset", played{state: On}, Reset, time.Minute, []Action{Reset}},
			{"on, blind", played{blind: true}, SwitchOn, time.Minute, []Action{SwitchOn}},
		} {
			before := time.Now()
			_, err := turns.Carry(t.Context(), &c.node, c.action, 5*time.Second, func() {})
			if took := time.Since(before); err != nil || took != c.takes || !slices.Equal(c.node.did, c.did) {
				t.Errorf("%s after %v: did %v in %v, %v", c.name, before.Sub(begin), c.node.did, took, err)
			}
		}
		slow := &played{state: Off}
		if _, err := turns.Carry(t.Context(), slow, SwitchOn, time.Millisecond, func() {}); err == nil || err.Error() != "timed out after 1ms" {
			t.Errorf("an action that takes too long: %v", err)
		}
	})
}
