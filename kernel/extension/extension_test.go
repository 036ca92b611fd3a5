package extension

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/ext/message/accumulate"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/keep"
	"margay/nimble/engine/portable"
	"margay/nimble/memory"
	"margay/nimble/state"
)

const budget = 1 << 20

func newManager(t testing.TB) *Manager {
	t.Helper()
	m, err := NewManager(portable.New(), 2, func(string, ...any) {})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// open makes the set of a job, which is closed at the end of the test.
func open(t testing.TB, m *Manager, job id.Job) *Set {
	t.Helper()
	s := m.Open(job, budget)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// event makes the context of a message.
func event(t testing.TB) memory.Region {
	t.Helper()
	m, err := memory.Map("message", slot.MessageSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m.Region(true)
}

func insert(t testing.TB, s *Set, programs ...extensiontest.Program) *Extension {
	t.Helper()
	x, err := s.Insert(Request{Object: extensiontest.Object(t, programs...)})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

var (
	faulty  = extensiontest.Message("faulty", "ldxdw r0, [r1-8]", "exit")
	endless = extensiontest.Message("endless", "ja -1")
	deliver = extensiontest.Answer("deliver", "0")
	consume = extensiontest.Answer("consume", "1")
	drop    = extensiontest.Answer("drop", "2")
	nothing = extensiontest.Answer("nothing", "5")
	trap    = extensiontest.Program{Section: "trap", Name: "tick", Code: deliver.Code}
	trap2   = extensiontest.Program{Section: "trap/second", Name: "tock", Code: deliver.Code}
)

func TestInsertListRemove(t *testing.T) {
	m := newManager(t)
	s, other := open(t, m, 7), open(t, m, 8)
	if !s.Empty(slot.Message) {
		t.Error("a new set is not empty")
	}
	first := insert(t, s, deliver)
	second, err := other.Insert(Request{Name: "mine", Slot: slot.Message, Object: extensiontest.Object(t, consume)})
	if err != nil {
		t.Fatal(err)
	}
	third := insert(t, s, drop)
	if s.Empty(slot.Message) || m.Set(7) != s || m.Set(9) != nil {
		t.Error("the manager does not know its sets")
	}
	if x, err := s.Find(third.Handle()); x != third || err != nil {
		t.Errorf("found %v, %v", x, err)
	}
	if _, err := s.Find(second.Handle()); !errors.Is(err, ErrNotFound) {
		t.Errorf("another job's extension was found: %v", err)
	}
	if err := s.Remove(second.Handle(), "a test"); !errors.Is(err, ErrNotFound) {
		t.Errorf("another job's extension was removed: %v", err)
	}
	if err := m.Remove(second.Handle(), "an operator"); err != nil {
		t.Error(err)
	}
	for _, err := range []error{m.Remove(second.Handle(), "again"), m.Remove(99, "no such")} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("what is not there was removed: %v", err)
		}
	}
	want := []Info{
		{Handle: first.Handle(), Job: 7, Slot: slot.Message, Name: "deliver", Engine: "portable"},
		{Handle: third.Handle(), Job: 7, Slot: slot.Message, Name: "drop", Engine: "portable"},
		{Handle: second.Handle(), Job: 8, Slot: slot.Message, Name: "mine", Engine: "portable", Removed: "an operator"},
	}
	if got := m.List(); !slices.Equal(got, want) {
		t.Errorf("list %+v\nwant %+v", got, want)
	}
}

func TestRefused(t *testing.T) {
	two := []extensiontest.Program{deliver, {Section: "message/second", Name: "second", Code: deliver.Code}}
	for name, c := range map[string]struct {
		request Request
		says    string
	}{
		"garbage":            {Request{Object: []byte("\x7fELF, but no more")}, "ELF"},
		"nothing":            {Request{}, "ELF"},
		"no such slot":       {Request{Slot: "kitchen", Object: extensiontest.Object(t, deliver)}, `no slot "kitchen"`},
		"slot of the object": {Request{Object: extensiontest.Object(t, trap)}, "takes no extensions yet"},
		"slot not ready":     {Request{Slot: slot.Interrupt, Object: extensiontest.Object(t, deliver)}, "takes no extensions yet"},
		"another slot":       {Request{Slot: slot.Exit, Object: extensiontest.Object(t, deliver)}, "program deliver is made for slot message, as its section says, and not for slot exit"},
		"another to come":    {Request{Slot: slot.Message, Object: extensiontest.Object(t, trap2)}, "program tock is made for slot trap, as its section says, and not for slot message"},
		"allocator's slot":   {Request{Object: extensiontest.Object(t, extensiontest.Program{Section: "place", Name: "p", Code: deliver.Code})}, "slot place is the allocator's"},
		"machine's slot":     {Request{Slot: slot.Boot, Object: extensiontest.Object(t, deliver)}, "when it boots"},
		"trust":              {Request{Trusted: true, Object: extensiontest.Object(t, deliver)}, "only the machine has trusted"},
		"two programs":       {Request{Object: extensiontest.Object(t, two...)}, "several programs"},
		"two for the slot":   {Request{Slot: slot.Message, Object: extensiontest.Object(t, two...)}, "several programs"},
		"none for the slot":  {Request{Slot: slot.Message, Object: extensiontest.Object(t, trap, trap2)}, "no program for slot"},
		"verifier":           {Request{Object: extensiontest.Object(t, extensiontest.Message("off", "mov r0, 0"))}, "insn"},
		"unknown service":    {Request{Object: extensiontest.Object(t, extensiontest.Message("call", "call 4000", "exit"))}, "4000"},
		"no such variable":   {Request{Object: accumulate.Object, Settings: []Setting{{Name: "colour", Value: 1}}}, `no variable "colour"`},
		"value too large":    {Request{Object: accumulate.Object, Settings: []Setting{{Name: "capacity", Value: 1 << 32}}}, "4 bytes"},
		"no such map":        {Request{Object: accumulate.Object, Settings: []Setting{{Name: "chairs", Value: 1, Entries: true}}}, `map "chairs"`},
		"no entries":         {Request{Object: accumulate.Object, Settings: []Setting{{Name: "table", Value: 0, Entries: true}}}, `map "table"`},
		"too many entries":   {Request{Object: accumulate.Object, Settings: []Setting{{Name: "table", Value: 1 << 32, Entries: true}}}, `map "table"`},
		"over its budget":    {Request{Object: accumulate.Object, Settings: []Setting{{Name: "table", Value: 1 << 20, Entries: true}}}, "bytes of maps"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t)
			s := open(t, m, 1)
			x, err := s.Insert(c.request)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, %v; it should say %q", x, err, c.says)
			}
			if !s.Empty(slot.Message) || len(m.List()) != 0 || s.used != 0 {
				t.Errorf("something is left of it: %+v, %d bytes", m.List(), s.used)
			}
			if notes := m.Notes(0); len(notes) != 1 || notes[0].Job != 1 || !strings.Contains(notes[0].Text, c.says) {
				t.Errorf("noted %+v", notes)
			}
		})
	}
}

func TestSlotChoosesTheProgram(t *testing.T) {
	s := open(t, newManager(t), 1)
	x, err := s.Insert(Request{Slot: slot.Message, Object: extensiontest.Object(t, trap2, consume)})
	if err != nil {
		t.Fatal(err)
	}
	if x.Name() != "consume" || message(s, event(t)) != slot.Consume {
		t.Errorf("%s was inserted", x.Name())
	}
}

// An object whose section names no slot goes into the slot of the request, and is refused without.
func TestSectionWithoutSlot(t *testing.T) {
	s := open(t, newManager(t), 1)
	policy := extensiontest.Program{Section: "policy/first", Name: "policy", Code: consume.Code}
	if x, err := s.Insert(Request{Object: extensiontest.Object(t, policy)}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `no slot "policy"`) {
		t.Errorf("without a slot: %v, %v", x, err)
	}
	if _, err := s.Insert(Request{Slot: slot.Message, Object: extensiontest.Object(t, policy)}); err != nil {
		t.Fatal(err)
	}
	if message(s, event(t)) != slot.Consume {
		t.Error("it is not in slot message")
	}
}

// No field of a request lets a job's code run as trusted.
func TestNobodyIsTrusted(t *testing.T) {
	s := open(t, newManager(t), 1)
	if x := insert(t, s, deliver); x.Trusted() {
		t.Error("an extension is trusted")
	}
}

func TestAtMostSixteen(t *testing.T) {
	s := open(t, newManager(t), 1)
	var last *Extension
	for range MaxExtensions {
		last = insert(t, s, deliver)
	}
	if _, err := s.Insert(Request{Object: extensiontest.Object(t, deliver)}); !errors.Is(err, ErrNoRoom) {
		t.Errorf("one more was inserted: %v", err)
	}
	if err := s.Remove(last.Handle(), "a test"); err != nil {
		t.Fatal(err)
	}
	insert(t, s, deliver)
}

// The first answer that is not the default decides; a fault or an invalid answer does not.
func TestChain(t *testing.T) {
	for name, c := range map[string]struct {
		chain []extensiontest.Program
		want  slot.Verdict
		runs  []uint64
		fault []uint64
	}{
		"empty":           {nil, slot.Deliver, nil, nil},
		"deliver":         {[]extensiontest.Program{deliver}, slot.Deliver, []uint64{1}, []uint64{0}},
		"consume first":   {[]extensiontest.Program{consume, drop}, slot.Consume, []uint64{1, 0}, []uint64{0, 0}},
		"drop second":     {[]extensiontest.Program{deliver, drop, consume}, slot.Drop, []uint64{1, 1, 0}, []uint64{0, 0, 0}},
		"fault":           {[]extensiontest.Program{faulty}, slot.Deliver, []uint64{1}, []uint64{1}},
		"fault, consume":  {[]extensiontest.Program{faulty, consume}, slot.Consume, []uint64{1, 1}, []uint64{1, 0}},
		"endless":         {[]extensiontest.Program{endless, drop}, slot.Drop, []uint64{1, 1}, []uint64{1, 0}},
		"no verdict":      {[]extensiontest.Program{nothing}, slot.Deliver, []uint64{1}, []uint64{1}},
		"no verdict, yes": {[]extensiontest.Program{nothing, consume}, slot.Consume, []uint64{1, 1}, []uint64{1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t)
			s := open(t, m, 1)
			for _, p := range c.chain {
				insert(t, s, p)
			}
			if got := message(s, event(t)); got != c.want {
				t.Errorf("verdict %d, want %d", got, c.want)
			}
			for i, x := range m.List() {
				if x.Stats.Runs != c.runs[i] || x.Stats.Faults != c.fault[i] {
					t.Errorf("%s: %d runs, %d faults; want %d, %d", x.Name, x.Stats.Runs, x.Stats.Faults, c.runs[i], c.fault[i])
				}
			}
		})
	}
}

// message runs the extensions for a message that arrives alone.
func message(s *Set, context memory.Region) slot.Verdict {
	var burst Burst
	defer burst.End()
	return s.Handle(slot.Message, &burst, context, nil)
}

func TestStats(t *testing.T) {
	m := newManager(t)
	s := open(t, m, 1)
	x := insert(t, s, drop)
	context := event(t)
	for range 5 {
		message(s, context)
	}
	if got := x.Stats(); got.Runs != 5 || got.Instructions != 10 || got.Faults != 0 || got.LastFault != nil {
		t.Errorf("stats %+v", got)
	}
	if err := s.Remove(x.Handle(), "a test"); err != nil {
		t.Fatal(err)
	}
	message(s, context)
	list := m.List()
	if len(list) != 1 || list[0].Dropped != 5 || list[0].Stats.Runs != 5 || list[0].Removed != "a test" {
		t.Errorf("list %+v", list)
	}
}

// An extension is removed at its sixteenth fault, of any kind, and not before.
func TestTooManyFaults(t *testing.T) {
	for _, p := range []extensiontest.Program{faulty, nothing} {
		t.Run(p.Name, func(t *testing.T) {
			m := newManager(t)
			s := open(t, m, 1)
			gone := make(chan string, 2)
			s.KeepWith(keeper{drop: func(name string) error {
				gone <- name
				return nil
			}})
			x := insert(t, s, p)
			insert(t, s, drop)
			context := event(t)
			for n := range uint64(slot.FaultLimit) {
				if faults := x.Stats().Faults; faults != n {
					t.Errorf("%d faults of %d are counted", faults, n)
				}
				if _, err := s.Find(x.Handle()); err != nil {
					t.Fatalf("it was removed after %d faults", n)
				}
				if v := message(s, context); v != slot.Drop {
					t.Errorf("verdict %d after fault %d", v, n)
				}
			}
			select {
			case name := <-gone:
				if name != Item(x.Handle()) {
					t.Errorf("%s was removed", name)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it was not removed")
			}
			list := m.List()
			if len(list) != 2 || list[1].Handle != x.Handle() || !strings.HasPrefix(list[1].Removed, "it made 16 faults, the last: ") {
				t.Errorf("list %+v", list)
			}
			message(s, context)
			if runs := x.Stats().Runs; runs != slot.FaultLimit {
				t.Errorf("it was run %d times", runs)
			}
			if len(gone) > 0 {
				t.Error("it was removed twice")
			}
		})
	}
}

// keeper is a keep.Keeper whose methods a test sets.
type keeper struct {
	keep func(keep.Item) error
	drop func(name string) error
}

func (k keeper) Drop(name string) error { return k.drop(name) }

func (k keeper) Keep(item keep.Item) error {
	if k.keep == nil {
		return nil
	}
	return k.keep(item)
}

// A removal drops the keeper's item, except at the end of the job; an error of that is returned.
func TestRemovalIsKept(t *testing.T) {
	m := newManager(t)
	s := m.Open(1, budget)
	broken := errors.New("broken")
	var told []string
	s.KeepWith(keeper{drop: func(name string) error {
		told = append(told, name)
		return broken
	}})
	a, b, _ := insert(t, s, deliver), insert(t, s, deliver), insert(t, s, deliver)
	for _, err := range []error{s.Remove(a.Handle(), "a test"), m.Remove(b.Handle(), "a test")} {
		if !errors.Is(err, broken) {
			t.Errorf("removal: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if want := []string{Item(a.Handle()), Item(b.Handle())}; !slices.Equal(told, want) {
		t.Errorf("told of %v, want %v", told, want)
	}
}

func TestClose(t *testing.T) {
	m := newManager(t)
	s := m.Open(1, budget)
	x := insert(t, s, consume)
	if _, err := s.Region("r", 100); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if m.Set(1) != nil || len(m.List()) != 0 {
		t.Errorf("after the end of the job there is %+v", m.List())
	}
	if v := message(s, event(t)); v != slot.Deliver {
		t.Errorf("verdict %d after the end", v)
	}
	if _, err := s.Insert(Request{Object: extensiontest.Object(t, deliver)}); !errors.Is(err, ErrRefused) {
		t.Errorf("Insert after the end: %v", err)
	}
	if _, err := s.Region("r", 100); !errors.Is(err, ErrNoRoom) {
		t.Errorf("Region after the end: %v", err)
	}
	if err := x.Lend("table", func(*state.Map) error { return nil }); !errors.Is(err, ErrNotFound) {
		t.Errorf("Lend after the end: %v", err)
	}
}

func TestOldRemovalsAreForgotten(t *testing.T) {
	m := newManager(t)
	s := open(t, m, 1)
	var last id.Handle
	for range rememberRemoved + 6 {
		last = insert(t, s, deliver).Handle()
		if err := s.Remove(last, "a test"); err != nil {
			t.Fatal(err)
		}
	}
	list := m.List()
	if len(list) != rememberRemoved || list[len(list)-1].Handle != last || list[0].Handle != last-rememberRemoved+1 {
		t.Errorf("%d are remembered", len(list))
	}
}

func TestRegions(t *testing.T) {
	s := open(t, newManager(t), 1)
	if _, err := s.Region("a", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("a region that nobody made: %v", err)
	}
	a, err := s.Region("a", 100)
	if err != nil || len(a.Bytes()) != 100 {
		t.Fatal(a, err)
	}
	for _, size := range []uint64{0, 1, 100} {
		if again, err := s.Region("a", size); again != a || err != nil {
			t.Errorf("asked for again with %d bytes: %v, %v", size, again, err)
		}
	}
	if _, err := s.Region("a", 101); err == nil {
		t.Error("a region was said to be larger than it is")
	}
	for name, size := range map[string]uint64{"": 1, "b": budget - 100 + 1, "huge": 1 << 63, "huger": 1<<64 - 1} {
		if _, err := s.Region(name, size); !errors.Is(err, ErrNoRoom) {
			t.Errorf("region %q of %d bytes: %v", name, size, err)
		}
	}
	if _, err := s.Region("b", budget-100); err != nil {
		t.Errorf("the rest of the budget: %v", err)
	}
}

func TestAtMostSoManyRegions(t *testing.T) {
	s := open(t, newManager(t), 1)
	for i := range MaxRegions {
		if _, err := s.Region(fmt.Sprint("r", i), 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Region("one more", 1); !errors.Is(err, ErrNoRoom) {
		t.Errorf("one more region: %v", err)
	}
	if _, err := s.Region("r0", 1); err != nil {
		t.Errorf("one that is there: %v", err)
	}
}

// A map with the name of a region is that region, and counts once.
func TestMapIsRegion(t *testing.T) {
	s := open(t, newManager(t), 1)
	region, err := s.Region("totals", 4096)
	if err != nil {
		t.Fatal(err)
	}
	before := s.used
	x, err := s.Insert(Request{Object: accumulate.Object})
	if err != nil {
		t.Fatal(err)
	}
	if x.Map("totals").Memory() != region {
		t.Error("the map is not the region")
	}
	context := event(t)
	b := memory.View(context.Base, context.Length)
	binary.LittleEndian.PutUint32(b[20:], 4) // bytes of payload
	binary.LittleEndian.PutUint64(b[24:], 5) // first argument
	copy(b[40:], "word")
	if v := message(s, context); v != slot.Consume {
		t.Fatalf("verdict %d", v)
	}
	if handled, sum := binary.LittleEndian.Uint64(region.Bytes()), binary.LittleEndian.Uint64(region.Bytes()[8:]); handled != 1 || sum != 5 {
		t.Errorf("in the region %d messages with the sum %d were counted", handled, sum)
	}
	if err := s.Remove(x.Handle(), "a test"); err != nil {
		t.Fatal(err)
	}
	if s.used != before {
		t.Errorf("%d bytes are used, before there were %d", s.used, before)
	}
	if binary.LittleEndian.Uint64(region.Bytes()) != 1 {
		t.Error("the region went with the extension")
	}
}

// Memory of a removed extension returns to the budget, whatever regions were made since.
func TestBudgetComesBack(t *testing.T) {
	s := open(t, newManager(t), 1)
	x, err := s.Insert(Request{Object: accumulate.Object})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Region("table", 100); err != nil {
		t.Fatal(err)
	}
	if s.used <= 100 {
		t.Errorf("only %d bytes are used", s.used)
	}
	if err := s.Remove(x.Handle(), "a test"); err != nil {
		t.Fatal(err)
	}
	if s.used != 100 {
		t.Errorf("%d bytes are used by a region of 100", s.used)
	}
}

func TestSettings(t *testing.T) {
	s := open(t, newManager(t), 1)
	x, err := s.Insert(Request{Object: accumulate.Object, Settings: []Setting{
		{Name: "table", Value: 64, Entries: true}, {Name: "capacity", Value: 64}, {Name: "handler", Value: 9},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if n := x.Map("table").Spec().Entries; n != 64 {
		t.Errorf("the table has %d entries", n)
	}
	if v := message(s, event(t)); v != slot.Deliver {
		t.Errorf("verdict %d for another handler's message", v)
	}
	if maps := x.Maps(); !slices.Contains(maps, "table") || !slices.Contains(maps, "totals") {
		t.Errorf("maps %v", maps)
	}
}

// An extension and its memory pass from one node kernel to the next. Its handle is not reused.
func TestAdopted(t *testing.T) {
	s := open(t, newManager(t), 1)
	table, err := memory.Create("table", 1024*80)
	if err != nil {
		t.Fatal(err)
	}
	region, err := memory.Create("r", 8)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.adoptRegion("r", 5, region); err != nil || s.PlaceOf("r") != 5 {
		t.Errorf("the adopted region is at place %d, %v", s.PlaceOf("r"), err)
	}
	for _, p := range []Place{-1, MaxRegions} {
		if err := s.adoptRegion("x", p, region); err == nil {
			t.Errorf("a region was adopted at place %d", p)
		}
	}
	if _, err := s.Region("later", 8); err != nil || s.PlaceOf("later") != 6 {
		t.Errorf("a region made later is at place %d, %v", s.PlaceOf("later"), err)
	}
	if m, err := s.Region("r", 8); m != region || err != nil {
		t.Errorf("the adopted region is %v, %v", m, err)
	}
	x, err := s.Insert(Request{Object: accumulate.Object, Handle: 40, Memories: map[string]*memory.Memory{"table": table}})
	if err != nil {
		t.Fatal(err)
	}
	if x.Handle() != 40 || x.Map("table").Memory() != table {
		t.Errorf("it is extension %d", x.Handle())
	}
	if next := insert(t, s, deliver); next.Handle() <= 40 {
		t.Errorf("the next one has the number %d", next.Handle())
	}
	if s.used < 1024*80+8 {
		t.Errorf("only %d bytes count", s.used)
	}
	if err := s.Remove(40, "a test"); err != nil {
		t.Fatal(err)
	}
	if table.Bytes() != nil {
		t.Error("adopted memory outlives its extension")
	}
}

// Lent memory stays mapped until it is returned: a removal waits for that, and the end of the job
// waits for the removal, since the map may be a region.
func TestLend(t *testing.T) {
	s := newManager(t).Open(1, budget)
	region, err := s.Region("totals", 4096)
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.Insert(Request{Object: accumulate.Object})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Lend("chairs", func(*state.Map) error { return nil }); !errors.Is(err, ErrNotFound) {
		t.Errorf("a map that it does not have was lent: %v", err)
	}
	done := make(chan error, 2)
	mine := errors.New("mine")
	err = x.Lend("totals", func(m *state.Map) error {
		go func() { done <- s.Remove(x.Handle(), "a test") }()
		check.Await(t, "removal from the chain", func() bool { return s.Empty(slot.Message) })
		go func() { done <- s.Close() }()
		select {
		case err := <-done:
			t.Errorf("it was released while its memory was lent: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if m.Memory() != region || region.Bytes() == nil {
			t.Error("the memory is gone")
		}
		return mine
	})
	if err != mine {
		t.Errorf("Lend: %v", err)
	}
	for range 2 {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("it was never released")
		}
	}
}

// All operations run concurrently until the job ends: nothing is used after its release, and
// nothing is leaked.
func TestTogether(t *testing.T) {
	files, goroutines := check.Descriptors(t), runtime.NumGoroutine()
	m := newManager(t)
	programs := [][]byte{accumulate.Object, extensiontest.Object(t, faulty), extensiontest.Object(t, consume), extensiontest.Object(t, nothing)}
	for job := range id.Job(3) {
		s := m.Open(1+job, 64<<20)
		s.KeepWith(keeper{drop: func(string) error { return nil }})
		stop := make(chan struct{})
		var all sync.WaitGroup
		forever := func(f func(i int)) {
			all.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						f(i)
					}
				}
			})
		}
		context := event(t)
		runs := make(chan struct{}, 1)
		forever(func(i int) {
			message(s, context)
			if i == 2000 {
				close(runs)
			}
		})
		for range 2 {
			forever(func(i int) {
				x, err := s.Insert(Request{Object: programs[i%len(programs)]})
				if err != nil && !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrRefused) {
					t.Error(err)
				}
				if err == nil && i%3 > 0 {
					if err := s.Remove(x.Handle(), "a test"); err != nil && !errors.Is(err, ErrNotFound) {
						t.Error(err)
					}
				}
				runtime.Gosched()
			})
		}
		forever(func(i int) {
			for _, info := range m.List() {
				x, err := s.Find(info.Handle)
				if err != nil {
					continue
				}
				err = x.Lend("totals", func(m *state.Map) error {
					if _, ok := m.Memory().FD(); !ok {
						t.Error("lent memory has no file")
					}
					return nil
				})
				if err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
				if i%4 == 0 {
					m.Remove(info.Handle, "an operator")
				}
			}
			s.Region("totals", 4096)
			runtime.Gosched()
		})
		select {
		case <-runs:
		case <-time.After(60 * time.Second):
			t.Error("2000 messages were not handled within a minute")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		close(stop)
		all.Wait()
	}
	runtime.GC()
	check.Await(t, "end of all goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })
	if now := check.Descriptors(t); now > files {
		t.Errorf("%d descriptors before, %d after", files, now)
	}
}

// A line that an extension prints is in the log of the node, with its name.
func TestPrint(t *testing.T) {
	var log []string
	m, err := NewManager(portable.New(), 2, func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) })
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, m, 7)
	insert(t, s, extensiontest.Message("talker",
		"stw [r10-4], 0x006925", "ldxw r3, [r1+4]", "mov r1, r10", "add r1, -4", "mov r2, 4", "call 6", "mov r0, 0", "exit"))
	if verdict := message(s, event(t)); verdict != slot.Deliver {
		t.Errorf("verdict %d", verdict)
	}
	if want := "job 7: extension 1 (talker): prints: 0"; !slices.Contains(log, want) {
		t.Errorf("the log %q does not say %q", log, want)
	}
}

// A region is kept when it is made, and the next node kernel finds it at the same place.
func TestRegionsAreKept(t *testing.T) {
	s := open(t, newManager(t), 1)
	var items []*keep.Item
	refuse := errors.New("no room")
	k := keeper{keep: func(item keep.Item) error {
		if item.Name == RegionItem("refused") {
			return refuse
		}
		f, err := keep.Duplicate(item.Files[0].Fd(), "copy")
		items = append(items, &keep.Item{Name: item.Name, Words: item.Words, Files: []*os.File{f}})
		return err
	}}
	s.KeepWith(k)
	for _, name := range []string{"z", "a", "z"} { // not in the order of their names
		m, err := s.Region(name, 8)
		if err != nil {
			t.Fatal(err)
		}
		m.Bytes()[0] = name[0]
	}
	if _, err := s.Region("refused", 8); !errors.Is(err, refuse) {
		t.Errorf("a region that cannot be kept: %v", err)
	}
	if len(items) != 2 || items[0].Name != RegionItem("z") || items[1].Name != RegionItem("a") {
		t.Fatalf("%d regions are kept", len(items))
	}
	next := open(t, newManager(t), 1)
	if err := next.Adopt(items); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"z", "a"} {
		m, err := next.Region(name, 0)
		if err != nil || m.Bytes()[0] != name[0] || next.PlaceOf(name) != s.PlaceOf(name) {
			t.Errorf("region %s is at place %d, %v", name, next.PlaceOf(name), err)
		}
	}
	items[0].Words = []byte("[]")
	if err := open(t, newManager(t), 1).Adopt(items); err == nil || !strings.Contains(err.Error(), "its place") {
		t.Errorf("a region without a place: %v", err)
	}
	for _, item := range items {
		item.CloseFiles()
	}
}
