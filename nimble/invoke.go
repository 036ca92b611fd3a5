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

// Invoke runs the extension for another one, whose call of a service c is. The
// event's context is memory of the caller that the service has checked, and its
// Core becomes that of the caller. It runs on the caller's fuel, as much of it as
// its own limit allows; its time is limited by its own limit. A fault of it is a
// *engine.Fault, which counts against it alone; what is not its own doing is
// one of the errors here. ErrBudget should end the caller too.
//
// It waits for the run under way. So extensions must not be able to call each
// other in a circle: let them call only those that were inserted before them.
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
