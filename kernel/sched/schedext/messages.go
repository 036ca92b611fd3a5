package schedext

import (
	"time"

	"margay/kernel/sched"
)

// Arrived implements sched.Enforcer. A task that has the core is not interrupted to tell its policy of a message for it: the policy
// hears of that when it is asked for the next time. Without policies nobody asks.
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

// Woken implements sched.Enforcer. The skeleton sees that itself.
func (e *Enforcer) Woken(sched.ID) {}

// count has the skeleton know how many messages wait for each task of a core. It reports whether any do, and whether somebody has
// none any more. The caller holds the lock.
func (e *Enforcer) count(c *core) (some, fewer bool) {
	for _, t := range c.order {
		now := t.Messages(t.told)
		before := e.skeleton.given(c.cpu).Places[t.place].messages().Swap(now)
		some = some || now > 0
		fewer = fewer || now == 0 && before > 0
	}
	return some, fewer
}

// How long recount waits between two looks. The first is for who takes messages, the second for who leaves them.
const (
	firstLook = time.Millisecond
	rareLook  = 32 * time.Millisecond
)

// recount keeps the numbers of messages right while some wait: tasks take messages and tell nobody.
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

// countAll counts on all cores with policies. It reports whether messages wait anywhere. Where somebody has none any more it may be
// somebody else's turn as soon as the quantum is over, for which Linux has only its ticks.
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
