package power_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/power"
	"margay/internal/check"
)

// slow is a driver whose hardware takes some time to change, may refuse, and may never do it.
type slow struct {
	on      bool
	changes time.Time // when it has the state that it was asked for
	takes   time.Duration
	refuses error
	asked   int
}

func (s *slow) to(on bool) error {
	s.asked++
	if s.refuses == nil {
		s.on, s.changes = on, time.Now().Add(s.takes)
	}
	return s.refuses
}

func (s *slow) On(context.Context) error    { return s.to(true) }
func (s *slow) Off(context.Context) error   { return s.to(false) }
func (s *slow) Reset(context.Context) error { return s.to(true) }
func (s *slow) Status(context.Context) (power.State, error) {
	switch {
	case time.Now().Before(s.changes):
		return power.Unknown, nil
	case s.on:
		return power.On, nil
	}
	return power.Off, nil
}

// Whatever the hardware does, Carry ends, and succeeds only with the state that was asked for.
func TestCarry(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	late, refused := errors.New("timed out"), errors.New("refused")
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			s := &slow{on: r.IntN(2) == 0, takes: time.Duration(r.IntN(int(time.Minute)))}
			if r.IntN(8) == 0 {
				s.refuses = refused
			}
			was, action := s.on, []power.Action{power.SwitchOn, power.SwitchOff, power.Reset, power.Look}[r.IntN(4)]
			const within = 30 * time.Second
			ctx, cancel := context.WithTimeoutCause(t.Context(), within, late)
			defer cancel()
			began := time.Now()
			state, err := power.Carry(ctx, s, action)
			if took := time.Since(began); took > within {
				t.Errorf("it took %v", took)
			}
			want := map[power.Action]power.State{power.SwitchOn: power.On, power.SwitchOff: power.Off, power.Reset: power.On}[action]
			same := action == power.Look || action != power.Reset && was == (want == power.On)
			switch {
			case same && (err != nil || s.asked > 0 || (state == power.On) != was):
				t.Errorf("%s changes nothing: %v, %v, asked %d times", action, state, err, s.asked)
			case same:
			case action == power.Reset && !was:
				if err == nil || s.asked > 0 {
					t.Errorf("a reset of what is off: %v, asked %d times", err, s.asked)
				}
			case s.refuses != nil:
				if !errors.Is(err, refused) {
					t.Errorf("%s refused: %v", action, err)
				}
			case err == nil && state != want:
				t.Errorf("%s succeeds with %v", action, state)
			case err != nil && (!errors.Is(err, late) || s.takes < within-time.Second):
				t.Errorf("%s that takes %v: %v", action, s.takes, err)
			case err == nil && s.takes > within:
				t.Errorf("%s that takes %v succeeds", action, s.takes)
			}
		})
	}
	if _, err := power.Carry(t.Context(), new(slow), "explode"); err == nil {
		t.Error("an action that does not exist succeeds")
	}
}
