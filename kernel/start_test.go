package kernel

import (
	"errors"
	"testing"
)

// A job starts once. serve, which may have missed the answer, gets the same one again.
func TestStartTwice(t *testing.T) {
	n, _ := node1(t, 1)
	failed := errors.New("it has no program")
	for _, c := range []struct {
		phase            Phase
		notStarted, want error
	}{
		{Running, nil, nil},
		{Ended, nil, nil},
		{Running, failed, failed},
		{Ending, nil, ErrPhase},
	} {
		j := n.prepared(t, 7, 1)
		j.phase, j.notStarted = c.phase, c.notStarted
		if err := j.start(t.Context()); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("in phase %d, after %v: %v", c.phase, c.notStarted, err)
		}
	}
}
