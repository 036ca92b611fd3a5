package schedext

import (
	"time"

	"margay/kernel/sched"
)

// Arrived implements sched.Enforcer. The running task is not interrupted for a message of its own:
// the policy sees the message the next time that it is asked. Without policies the message has no
// effect.
func (e *Enforcer) Arrived(id sched.ID, waiting uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tasks[id]
	if t == nil || e.usable() != nil {
		return
	}
	t.told = waiting
	if t.core.chain == nil {
		return
	}
	e.count(t.core)
	e.skeleton.given(t.core.cpu).signals().Or(1 << (arrived + t.place))
	if e.skeleton.core(t.core.cpu).current().Load() != uint32(t.place) {
		e.kick(t.core)
	}
	select {
	case e.came <- struct{}{}:
	default: // recount knows already
	}
}

// Woken implements sched.Enforcer. The skeleton notices wake-ups without it.
func (e *Enforcer) Woken(sched.ID) {}

// count writes the number of pending messages of each task of a core to the skeleton's table. It
// reports whether any are pending, and whether a task's last one has been handled. The caller holds
// the lock.
func (e *Enforcer) count(c *core) (some, fewer bool) {
	for _, t := range c.order {
		now := t.Messages(t.told)
		before := e.skeleton.given(c.cpu).Places[t.place].messages().Swap(now)
		some = some || now > 0
		fewer = fewer || now == 0 && before > 0
	}
	return some, fewer
}

// Bounds of recount's interval: it starts at firstLook and doubles up to rareLook while no message
// arrives.
const (
	firstLook = time.Millisecond
	rareLook  = 32 * time.Millisecond
)

// recount updates the numbers of messages while some are pending, because tasks take messages
// without a report.
func (e *Enforcer) recount() {
	for {
		select {
		case <-e.done:
			return
		case <-e.came:
		}
		for look := firstLook; look > 0; {
			select {
			case <-e.done:
				return
			case <-e.came:
				look = firstLook
			case <-time.After(look):
				look = min(2*look, rareLook)
			}
			if !e.countAll() {
				look = 0
			}
		}
	}
}

// countAll counts on all cores with policies. It reports whether any messages are pending. When a
// task's last one has been handled, another task may be next at the end of the quantum, which Linux
// notices only at its ticks.
func (e *Enforcer) countAll() (some bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.usable() != nil {
		return false
	}
	for _, c := range e.cores {
		if c.cpu < 0 || c.chain == nil {
			continue
		}
		more, fewer := e.count(c)
		if fewer {
			e.kick(c)
		}
		some = some || more
	}
	return some
}
