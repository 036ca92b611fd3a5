package extension

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/record"
	"margay/nimble"
	"margay/nimble/memory"
)

// chain is the extensions of a set in one slot, in the order in which they were inserted.
type chain struct{ list atomic.Pointer[[]*Extension] }

func (c *chain) load() []*Extension {
	if list := c.list.Load(); list != nil {
		return *list
	}
	return nil
}

// add and remove change the chain. Whoever calls them holds Set.mu.
func (c *chain) add(x *Extension) {
	list := append(slices.Clone(c.load()), x)
	c.list.Store(&list)
}

func (c *chain) remove(x *Extension) {
	list := slices.DeleteFunc(slices.Clone(c.load()), func(other *Extension) bool { return other == x })
	c.list.Store(&list)
}

// extensions are those of all slots.
func (s *Set) extensions() []*Extension {
	var list []*Extension
	for _, row := range slot.Table {
		list = append(list, s.chains[row.Name].load()...)
	}
	return list
}

// Watch has f called after the extensions in a slot have changed, with the job whose they are, or Machine. It is called on
// the goroutine that changes them, so a removed extension still has its memory.
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

// Chain returns the extensions that are asked about an event of a job in a slot, the first to be asked first.
func (m *Manager) Chain(job id.Job, name slot.Name) []*Extension {
	list := slices.Clone(m.machine.chains[name].load())
	if s := m.Set(job); s != nil && s != m.machine {
		list = append(list, s.chains[name].load()...)
	}
	return list
}

// Empty reports whether no extension is asked about the job's messages.
func (s *Set) Empty() bool {
	return len(s.chains[slot.Message].load()) == 0 && len(s.manager.machine.chains[slot.Message].load()) == 0
}

// Message asks about a message, whose context is a slot.MessageContext, and returns the first verdict that is not the
// default. One that allow, unless it is nil, has an error for is a fault. The burst is of the messages that come together.
func (s *Set) Message(burst *nimble.Burst, context memory.Region, allow func(slot.Verdict) error) slot.Verdict {
	event := nimble.Event{Context: context}
	for _, set := range [...]*Set{s.manager.machine, s} {
		for _, x := range set.chains[slot.Message].load() {
			v, err := x.ask(burst, &event)
			if err != nil || v == slot.Deliver {
				continue
			}
			if allow != nil {
				if err := allow(v); err != nil {
					x.Fault(err)
					continue
				}
			}
			if v == slot.Drop {
				x.drops.Add(1)
			}
			return v
		}
	}
	return slot.Deliver
}

// Ask runs the extension for an event of its slot. An error is a fault of it, which has been counted, or says that it is gone.
func (x *Extension) Ask(e nimble.Event) (slot.Verdict, error) {
	e.Data = x
	begin := x.set.manager.recorder.Begin()
	r0, err := x.Run(&e)
	return x.answered(begin, &e, r0, err)
}

// ask is Ask as part of a burst.
func (x *Extension) ask(burst *nimble.Burst, e *nimble.Event) (slot.Verdict, error) {
	e.Data = x
	begin := x.set.manager.recorder.Begin()
	r0, err := burst.Run(x.Extension, e)
	return x.answered(begin, e, r0, err)
}

// answered records a run that began then, and judges its answer.
func (x *Extension) answered(begin id.Time, e *nimble.Event, r0 uint64, err error) (slot.Verdict, error) {
	x.ran(begin, record.Event{Kind: record.Run, Core: uint16(e.Core), What: r0})
	if err == nil && !x.row.Allows(slot.Verdict(r0)) {
		err = fmt.Errorf("it answered %d, which is no verdict of slot %s", r0, x.row.Name)
	}
	if err != nil && !errors.Is(err, nimble.ErrClosed) {
		x.Fault(err)
	}
	return slot.Verdict(r0), err
}

// ran records a run of the extension, which e describes but for the extension itself.
func (x *Extension) ran(begin id.Time, e record.Event) {
	if begin != 0 {
		e.Slot, e.Job, e.Number, e.Text = x.place, x.set.job, uint64(x.handle), x.name
		x.set.manager.recorder.End(begin, e)
	}
}

// Fault counts a fault and has the extension removed when there were too many.
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

// Expel has the extension removed soon. It does not wait for that, so it can be called in the middle of the chain.
func (x *Extension) Expel(why string) {
	go func() { _ = x.set.Remove(x.handle, why) }()
}
