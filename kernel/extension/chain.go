package extension

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/record"
	"margay/nimble"
	"margay/nimble/memory"
)

// chain holds the extensions of a set in one slot, in the order of insertion.
type chain struct{ list atomic.Pointer[[]*Extension] }

func (c *chain) load() []*Extension {
	if list := c.list.Load(); list != nil {
		return *list
	}
	return nil
}

// add and remove replace the list. The caller holds Set.mu.
func (c *chain) add(x *Extension) {
	list := append(slices.Clone(c.load()), x)
	c.list.Store(&list)
}

func (c *chain) remove(x *Extension) {
	list := slices.DeleteFunc(slices.Clone(c.load()), func(other *Extension) bool { return other == x })
	c.list.Store(&list)
}

// extensions returns the extensions in all slots.
func (s *Set) extensions() []*Extension {
	var list []*Extension
	for _, row := range slot.Table {
		list = append(list, s.chains[row.Name].load()...)
	}
	return list
}

// Watch registers f, which is called after every change of the extensions in a slot with their job,
// or Machine. The goroutine that changes them calls f, so a removed extension still has its memory.
func (m *Manager) Watch(name slot.Name, f func(job id.Job)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watch[name] = f
}

func (m *Manager) changed(job id.Job, name slot.Name) {
	m.mu.Lock()
	f := m.watch[name]
	m.mu.Unlock()
	if f != nil {
		f(job)
	}
}

// Chain returns the extensions that run at an event of a job in a slot, in this order.
func (m *Manager) Chain(job id.Job, name slot.Name) []*Extension {
	list := slices.Clone(m.machine.chains[name].load())
	if s := m.Set(job); s != nil && s != m.machine {
		list = append(list, s.chains[name].load()...)
	}
	return list
}

// Chain returns the extensions of the set itself in a slot, in the order of their insertion.
func (s *Set) Chain(name slot.Name) []*Extension { return slices.Clone(s.chains[name].load()) }

// Judges returns the extensions that decide about a message of the job from another node, in the
// order in which they see it.
func (s *Set) Judges() []*Extension {
	return slices.Concat(s.manager.Chain(s.job, slot.Packet), s.manager.Chain(s.job, slot.Message))
}

// Cross notes that messages between ranks of the job can pass no node kernel on their way to other
// nodes.
func (s *Set) Cross() { s.crosses.Store(true) }

// OnInterface returns the extensions that may decide on the node's interface about messages that
// pass no node kernel, of the machine and of jobs that Cross, in the order in which they see a
// message.
func (m *Manager) OnInterface() (all []*Extension) {
	m.mu.Lock()
	sets := []*Set{m.machine}
	for _, job := range slices.Sorted(maps.Keys(m.sets)) {
		if s := m.sets[job]; s != m.machine && s.crosses.Load() {
			sets = append(sets, s)
		}
	}
	m.mu.Unlock()
	for _, name := range []slot.Name{slot.Packet, slot.Message} {
		for _, s := range sets {
			for _, x := range s.chains[name].load() {
				if name == slot.Packet || slot.OnInterface(x.spec.Section) {
					all = append(all, x)
				}
			}
		}
	}
	return all
}

// Empty reports whether no extension runs at events of the job in a slot.
func (s *Set) Empty(name slot.Name) bool {
	return len(s.chains[name].load()) == 0 && len(s.manager.machine.chains[name].load()) == 0
}

// Burst is a nimble.Burst of runs for messages that arrive together.
type Burst struct {
	nimble.Burst
	run run
}

// Handle runs the extensions in slot message or packet for a message, with a context of the slot,
// and returns the first verdict that is not the default. A verdict that h does not allow is a
// fault; a nil h allows all, and then no service is about the message. Messages that arrive
// together share a burst.
func (s *Set) Handle(name slot.Name, burst *Burst, context memory.Region, h Handling) slot.Verdict {
	event := nimble.Event{Context: context}
	burst.run.handling = h
	for _, set := range [...]*Set{s.manager.machine, s} {
		for _, x := range set.chains[name].load() {
			v, err := x.ask(burst, &event)
			if h != nil {
				if err == nil {
					if err = h.Allow(v); err != nil {
						x.Fault(err)
					}
				}
				if err != nil {
					h.Discard()
				} else {
					h.Keep()
				}
			}
			if err != nil || v == x.row.Default {
				continue
			}
			if v == slot.Drop {
				x.drops.Add(1)
			}
			return v
		}
	}
	return slot.Deliver // as slot.Pass
}

// Ask runs the extension for an event of its slot. An error is a fault, which has been counted, or
// nimble.ErrClosed.
func (x *Extension) Ask(e nimble.Event) (slot.Verdict, error) {
	e.Data = &x.alone
	begin := x.set.manager.recorder.Begin()
	r0, err := x.Run(&e)
	return x.answered(begin, &e, r0, err)
}

// ask is Ask as part of a burst.
func (x *Extension) ask(burst *Burst, e *nimble.Event) (slot.Verdict, error) {
	burst.run.extension = x
	e.Data = &burst.run
	begin := x.set.manager.recorder.Begin()
	if guard := x.guard.Load(); guard != nil {
		burst.End()
		(*guard).Lock()
		r0, err := x.Run(e)
		(*guard).Unlock()
		return x.answered(begin, e, r0, err)
	}
	r0, err := burst.Run(x.Extension, e)
	return x.answered(begin, e, r0, err)
}

// answered records a run and checks its answer.
func (x *Extension) answered(begin id.Time, e *nimble.Event, r0 uint64, err error) (slot.Verdict, error) {
	x.ran(begin, record.Event{Kind: record.Run, Core: uint16(e.Core), What: r0})
	if err == nil {
		err = x.allow(slot.Verdict(r0))
	}
	if err != nil && !errors.Is(err, nimble.ErrClosed) {
		x.Fault(err)
	}
	return slot.Verdict(r0), err
}

// allow returns an error if the extension must not return this verdict. One that may run on the
// interface must do without those that are not possible there.
func (x *Extension) allow(v slot.Verdict) error {
	switch {
	case !x.row.Allows(v):
		return fmt.Errorf("answer %d is not a verdict of slot %s", v, x.row.Name)
	case x.row.Name == slot.Message && v > slot.Drop && slot.OnInterface(x.spec.Section):
		return fmt.Errorf("answer %d, %s, is not one of section %s", v, x.row.Verdicts[v], x.spec.Section)
	}
	return nil
}

// ran records a run of the extension. e describes the run; ran fills in the extension.
func (x *Extension) ran(begin id.Time, e record.Event) {
	if begin != 0 {
		e.Slot, e.Job, e.Number, e.Text = x.place, x.set.job, uint64(x.handle), x.name
		x.set.manager.recorder.End(begin, e)
	}
}

// Fault counts a fault, and expels the extension at the slot.FaultLimit-th.
func (x *Extension) Fault(err error) {
	n := x.faults.Add(1)
	if r := x.set.manager.recorder; r.On() {
		r.Add(record.Event{Kind: record.Fault, Slot: x.place, Job: x.set.job, Number: uint64(x.handle), Text: err.Error()})
	}
	if n == 1 || n == slot.FaultLimit {
		x.set.manager.note(x.set, x.handle, x.name, "fault %d: %v", n, err)
	}
	if n == slot.FaultLimit {
		x.Expel(fmt.Sprintf("it made %d faults, the last: %v", n, err))
	}
}

// Expel removes the extension on another goroutine. It does not wait for the removal, so it may be
// called during a run of the chain.
func (x *Extension) Expel(why string) {
	go func() { _ = x.set.Remove(x.handle, why) }()
}
