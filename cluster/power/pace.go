package power

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Pace bounds how many nodes are switched on together: power supplies take several times their
// usual current at that moment, and nodes that boot need the same services. The zero value has
// no bound.
type Pace struct {
	Nodes int           // so many
	Gap   time.Duration // and then none for so long
}

// DefaultPace is for racks whose supplies are not known.
var DefaultPace = Pace{Nodes: 8, Gap: time.Second}

// Pacer gives nodes their turns to be switched on, in the order in which they ask. It is a state
// machine without input and output, and not safe for concurrent use.
type Pacer struct {
	pace  Pace
	last  time.Time // the last turn
	given int       // turns since the last gap
}

// NewPacer returns a Pacer that has given no turn.
func NewPacer(p Pace) *Pacer { return &Pacer{pace: p} }

// Turn returns how long the next node must wait for its turn.
func (p *Pacer) Turn(now time.Time) time.Duration {
	if p.pace.Nodes <= 0 || p.pace.Gap <= 0 {
		return 0
	}
	next := p.last.Add(p.pace.Gap)
	switch {
	case p.given == 0 || !now.Before(next):
		p.given, p.last = 1, now
	case p.given < p.pace.Nodes:
		p.given++
		if now.After(p.last) {
			p.last = now
		}
	default:
		p.given, p.last = 1, next
	}
	return p.last.Sub(now)
}

// Turns makes goroutines wait for the turns of a Pacer.
type Turns struct {
	mu    sync.Mutex
	pacer *Pacer
}

// NewTurns returns the turns of a pace.
func NewTurns(p Pace) *Turns { return &Turns{pacer: NewPacer(p)} }

// Wait takes a turn and waits for it, or for the end of ctx. If that takes a while, waits is called
// before, and again and again.
func (t *Turns) Wait(ctx context.Context, waits func()) error {
	t.mu.Lock()
	left := t.pacer.Turn(time.Now())
	t.mu.Unlock()
	turn := time.NewTimer(left)
	defer turn.Stop()
	again := time.NewTicker(waitsPause)
	defer again.Stop()
	if left > 0 {
		waits()
	}
	for {
		select {
		case <-turn.C:
			return nil
		case <-again.C:
			waits()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Carry carries out an action like the function Carry, within a time. An action that gives the node
// power waits for a turn before that time begins, unless the node is on. It is safe for concurrent
// use with different drivers.
func (t *Turns) Carry(ctx context.Context, d Driver, a Action, timeout time.Duration, waits func()) (State, error) {
	within := func(a Action) (State, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("timed out after %v", timeout))
		defer cancel()
		return Carry(ctx, d, a)
	}
	if a == SwitchOn {
		state, err := within(Look)
		if state == On || err != nil && !errors.Is(err, ErrUnsupported) {
			return state, err
		}
	}
	if a == SwitchOn || a == Reset {
		if err := t.Wait(ctx, waits); err != nil {
			return Unknown, err
		}
	}
	return within(a)
}

// waitsPause is the time between two reports of a node that waits for its turn.
const waitsPause = 10 * time.Second
