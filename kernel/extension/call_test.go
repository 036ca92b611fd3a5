package extension

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/record"
	"margay/nimble"
	"margay/nimble/service"
)

// fuel is a caller's budget.
type fuel uint64

func (f *fuel) Left() uint64  { return uint64(*f) }
func (f *fuel) Take(n uint64) { *f -= fuel(n) }

// offered returns the service as the extension's slot offers it.
func offered(x *Extension) *service.Service {
	return x.set.manager.services[x.row.Name].Name(callService.Name)
}

// called calls another extension on behalf of a caller in a run, with a budget of fuel.
func called(t testing.TB, caller *Extension, handle uint64, budget *fuel, depth int) (uint64, error) {
	t.Helper()
	context := event(t)
	c := &service.Call{
		Args: [5]uint64{handle, context.Base, context.Length}, Data: &caller.alone, Space: anyMemory{}, Budget: budget, Depth: depth,
	}
	r0, err := offered(caller).Call(c)
	if c.Data != &caller.alone {
		t.Error("the caller is forgotten")
	}
	return r0, err
}

// anyMemory allows every access.
type anyMemory struct{}

func (anyMemory) View(_, length uint64, _ bool) ([]byte, bool) { return make([]byte, length), true }

func TestCall(t *testing.T) {
	m := newManager(t)
	s := open(t, m, 7)
	foreign := insert(t, open(t, m, 8), deliver)
	callee := insert(t, s, extensiontest.Message("callee", "ldxdw r0, [r1+24]", "add r0, 5", "exit"))
	broken := insert(t, s, faulty)
	loop := insert(t, s, endless)
	caller := insert(t, s, deliver)
	later := insert(t, s, deliver)
	for name, c := range map[string]struct {
		handle uint64
		depth  int
		want   uint64
	}{
		"an answer":                   {uint64(callee.handle), 0, 5},
		"a fault":                     {uint64(broken.handle), 0, service.Errno(unix.EFAULT)},
		"an endless loop":             {uint64(loop.handle), 0, service.Errno(unix.EFAULT)},
		"one that came later":         {uint64(later.handle), 0, service.Errno(unix.ENOENT)},
		"itself":                      {uint64(caller.handle), 0, service.Errno(unix.ENOENT)},
		"one of another job":          {uint64(foreign.handle), 0, service.Errno(unix.ENOENT)},
		"none":                        {99, 0, service.Errno(unix.ENOENT)},
		"a handle with other bits":    {1<<32 | uint64(callee.handle), 0, service.Errno(unix.ENOENT)},
		"through too many extensions": {uint64(callee.handle), nimble.MaxInvocations, service.Errno(unix.ELOOP)},
	} {
		budget := fuel(1 << 30)
		if r0, err := called(t, caller, c.handle, &budget, c.depth); r0 != c.want || err != nil {
			t.Errorf("%s: %d, %v; want %d", name, int64(r0), err, int64(c.want))
		}
	}
	if broken.Stats().Faults != 1 || caller.Stats().Faults != 0 {
		t.Error("the fault counts against the wrong one")
	}
	short := &service.Call{Args: [5]uint64{uint64(callee.handle), event(t).Base, slot.MessageSize - 1}, Data: &caller.alone, Space: anyMemory{}, Budget: new(fuel)}
	if r0, err := offered(caller).Call(short); r0 != service.Errno(unix.EINVAL) || err != nil || callee.Stats().Faults != 0 {
		t.Errorf("with less memory than a message: %d, %v", int64(r0), err)
	}
	budget := fuel(10)
	if _, err := called(t, caller, uint64(loop.handle), &budget, 0); err == nil || budget != 0 || loop.Stats().Faults != 1 {
		t.Errorf("with too little fuel: %v, %d left, %d faults", err, budget, loop.Stats().Faults)
	}
	for range slot.FaultLimit {
		budget := fuel(1 << 30)
		_, _ = called(t, caller, uint64(broken.handle), &budget, 0)
	}
	check.Await(t, "removal", func() bool { _, err := s.Find(broken.handle); return err != nil })
}

// recording sets a manager's recorder, and returns a function that reads its events.
func recording(t testing.TB, m *Manager) (read func() []record.Event) {
	t.Helper()
	r := record.New(2)
	m.RecordTo(r)
	if _, err := r.Follow(1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Leave(1) })
	var c record.Cursor
	return func() []record.Event {
		b := r.Read(c, 1<<20, func(*record.Event) bool { return true })
		c = b.Cursor
		events, err := record.Parse(b.Events)
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
}

// A run that another extension requested is recorded as such; a request without a run is not.
func TestCallRecorded(t *testing.T) {
	m := newManager(t)
	read := recording(t, m)
	s := open(t, m, 7)
	callee := insert(t, s, extensiontest.Message("callee", "ldxdw r0, [r1+24]", "add r0, 5", "exit"))
	loop := insert(t, s, endless)
	broken := insert(t, s, faulty)
	caller := insert(t, s, deliver)
	run := func(x *Extension, what uint64) record.Event {
		return record.Event{
			Kind: record.Called, Slot: x.place, Job: 7, Number: uint64(x.handle),
			Peer: uint32(caller.handle), What: what, Text: x.name,
		}
	}
	for name, c := range map[string]struct {
		callee *Extension
		fuel   fuel
		depth  int
		want   []record.Event
	}{
		"an answer":      {callee, 1 << 20, 0, []record.Event{run(callee, 5)}},
		"too deep":       {callee, 1 << 20, nimble.MaxInvocations, nil},
		"too late":       {loop, 10, 0, []record.Event{run(loop, 0)}},
		"not there":      {caller, 1 << 20, 0, nil},
		"with a fault":   {broken, 1 << 20, 0, []record.Event{run(broken, 0), {Kind: record.Fault}}},
		"another answer": {callee, 1 << 20, 1, []record.Event{run(callee, 5)}},
	} {
		_, _ = called(t, caller, uint64(c.callee.handle), &c.fuel, c.depth)
		got := read()
		for i := range got {
			if got[i].Time <= 0 || got[i].Kind == record.Called && got[i].Took <= 0 {
				t.Errorf("%s: %+v", name, got[i])
			}
			if got[i].Time, got[i].Took = 0, 0; got[i].Kind == record.Fault {
				got[i] = record.Event{Kind: record.Fault}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// BenchmarkCall measures a call, with and without recording.
func BenchmarkCall(b *testing.B) {
	for _, recorded := range []bool{false, true} {
		m := newManager(b)
		if recorded {
			recording(b, m)
		}
		s := open(b, m, 7)
		callee, caller := insert(b, s, deliver), insert(b, s, deliver)
		context, budget := event(b), fuel(1<<60)
		offer := offered(caller)
		c := &service.Call{
			Args: [5]uint64{uint64(callee.handle), context.Base, context.Length}, Data: &caller.alone, Space: anyMemory{}, Budget: &budget,
		}
		b.Run(map[bool]string{false: "off", true: "on"}[recorded], func(b *testing.B) {
			for b.Loop() {
				if _, err := offer.Call(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Extensions call one that also runs for messages and is removed at the same time.
func TestCallWhileRemoved(t *testing.T) {
	m := newManager(t)
	for round := range 20 {
		s := open(t, m, id.Job(100+round))
		callee := insert(t, s, deliver)
		caller := insert(t, s, deliver)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for range 50 {
					budget := fuel(1000)
					if r0, err := called(t, caller, uint64(callee.handle), &budget, 0); err != nil || r0 != 0 && r0 != service.Errno(unix.ENOENT) {
						t.Errorf("%d, %v", int64(r0), err)
					}
				}
			})
			context := event(t)
			all.Go(func() {
				for range 50 {
					message(s, context)
				}
			})
		}
		all.Go(func() {
			if err := m.Remove(callee.handle, fmt.Sprint("round ", round)); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
	}
}
