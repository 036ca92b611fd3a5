package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// newMachine returns a machine with a map called map of 24 bytes and a context
// of 16.
func newMachine(t *testing.T, depth int) *Machine {
	t.Helper()
	spec := state.Spec{Name: "map", ValueSize: 24, Entries: 1, ReadOnly: true}
	p, err := verify.Verify(&object.Spec{
		Instructions: []isa.Instruction{{Code: isa.Exit.Row().Code}},
		Maps:         []state.Spec{spec},
		Lines:        object.Lines{{Slot: 0, File: "x.c", Number: 3}},
	}, verify.Config{})
	if err != nil {
		t.Fatal(err)
	}
	each, err := state.New(spec, state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { each.Close() })
	m, err := NewMachine(p, []*state.Map{each}, depth)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	context, err := memory.Map("context", 16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { context.Close() })
	m.SetContext(context.Region(true))
	return m
}

// TestWindows compares the windows with the regions they stand for, at every
// size and around every end.
func TestWindows(t *testing.T) {
	m := newMachine(t, 2)
	m.Start()
	m.PushFrame()
	for _, r := range m.regions {
		for delta := uint64(0); delta < 20; delta++ {
			for _, addr := range []uint64{r.Base - delta, r.Base + delta, r.Base + r.Length - delta, r.Base + r.Length + delta} {
				for n := range 4 {
					want := r.Contains(addr, 1<<n)
					if got := m.FindRead(addr, n); got != want {
						t.Fatalf("%s: read of %d bytes at %+d: %v", r.Name, 1<<n, int64(addr-r.Base), got)
					} else if got && addr-m.Read.Base >= m.Read.Limit[n] {
						t.Fatalf("%s: the read window does not hold the access at %+d", r.Name, int64(addr-r.Base))
					}
					want = want && r.Writable
					if got := m.FindWrite(addr, n); got != want {
						t.Fatalf("%s: write of %d bytes at %+d: %v", r.Name, 1<<n, int64(addr-r.Base), got)
					}
					if got := m.FindAtomic(addr, n); got != want {
						t.Fatalf("%s: atomic of %d bytes at %+d: %v", r.Name, 1<<n, int64(addr-r.Base), got)
					}
					if _, got := m.View(addr, 1<<n, true); got != want {
						t.Fatalf("%s: view of %d bytes at %+d: %v", r.Name, 1<<n, int64(addr-r.Base), got)
					}
				}
			}
		}
	}
}

func TestPermissions(t *testing.T) {
	m := newMachine(t, 1)
	for _, c := range []struct{ readable, writable bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		r := m.Context()
		r.Readable, r.Writable = c.readable, c.writable
		m.SetContext(r)
		m.Start()
		addr := m.Context().Base
		if got := m.FindRead(addr, 0); got != c.readable {
			t.Errorf("%+v: read %v", c, got)
		}
		if got := m.FindWrite(addr, 0); got != c.writable {
			t.Errorf("%+v: write %v", c, got)
		}
		if got := m.FindAtomic(addr, 0); got != (c.readable && c.writable) {
			t.Errorf("%+v: atomic %v", c, got)
		}
		if _, got := m.View(addr, 1, false); got != c.readable {
			t.Errorf("%+v: view %v", c, got)
		}
	}
}

// TestStack grows and shrinks the stack: only the part in use can be accessed.
func TestStack(t *testing.T) {
	m := newMachine(t, 3)
	m.Start()
	top := m.SP
	for frames := uint64(0); frames <= 3; frames++ {
		low := top - frames*verify.FrameSize
		if m.SP != low || m.FindWrite(low-1, 0) || m.FindWrite(top, 0) || frames > 0 && !(m.FindWrite(low, 0) && m.FindWrite(top-1, 0)) {
			t.Fatalf("%d frames: stack from %#x to %#x, in use from %#x", frames, low, top, m.SP)
		}
		if frames < 3 {
			m.PushFrame()
		}
	}
	m.Enter(top)
	if m.FindRead(top-1, 0) {
		t.Error("an empty stack can be read")
	}
}

func TestRefill(t *testing.T) {
	for _, c := range []struct {
		fuel       uint64
		left, cost int64
		want       int64
		kind       Kind
		rest       uint64
	}{
		{fuel: 10, left: 0, cost: 3, want: 7, rest: 0},
		{fuel: 10, left: 2, cost: 12, want: 0, rest: 0},
		{fuel: 10, left: 2, cost: 13, want: 2, kind: Fuel, rest: 10},
		{fuel: 0, left: 0, cost: 1, want: 0, kind: Fuel, rest: 0},
		{fuel: 3 * MaxSlice, left: 5, cost: 6, want: MaxSlice - 1, rest: 2 * MaxSlice},
		{fuel: 3 * MaxSlice, left: 0, cost: 2 * MaxSlice, want: 0, rest: MaxSlice},
		{fuel: 1<<64 - 1, left: 0, cost: 1, want: MaxSlice - 1, rest: 1<<64 - 1 - MaxSlice},
	} {
		m := &Machine{Fuel: c.fuel, slice: MaxSlice}
		got, kind := m.Refill(c.left, c.cost)
		if got != c.want || kind != c.kind || m.Fuel != c.rest {
			t.Errorf("%+v: got %d, %q, rest %d", c, got, kind, m.Fuel)
		}
	}
	m := &Machine{Fuel: 1 << 40, MaxTime: time.Nanosecond}
	for n := range 2*clockSlices - 1 {
		if _, kind := m.Refill(0, 1); kind != "" {
			t.Errorf("the time was over at the end of slice %d", n)
		}
		time.Sleep(time.Microsecond)
	}
	if left, kind := m.Refill(0, 1); kind != Time || left != 0 {
		t.Errorf("got %d, %q after the time was over", left, kind)
	}
}

func TestPlace(t *testing.T) {
	m := newMachine(t, 1)
	m.Start()
	mapBase := m.regions[firstMap].Base
	for _, c := range []struct {
		addr   uint64
		region string
		offset int64
	}{
		{m.Context().Base, "context", 0},
		{m.Context().Base + 15, "context", 15},
		{m.Context().Base + 16, "context", 16},
		{m.Context().Base - 1, "context", -1},
		{mapBase + 24, "map", 24},
		{mapBase - 4096, "map", -4096},
		{0, "", 0},
		{1 << 63, "", 0},
		{^uint64(0), "", 0},
	} {
		if name, offset := m.place(c.addr); name != c.region || offset != c.offset {
			t.Errorf("%#x is at %s%+d, want %s%+d", c.addr, name, offset, c.region, c.offset)
		}
	}
}

func TestFault(t *testing.T) {
	m := newMachine(t, 1)
	m.Start()
	m.Fuel = 7
	f := m.Fault(Memory, 0, m.Context().Base+16, nil)
	want := fmt.Sprintf("pc=0 addr=%#x kind=memory fuel=7 region=context+16 line=x.c:3", m.Context().Base+16)
	if f.Error() != want {
		t.Errorf("got %q, want %q", f, want)
	}
	if f := m.Fault(Fuel, 0, 99, nil); f.Error() != "pc=0 addr=0x0 kind=fuel fuel=7 line=x.c:3" {
		t.Errorf("got %q", f)
	}
	refused := &service.ArgumentError{Service: "s", Argument: 2, Value: 5, Reason: "no"}
	if f := m.Fault(Service, 0, 0, refused); f.Kind != Argument || f.Addr != 5 || !errors.Is(f, error(refused)) {
		t.Errorf("got %q", f)
	}
}

// TestNullPointer checks which faults are reported as null pointers.
func TestNullPointer(t *testing.T) {
	m := newMachine(t, 1)
	for _, c := range []struct {
		kind Kind
		addr uint64
		want bool
	}{{Memory, 0, true}, {Memory, 4095, true}, {Memory, 4096, false}, {Memory, m.Context().Base - 8, false}, {Fuel, 0, false}, {Depth, 0, false}} {
		if text := m.Fault(c.kind, 0, c.addr, nil).Error(); strings.Contains(text, fmt.Sprintf(" region=null+%d", c.addr)) != c.want {
			t.Errorf("%s at %#x: %s", c.kind, c.addr, text)
		}
	}
}

func TestNewMachineRefuses(t *testing.T) {
	m := newMachine(t, 1)
	for _, depth := range []int{-1, 0, MaxCallDepth + 1} {
		if _, err := NewMachine(m.program, m.Call.Maps, depth); err == nil {
			t.Errorf("call depth %d was accepted", depth)
		}
	}
	if _, err := NewMachine(m.program, nil, 1); err == nil {
		t.Error("a machine without its maps")
	}
	if _, err := NewMachine(&verify.Program{}, nil, 1); err == nil {
		t.Error("a machine without a program")
	}
	small, err := state.New(state.Spec{Name: "map", ValueSize: 16, Entries: 1, ReadOnly: true}, state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	if _, err := NewMachine(m.program, []*state.Map{small}, 1); err == nil {
		t.Error("a machine with a map that is smaller than the program's")
	}
}

// TestStacksAreKept closes a machine that has written to its stack. The next one
// of the same call depth has zeros there, and one of another depth its own size.
func TestStacksAreKept(t *testing.T) {
	p, err := verify.Verify(&object.Spec{Instructions: []isa.Instruction{{Code: 0x95}}}, verify.Config{})
	if err != nil {
		t.Fatal(err)
	}
	make := func(depth int) *Machine {
		m, err := NewMachine(p, nil, depth)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(m.stack.Bytes()); n != depth*verify.FrameSize {
			t.Fatalf("a stack of %d bytes for %d functions", n, depth)
		}
		return m
	}
	for range 3 * keptStacks {
		first, second := make(3), make(3)
		for _, m := range []*Machine{first, second} {
			if b := m.stack.Bytes(); slices.Max(b) != 0 {
				t.Fatal("something was left in the stack")
			}
			m.stack.Bytes()[100] = 1
		}
		if &first.stack.Bytes()[0] == &second.stack.Bytes()[0] {
			t.Fatal("two machines have one stack")
		}
		for _, m := range []*Machine{first, second, first} { // the last does nothing
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	var many []*Machine
	for range 2 * keptStacks {
		many = append(many, make(2))
	}
	for _, m := range many {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if stacks.n != keptStacks {
		t.Errorf("%d stacks are kept of %d", stacks.n, keptStacks)
	}
}
