package nimble

import (
	"errors"

	"margay/nimble/service"
)

// MaxInvocations is how many extensions may wait for one that they have called,
// directly or not.
const MaxInvocations = 7

// Errors of Invoke.
var (
	ErrUntrusted = errors.New("an untrusted extension cannot call a trusted one")
	ErrTooDeep   = errors.New("too many extensions call each other")
	ErrBudget    = errors.New("the fuel of the extension that called it is used up")
)

// Invoke runs the extension on behalf of another one, whose service call is c. The
// event's context is memory of the caller that the service has checked, and its
// Core becomes the caller's core. The run uses the caller's fuel, up to its own
// limit; its own limit bounds its time. A fault of the run is a *engine.Fault and
// counts against this extension alone; other failures are the errors above.
// ErrBudget should end the caller too.
//
// It waits for a run under way. So extensions must not call each other in a
// cycle: allow calls only of extensions that were inserted earlier.
func (x *Extension) Invoke(c *service.Call, e *Event) (r0 uint64, err error) {
	switch {
	case x.Trusted() && !c.Trusted:
		return 0, ErrUntrusted
	case c.Depth >= MaxInvocations:
		return 0, ErrTooDeep
	}
	x.running.Lock()
	defer x.running.Unlock()
	if x.closed {
		return 0, ErrClosed
	}
	fuel := min(x.limits.Fuel, c.Budget.Left())
	e.Core = c.Core
	x.machine.Call.Depth = c.Depth + 1
	r0, err = x.run(e, fuel)
	x.machine.Call.Depth = 0
	c.Budget.Take(fuel - x.machine.Fuel)
	return r0, err
}
