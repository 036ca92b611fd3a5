// Package powertest has what the tests of drivers share: the hardware that they play, and the
// contract of a driver.
package powertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"margay/cluster/power"
)

// Patience bounds how long a test waits for a played controller.
const Patience = time.Minute

// Hardware is played by a test, behind a controller. It is safe for concurrent use.
type Hardware struct {
	mu     sync.Mutex
	on     bool
	resets int
}

// Do carries out an action, whatever the state of the hardware is.
func (h *Hardware) Do(a power.Action) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch a {
	case power.SwitchOn:
		h.on = true
	case power.SwitchOff:
		h.on = false
	case power.Reset:
		h.resets++
	}
}

// State returns whether the hardware is on, and how often it was reset.
func (h *Hardware) State() (on bool, resets int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on, h.resets
}

// Contract tests a driver of hardware that is off.
func Contract(t *testing.T, d power.Driver, h *Hardware) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for i, step := range []struct {
		action power.Action
		on     bool
		resets int
		err    bool
	}{
		{power.Look, false, 0, false},
		{power.SwitchOff, false, 0, false},
		{power.Reset, false, 0, true},
		{power.SwitchOn, true, 0, false},
		{power.SwitchOn, true, 0, false},
		{power.Look, true, 0, false},
		{power.Reset, true, 1, false},
		{power.SwitchOff, false, 1, false},
		{power.Look, false, 1, false},
	} {
		state, err := power.Carry(ctx, d, step.action)
		if (err != nil) != step.err || state == power.Unknown || (state == power.On) != step.on {
			t.Errorf("step %d, %s: %v, %v", i, step.action, state, err)
		}
		if on, resets := h.State(); on != step.on || resets != step.resets {
			t.Errorf("step %d, %s: the hardware is on: %v, after %d resets", i, step.action, on, resets)
		}
	}
	gone := errors.New("the caller has gone")
	ended, end := context.WithCancelCause(t.Context())
	end(gone)
	if _, err := d.Status(ended); !errors.Is(err, gone) {
		t.Errorf("after the end of its context: %v", err)
	}
}
