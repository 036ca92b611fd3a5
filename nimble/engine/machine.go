package engine

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"margay/nimble/memory"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

const (
	// MaxCallDepth is the largest call depth of a Machine.
	MaxCallDepth = 256

	// clockSlices is how many slices there are between two looks at the clock,
	// which takes longer than to begin a slice.
	clockSlices = 20

	// near is how far from a region, in bytes, a fault still names it.
	near = 4096
)

// The places of the regions that every Machine has. Those of maps follow.
const (
	contextRegion = iota
	stackRegion
	firstMap
)

// Machine is one running extension: what it is given, where it is, and what is
// left. Its fields in the first group are set before a run; Fuel is updated by
// it. The others are for engines.
type Machine struct {
	Args        [5]uint64     // r1 to r5 at entry: the context's address and length if the program was verified with a Context
	Fuel        uint64        // instructions that may be executed; after a run: what is left
	MaxTime     time.Duration // wall clock limit, counted from the first look at the clock; 0: none
	ContextName string        // the region of the context in faults; empty: context
	Call        service.Call  // Core and Data for services

	Read, Write *Window // where the last load and the last store were, at first the context
	Atomic      *Window // where FindAtomic has found the last atomic operation
	Frames      []Frame // room for the callers of the running function
	SP          uint64  // lowest address of the stack in use

	// What an engine writes down where a fault may surprise it: the fuel of its
	// slice that is left, and the slot and address of an unchecked access. The
	// fuel is written before a service is called, and read again afterwards.
	SliceLeft int64
	At        int
	Addr      uint64

	// Scratch is for what an engine needs of memory during a run. Prepared is the
	// Code that has prepared Scratch and the stack for its next run, as its Tenant.
	// A change of a window makes it nil, because copies of windows in Scratch are
	// void then. An engine that writes to Scratch sets it.
	Scratch  [48]uint64
	Prepared *Tenant

	program       *verify.Program
	slice         uint64 // fuel of a slice
	stack         *memory.Memory
	top           uint64 // end of the stack
	regions       []memory.Region
	reads, writes []Window  // of each region
	deadline      time.Time // once clockSlices are used up
	slices        uint      // used up in this run
}

// Tenant is part of a Code and stands for it in a Machine.
type Tenant struct{ _ byte }

// Frame is what a local call saves and an exit restores: r6 to r9 and r10 of
// the caller, and where it goes on, in the engine's own terms.
type Frame struct {
	Return int
	Saved  [4]uint64
	FP     uint64
}

// Window is a region in the form in which an engine checks an access: one of
// 1<<n bytes at addr is inside if addr-Base < Limit[n]. The zero Window lets
// nothing pass.
type Window struct {
	Base  uint64
	Limit [4]uint64
}

// set makes w the Window of a range, or one that lets nothing pass.
func (w *Window) set(base, length uint64, allowed bool) {
	*w = Window{}
	if !allowed {
		return
	}
	w.Base = base
	for n := range w.Limit {
		if size := uint64(1) << n; length >= size {
			w.Limit[n] = length - size + 1
		}
	}
}

// NewMachine makes a Machine for a program and its maps. callDepth is how many
// functions may be active at once, from 1 to MaxCallDepth. The stack, of
// verify.FrameSize bytes for each, is outside the Go heap, so Close is needed.
func NewMachine(p *verify.Program, maps []*state.Map, callDepth int) (*Machine, error) {
	if callDepth < 1 || callDepth > MaxCallDepth {
		return nil, fmt.Errorf("call depth %d is not in [1, %d]", callDepth, MaxCallDepth)
	}
	if !suits(p, maps) {
		return nil, errors.New("a machine needs a verified program and its maps")
	}
	stack, err := takeStack(callDepth)
	if err != nil {
		return nil, err
	}
	m := &Machine{
		Frames:  make([]Frame, callDepth-1),
		program: p,
		slice:   Slice(p),
		stack:   stack,
		regions: make([]memory.Region, firstMap+len(maps)),
		reads:   make([]Window, firstMap+len(maps)),
		writes:  make([]Window, firstMap+len(maps)),
	}
	whole := stack.Region(true)
	m.top = whole.Base + whole.Length
	m.regions[stackRegion] = whole
	m.Enter(m.top)
	for i, each := range maps {
		m.setRegion(firstMap+i, each.Region())
	}
	m.Read, m.Write = &m.reads[contextRegion], &m.writes[contextRegion]
	m.Call.Maps, m.Call.Space, m.Call.Budget, m.Call.Trusted = maps, m, m, p.Trusted()
	return m, nil
}

// suits reports whether maps are as large and as writable as those that a
// program was verified with.
func suits(p *verify.Program, maps []*state.Map) bool {
	specs := p.Maps()
	if p.Len() == 0 || len(specs) != len(maps) {
		return false
	}
	for i, m := range maps {
		if r := m.Region(); r.Length < specs[i].Length() || !r.Writable && !specs[i].ReadOnly {
			return false
		}
	}
	return true
}

// Close releases the stack. The Machine must not be running, and must not be run
// again. A second Close does nothing.
func (m *Machine) Close() error {
	stack := m.stack
	if m.stack = nil; stack == nil {
		return nil
	}
	return leaveStack(len(m.Frames)+1, stack)
}

// setRegion makes an entry of the table of regions.
func (m *Machine) setRegion(i int, r memory.Region) {
	m.regions[i] = r
	m.reads[i].set(r.Base, r.Length, r.Readable)
	m.writes[i].set(r.Base, r.Length, r.Writable)
	m.Prepared = nil
}

// Context returns the memory that the event brings.
func (m *Machine) Context() memory.Region { return m.regions[contextRegion] }

// SetContext gives the next runs their context, as the program's verify.Context
// promises it. The name of the region is not used: see ContextName.
func (m *Machine) SetContext(r memory.Region) { m.setRegion(contextRegion, r) }

// Holds reports whether the context is this one.
func (m *Machine) Holds(r *memory.Region) bool {
	c := &m.regions[contextRegion]
	return r.Base == c.Base && r.Length == c.Length && r.Readable == c.Readable && r.Writable == c.Writable
}

// Start prepares for a run: an empty stack, no deadline yet. It returns the
// first slice of the fuel.
func (m *Machine) Start() (left int64) {
	if m.SP != m.top {
		m.Empty()
	}
	return m.FirstSlice()
}

// Empty empties the stack. It and FirstSlice are what Start does, for an engine
// to which a call of it is too long.
func (m *Machine) Empty() { m.Enter(m.top) }

// FirstSlice takes the first slice of the fuel, and lets the clock start later.
func (m *Machine) FirstSlice() (left int64) {
	m.slices = 0
	slice := min(m.Fuel, m.slice)
	m.Fuel -= slice
	return int64(slice)
}

// Enter makes [sp, top) the stack in use. What lies below is out of reach until
// a function's frame is pushed.
func (m *Machine) Enter(sp uint64) {
	m.SP = sp
	stack := &m.regions[stackRegion]
	stack.Base, stack.Length = sp, m.top-sp
	m.reads[stackRegion].set(sp, stack.Length, true)
	m.writes[stackRegion].set(sp, stack.Length, true)
	m.Prepared = nil
}

// PushFrame puts a zeroed frame under the stack in use. There is room for as
// many as the call depth.
func (m *Machine) PushFrame() {
	m.Enter(m.SP - verify.FrameSize)
	m.ClearFrame()
}

// ClearFrame fills the lowest frame with zeros.
func (m *Machine) ClearFrame() { clear(memory.View(m.SP, verify.FrameSize)) }

// FindRead looks for a region that allows a load of 1<<n bytes and makes it the
// Read window; ok is false if there is none.
func (m *Machine) FindRead(addr uint64, n int) (ok bool) {
	for i := range m.reads {
		if w := &m.reads[i]; addr-w.Base < w.Limit[n&3] {
			m.Read = w
			return true
		}
	}
	return false
}

// FindWrite is FindRead for a store and the Write window.
func (m *Machine) FindWrite(addr uint64, n int) (ok bool) {
	for i := range m.writes {
		if w := &m.writes[i]; addr-w.Base < w.Limit[n&3] {
			m.Write = w
			return true
		}
	}
	return false
}

// FindAtomic is FindWrite in a region that allows loads too, and the Atomic
// window.
func (m *Machine) FindAtomic(addr uint64, n int) (ok bool) {
	for i := range m.writes {
		if w := &m.writes[i]; addr-w.Base < w.Limit[n&3] && m.regions[i].Readable {
			m.Atomic = w
			return true
		}
	}
	return false
}

// Windows returns what FindRead and FindWrite look through, for an engine that
// does so itself. They change with the stack, and stay where they are.
func (m *Machine) Windows() (reads, writes []Window) { return m.reads, m.writes }

// View implements service.Space.
func (m *Machine) View(addr, length uint64, write bool) ([]byte, bool) {
	for i := range m.regions {
		if r := &m.regions[i]; r.Readable && (r.Writable || !write) && r.Contains(addr, length) {
			return memory.View(addr, length), true
		}
	}
	return nil, false
}

// Refill pays for a block from beyond the current slice: left is what the slice
// still had before the block, cost what the block takes. It returns what the
// next slice has left after paying. If kind is not empty, the run is over and
// fuel is what the slice still has.
//
// Its stack check is where the scheduler stops the goroutine of a program that
// does nothing but compute, in code that cannot be preempted.
//
//go:noinline
func (m *Machine) Refill(left, cost int64) (fuel int64, kind Kind) {
	need := uint64(cost - left)
	if m.Fuel < need {
		return left, Fuel
	}
	if m.slices++; m.slices%clockSlices == 0 && m.expired() {
		return left, Time
	}
	take := max(need, min(m.Fuel, m.slice))
	m.Fuel -= take
	return left + int64(take) - cost, ""
}

// Left implements service.Budget. While a service runs, SliceLeft is what the
// slice has left.
func (m *Machine) Left() uint64 { return m.Fuel + uint64(m.SliceLeft) }

// Take implements service.Budget.
func (m *Machine) Take(instructions uint64) {
	beyond := min(instructions, m.Fuel)
	m.Fuel -= beyond
	m.SliceLeft -= int64(instructions - beyond)
}

// expired looks at the clock, and starts it the first time.
func (m *Machine) expired() bool {
	if m.MaxTime <= 0 {
		return false
	}
	now := time.Now()
	if m.slices == clockSlices {
		m.deadline = now.Add(m.MaxTime)
	}
	return now.After(m.deadline)
}

// Fault ends a run: it describes the fault at a slot. addr matters to the kinds
// that have one, err to those of services.
func (m *Machine) Fault(kind Kind, slot int, addr uint64, err error) *Fault {
	f := &Fault{Kind: kind, PC: slot, Line: m.program.Line(slot), Fuel: m.Fuel, Err: err}
	if refused, ok := errors.AsType[*service.ArgumentError](err); ok {
		f.Kind, addr = Argument, refused.Value
	}
	switch f.Kind {
	case Memory, Alignment, Argument:
		f.Addr = addr
		f.Region, f.Offset = m.place(addr)
	}
	return f
}

// place names the region that an address is in, or else the one it is nearest
// to if that is near.
func (m *Machine) place(addr uint64) (name string, offset int64) {
	best := uint64(near)
	for i := range m.regions {
		r := &m.regions[i]
		switch from := addr - r.Base; {
		case r.Length == 0:
		case from < r.Length:
			return m.name(i), int64(from)
		case from-r.Length < best:
			best, name, offset = from-r.Length, m.name(i), int64(from)
		case -from <= best:
			best, name, offset = -from-1, m.name(i), int64(from)
		}
	}
	return name, offset
}

// name returns the name of a region. That of the context is its own field,
// since events give it without a change of the region.
func (m *Machine) name(i int) string {
	if i == contextRegion {
		return cmp.Or(m.ContextName, "context")
	}
	return m.regions[i].Name
}
