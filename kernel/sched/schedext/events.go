package schedext

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"margay/internal/clock"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/sched"
)

// listen handles the skeleton's events until the enforcer is closed.
func (e *Enforcer) listen() {
	for {
		record, err := e.skeleton.reader.Read()
		if errors.Is(err, ringbuf.ErrClosed) {
			return
		}
		var ev event
		if err == nil {
			_, err = binary.Decode(record.RawSample, binary.NativeEndian, &ev)
		}
		if err != nil {
			e.log("sched_ext: read event: %v", err)
			return
		}
		if tell := e.heard(ev); tell != nil {
			tell()
		}
	}
}

// It handles one event, and returns the reports to make without the lock.
func (e *Enforcer) heard(ev event) func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	if ev.Kind == eventExit {
		e.ejected()
		return nil
	}
	for _, c := range e.cores {
		if c.cpu != id.CPU(ev.CPU) {
			continue
		}
		switch p := c.chain.policy(ev.Epoch, ev.Who); {
		case ev.Kind == eventHold:
			e.hold(c)
		case ev.Kind == eventSwitch:
			e.switched(c, ev)
		case ev.Kind == eventLeft:
			return e.left(c, ev)
		case ev.Kind == eventBorn:
			e.takeBack(c, ev)
		case p == nil: // it has been replaced
		case ev.Kind == eventFault:
			return func() { p.Fault(sched.Check(slot.Verdict(ev.Answer), int(ev.Count), ev.Hold)) }
		case ev.Kind == eventSlow:
			return func() { p.Fault(fmt.Errorf("it worked for %v", time.Duration(ev.Answer))) }
		case ev.Kind == eventRescue:
			return e.rescued(c, p, ev)
		}
	}
	return nil
}

// left takes back a thread that has changed its own Linux scheduling policy, and reports that to
// its task.
func (e *Enforcer) left(c *core, ev event) func() {
	t := e.takeBack(c, ev)
	if t == nil || t.Refuse == nil {
		return nil
	}
	return func() { t.Refuse(errLeft) }
}

// takeBack returns the thread of an event to sched_ext, if it is outside and still belongs to its
// task. It returns that task, or nil if there was nothing to do.
func (e *Enforcer) takeBack(c *core, ev event) *task {
	t, tid := c.task(ev.Serial), int(ev.Answer)
	if t == nil || e.broken != nil {
		return nil
	}
	var owner identity
	if err := e.skeleton.collection.Maps["threads"].Lookup(int32(tid), &owner); err != nil || owner != t.owner {
		return nil
	}
	back, err := putBack(tid)
	e.report(t, err)
	if !back {
		return nil
	}
	return t
}

// errLeft is reported to Task.Refuse when a thread leaves sched_ext.
var errLeft = errors.New("a thread of it took another scheduling policy, and was given back to the scheduler of its core")

// rescued counts a rescue against the policy that let a task starve.
func (e *Enforcer) rescued(c *core, p *policyState, ev event) func() {
	name := "a task"
	if t := c.task(ev.Serial); t != nil {
		name = fmt.Sprintf("job %d rank %d", t.Job, t.Rank)
	}
	p.rescues++
	err := fmt.Errorf("%s was ready and not held, and had to wait for %v", name, e.starvationLimit(c))
	switch {
	case p.rescues < sched.RescueLimit:
		return func() { p.Fault(err) }
	case p.rescues == sched.RescueLimit:
		return func() { p.Remove(sched.Starved(err)) }
	}
	return nil
}

// starvationLimit returns the longest time that a ready task of a core that is not held may wait.
func (e *Enforcer) starvationLimit(c *core) time.Duration {
	return time.Duration(e.skeleton.given(c.cpu).StarvationLimit)
}

// hold stops the processes that must be held on a core, and resumes the others. The caller holds
// the lock.
func (e *Enforcer) hold(c *core) {
	given, want := e.skeleton.given(c.cpu), e.skeleton.core(c.cpu).hold().Load()
	var signals uint64
	told := false
	for _, t := range c.order {
		bit := uint64(1) << t.place
		switch on := want&bit != 0; {
		case on == t.held:
			continue
		case on:
			// Set first, so that threads that run from now on find the stop request.
			e.report(t, t.stop(true))
			given.frozen().Or(bit)
		default:
			given.frozen().And(^bit)
			e.report(t, t.stop(false))
			signals |= bit << thawed
		}
		told = true
	}
	if told {
		e.signal(c, signals)
	}
}

// watchInterval is the period of watch.
const watchInterval = 250 * time.Millisecond

// watch makes a core decide again if a task waits too long while the core is idle: Linux calls the
// skeleton only at events, and an idle core has none. It also makes up for events that did not fit
// into the ring.
func (e *Enforcer) watch() {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-e.done:
			return
		case <-ticker.C:
		}
		e.mu.Lock()
		e.ejected()
		for _, c := range e.cores {
			if e.usable() == nil && c.cpu >= 0 {
				e.hold(c)
				e.findLost(c)
				if e.starves(c) {
					e.kick(c)
				}
			}
		}
		e.mu.Unlock()
		if e.loading.TryLock() { // otherwise in the next period
			for _, l := range e.loaded {
				l.tell()
			}
			e.loading.Unlock()
		}
	}
}

// findLost looks for threads outside sched_ext if events of a core were lost. The caller holds the
// lock.
func (e *Enforcer) findLost(c *core) {
	lost := e.skeleton.core(c.cpu).lost().Load()
	if lost == c.lost {
		return
	}
	c.lost = lost
	for _, t := range c.order {
		e.report(t, e.skeleton.adopt(t))
	}
}

// starves reports whether a task of a core has waited for too long.
func (e *Enforcer) starves(c *core) bool {
	state, now := e.skeleton.core(c.cpu), clock.Monotonic()
	for _, t := range c.order {
		p := &state.Places[t.place]
		if p.Serial == t.owner.Serial && slot.TaskState(p.State) == slot.Ready && now > p.Since+uint64(e.starvationLimit(c))+state.Stood-p.Stood {
			return true
		}
	}
	return false
}

// attachAgain attaches the skeleton again. The caller holds the lock.
func (e *Enforcer) attachAgain() error {
	if err := e.skeleton.attach(); err != nil {
		return err
	}
	for _, t := range e.tasks { // exit_task has deleted the owners of threads
		e.report(t, e.skeleton.adopt(t))
	}
	return nil
}

// ejected handles the skeleton's ejection by Linux, if there was one: it attaches it again, or
// gives up and resumes all tasks. The caller holds the lock.
func (e *Enforcer) ejected() {
	end := e.skeleton.allEnding.all[0]
	if end.Kind == 0 || e.usable() != nil {
		return
	}
	reason, message := text(end.Reason[:]), text(end.Message[:])
	if message != "" {
		reason += ": " + message
	}
	_ = e.skeleton.detach()
	e.evicted++
	if e.evicted < maxEvictions {
		e.log("sched_ext: Linux has ended the scheduler (%d of %d times): %s", e.evicted, maxEvictions, reason)
		err := e.attachAgain()
		if err == nil {
			return
		}
		reason = err.Error()
	}
	e.broken = fmt.Errorf("sched_ext: Linux has ended the scheduler %d times, the last: %s", e.evicted, reason)
	e.log("%v; tasks run on Linux's default scheduler", e.broken)
	for _, t := range e.tasks {
		if t.held {
			e.report(t, t.stop(false))
		}
	}
}

// text returns a C string.
func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}
