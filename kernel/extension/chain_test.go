package extension

import (
	"errors"
	"slices"
	"testing"

	"margay/ext/message/accumulate"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/keep"
	"margay/nimble"
	"margay/nimble/memory"
)

var (
	choose = extensiontest.Program{Section: "sched", Name: "choose", Code: []string{"mov r0, 7", "exit"}}
	beyond = extensiontest.Program{Section: "sched", Name: "beyond", Code: []string{"mov r0, 8", "exit"}}
	pass   = extensiontest.Program{Section: "sched", Name: "pass", Code: []string{"mov r0, 255", "exit"}}
)

// Each slot has its own chain and its own verdicts.
func TestSlotsApart(t *testing.T) {
	m := newManager(t)
	s := open(t, m, 1)
	c, p, b, d := insert(t, s, choose), insert(t, s, pass), insert(t, s, beyond), insert(t, s, drop)
	if got := m.Chain(1, slot.Sched); !slices.Equal(got, []*Extension{c, p, b}) {
		t.Errorf("chain of slot sched: %v", got)
	}
	if got := m.Chain(1, slot.Message); !slices.Equal(got, []*Extension{d}) {
		t.Errorf("chain of slot message: %v", got)
	}
	if v := message(s, event(t)); v != slot.Drop || c.Stats().Runs != 0 {
		t.Errorf("a message got the verdict %d, and slot sched was run %d times", v, c.Stats().Runs)
	}
	context, err := memory.Map("sched", slot.SchedSize)
	if err != nil {
		t.Fatal(err)
	}
	defer context.Close()
	for x, want := range map[*Extension]slot.Verdict{c: 7, p: slot.Default} {
		if v, err := x.Ask(nimble.Event{Context: context.Region(true)}); v != want || err != nil {
			t.Errorf("%s answers %d, %v", x.Name(), v, err)
		}
	}
	if v, err := b.Ask(nimble.Event{Context: context.Region(true)}); err == nil || b.Stats().Faults != 1 {
		t.Errorf("an answer that is no task: %d, %v", v, err)
	}
}

// A slot determines the services.
func TestServicesOfSlot(t *testing.T) {
	s := open(t, newManager(t), 1)
	for section, want := range map[string]bool{"message": true, "sched": false} {
		_, err := s.Insert(Request{Object: extensiontest.Object(t, extensiontest.Program{
			Section: section, Name: "clock", Code: []string{"call 5", "mov r0, 0", "exit"},
		})})
		if err != nil {
			t.Errorf("slot %s, a service that all slots have: %v", section, err)
		}
		if got := s.manager.services[slot.Name(section)].Name("extension_call") != nil; got != want {
			t.Errorf("slot %s: extension_call is there: %v", section, got)
		}
	}
}

// The machine's extensions run before a job's, whichever were inserted first.
func TestMachineFirst(t *testing.T) {
	m := newManager(t)
	s, other := open(t, m, 1), open(t, m, 2)
	mine := insert(t, s, consume)
	first, second := insert(t, m.Machine(), deliver), insert(t, m.Machine(), drop)
	if got := m.Chain(1, slot.Message); !slices.Equal(got, []*Extension{first, second, mine}) {
		t.Errorf("chain %v", got)
	}
	for _, set := range []*Set{s, other} {
		if v := message(set, event(t)); v != slot.Drop || set.Empty(slot.Message) {
			t.Errorf("%v: verdict %d, empty: %v", set, v, set.Empty(slot.Message))
		}
	}
	if err := m.Remove(second.Handle(), "a test"); err != nil {
		t.Fatal(err)
	}
	if v := message(s, event(t)); v != slot.Consume {
		t.Errorf("verdict %d without the machine's extension", v)
	}
	if got := m.Chain(99, slot.Message); !slices.Equal(got, []*Extension{first}) {
		t.Errorf("chain of no job: %v", got)
	}
	if err := m.Machine().Close(); err != nil {
		t.Error(err)
	}
}

// A watcher of a slot is called after each change there, in any set.
func TestWatch(t *testing.T) {
	m := newManager(t)
	s := open(t, m, 1)
	type change struct {
		job    id.Job
		length int
	}
	var got []change
	m.Watch(slot.Sched, func(job id.Job) { got = append(got, change{job, len(m.Chain(1, slot.Sched))}) })
	x := insert(t, s, choose)
	insert(t, s, drop)
	y := insert(t, m.Machine(), pass)
	for _, err := range []error{s.Remove(x.Handle(), "a test"), m.Remove(y.Handle(), "a test")} {
		if err != nil {
			t.Error(err)
		}
	}
	if want := []change{{1, 1}, {Machine, 2}, {1, 1}, {Machine, 0}}; !slices.Equal(got, want) {
		t.Errorf("heard of %v, want %v", got, want)
	}
}

// An extension can be adopted from its item, with its number, settings and state. An extension that
// cannot be kept is not inserted.
func TestKept(t *testing.T) {
	kept := make(map[string]keep.Item)
	refuse := errors.New("no more room")
	k := keeper{
		keep: func(item keep.Item) error {
			if len(kept) == 2 {
				return refuse
			}
			files := slices.Clone(item.Files)
			for i, f := range files {
				copied, err := keep.Duplicate(f.Fd(), f.Name())
				if err != nil {
					t.Fatal(err)
				}
				files[i] = copied
			}
			kept[item.Name] = keep.Item{Name: item.Name, Words: item.Words, Files: files}
			return nil
		},
		drop: func(string) error { return nil },
	}
	m := newManager(t)
	m.Machine().KeepWith(k)
	if _, err := m.Machine().Insert(Request{Name: "words", Number: 7, Object: accumulate.Object, Settings: []Setting{{Name: "capacity", Value: 64}}}); err != nil {
		t.Fatal(err)
	}
	insert(t, m.Machine(), drop)
	if _, err := m.Machine().Insert(Request{Object: extensiontest.Object(t, deliver)}); !errors.Is(err, refuse) || len(m.Chain(0, slot.Message)) != 2 {
		t.Errorf("what cannot be kept: %v, %d are there", err, len(m.Chain(0, slot.Message)))
	}
	before := m.List()[:2]
	if before[0].Number != 7 || before[1].Number != 0 {
		t.Errorf("they have the numbers %d and %d", before[0].Number, before[1].Number)
	}
	if err := m.Machine().Close(); err != nil {
		t.Fatal(err)
	}
	next := newManager(t)
	items := []*keep.Item{{Name: "listener"}}
	for _, item := range kept {
		if !Kept(item.Name) {
			t.Errorf("%s is not known again", item.Name)
		}
		items = append(items, &item)
		defer item.CloseFiles()
	}
	if err := next.Machine().Adopt(items); err != nil {
		t.Fatal(err)
	}
	if got := next.List(); !slices.Equal(got, before) {
		t.Errorf("adopted %+v\nof %+v", got, before)
	}
	if err := next.Machine().Close(); err != nil {
		t.Fatal(err)
	}
}

// The interface may run all extensions in slot packet, and those in slot message that say so, of
// the machine and of jobs whose messages can come there, in the order in which they see a message.
func TestOnInterface(t *testing.T) {
	m := newManager(t)
	far, near := open(t, m, 2), open(t, m, 1)
	far.Cross()
	program := func(section string) extensiontest.Program {
		return extensiontest.Program{Section: section, Name: "passes", Code: []string{"mov r0, 0", "exit"}}
	}
	handles := insert(t, far, program(slot.MessageOnInterface))
	here := insert(t, far, deliver)
	filters := insert(t, far, program("packet"))
	insert(t, near, program("packet"))
	insert(t, near, program(slot.MessageOnInterface))
	machines := insert(t, m.Machine(), program(slot.MessageOnInterface))
	first := insert(t, m.Machine(), program("packet"))
	if got := m.OnInterface(); !slices.Equal(got, []*Extension{first, filters, machines, handles}) {
		t.Errorf("%v", got)
	}
	if got := far.Judges(); !slices.Equal(got, []*Extension{first, filters, machines, handles, here}) {
		t.Errorf("%v", got)
	}
}

// A program that may run on the interface must do without the verdicts that are not possible there.
func TestVerdictsOnInterface(t *testing.T) {
	for answer, want := range map[string]bool{"0": true, "1": true, "2": true, "3": false, "4": false, "5": false} {
		s := open(t, newManager(t), 1)
		for section, fine := range map[string]bool{slot.MessageOnInterface: want, "message": answer != "5"} {
			x := insert(t, s, extensiontest.Program{Section: section, Name: "answers", Code: []string{"mov r0, " + answer, "exit"}})
			if _, err := x.Ask(nimble.Event{Context: event(t)}); (err == nil) != fine {
				t.Errorf("section %s, answer %s: %v", section, answer, err)
			}
		}
	}
}
