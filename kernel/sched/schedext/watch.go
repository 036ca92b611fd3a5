package schedext

import (
	"margay/kernel/abi/id"
	"margay/kernel/sched"
)

// Watch implements sched.Enforcer.
func (e *Enforcer) Watch(w sched.Watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watcher = w
	for _, c := range e.cores {
		if c.cpu < 0 || e.closed {
			continue
		}
		e.watched(c)
		if w != nil {
			e.begins(c)
		}
	}
}

// begins reports the running task of a shared core. Events of earlier decisions that are still in
// flight are dropped. The time is read first, so that an event of the current decision is reported.
// The caller holds the lock.
func (e *Enforcer) begins(c *core) {
	c.watched = id.Time(e.skeleton.core(c.cpu).now().Load())
	info := e.describe(c)
	if len(info.Tasks) > 1 && info.Running >= 0 {
		e.watcher(c.number, c.watched, c.order[info.Running].ID, info.Why)
	}
}

// It sets whether the skeleton reports switches. The caller holds the lock.
func (e *Enforcer) watched(c *core) {
	on := uint32(0)
	if e.watcher != nil {
		on = 1
	}
	e.skeleton.given(c.cpu).watched().Store(on)
}

// switched reports that a core has gone to another task. The caller holds the lock.
func (e *Enforcer) switched(c *core, ev event) {
	at := id.Time(ev.Answer)
	if e.watcher == nil || at < c.watched {
		return
	}
	var to sched.ID
	if ev.Serial != 0 {
		t := c.task(ev.Serial)
		if t == nil {
			return // the task has ended, which another event reports
		}
		to = t.ID
	}
	e.watcher(c.number, at, to, c.why(ev.Epoch, ev.Who))
}

// task returns the task with a serial, nil if there is none.
func (c *core) task(serial uint32) *task {
	for _, t := range c.order {
		if t.owner.Serial == serial {
			return t
		}
	}
	return nil
}

// why names the decider.
func (c *core) why(epoch, who uint32) string {
	switch who {
	case nobody:
		return "turns"
	case starved:
		return "starvation limit"
	}
	if p := c.chain.policy(epoch, who); p != nil {
		return p.Name
	}
	return "a scheduler that has been replaced"
}
