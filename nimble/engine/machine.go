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

	// clockSlices is the number of slices between two readings of the clock,
	// which cost more than to begin a slice.
	clockSlices = 20

	// near is the largest distance from a region, in bytes, at which a fault
	// still names it.
	near = 4096
)

// Indices of the regions that every Machine has. The maps follow.
const (
	contextRegion = iota
	stackRegion
	firstMap
)

// Machine is the state of one running extension. The caller sets the first group
// of fields before a run, which updates Fuel. The other fields are for engines.
// It is not safe for concurrent use.
type Machine struct {
	Args        [5]uint64     // r1 to r5 at entry: the context's address and length if the program was verified with a Context
	Fuel        uint64        // instructions that may be executed; after a run: the rest
	MaxTime     time.Duration // wall clock limit, counted from the first reading of the clock; 0: none
	ContextName string        // the region of the context in faults; empty: context
	Call        service.Call  // Core and Data for services

	Read, Write *Window // of the last load and the last store; at first the context
	Atomic      *Window // of the last atomic operation that FindAtomic looked up
	Frames      []Frame // space for the callers of the running function
	SP          uint64  // lowest address of the stack in use

	// State that an engine stores before it can be interrupted by a fault: the
	// rest of its slice's fuel, and the index (in the engine's own terms) and
	// address of an unchecked access. SliceLeft is stored before a service is
	// called, and read again afterwards.
	SliceLeft int64
	At        int
	Addr      uint64

	// Scratch is memory for an engine during a run. Prepared is the Tenant of the
	// Code that has prepared Scratch and the stack for its next run. A change of a
	// window sets it to nil, because copies of windows in Scratch are then stale.
	// An engine that writes to Scratch sets it.
	Scratch  [48]uint64
	Prepared *Tenant

	program       *verify.Program
	slice         uint64 // fuel of a slice
	stack         *memory.Memory
	top           uint64 // end of the stack
	regions       []memory.Region
	reads, writes []Window  // of each region
	deadline      time.Time // valid once clockSlices are used up
	slices        uint      // used up in this run
}

// Tenant is part of a Code and identifies it in a Machine.
type Tenant struct{ _ byte }

// Frame holds the state that a local call saves and an exit restores: r6 to r9
// and r10 of the caller, and the return address in the engine's own terms.
type Frame struct {
	Return int
	Saved  [4]uint64
	FP     uint64
}

// Window is a region in the form that engines check: an access of 1<<n bytes at
// addr is inside if addr-Base < Limit[n]. The zero Window allows no access.
type Window struct {
	Base  uint64
	Limit [4]uint64
}

// set makes w the Window of a range, or the zero Window unless allowed.
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

// NewMachine makes a Machine for a program and its maps. At most callDepth
// functions, 1 to MaxCallDepth, may be active at once. The stack, with
// verify.FrameSize bytes for each, is outside the Go heap: the caller must Close
// the Machine.
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

// suits reports whether maps are at least as large and as writable as the
// declarations that a program was verified with.
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

// setRegion changes an entry of the table of regions.
func (m *Machine) setRegion(i int, r memory.Region) {
	m.regions[i] = r
	m.reads[i].set(r.Base, r.Length, r.Readable)
	m.writes[i].set(r.Base, r.Length, r.Writable)
	m.Prepared = nil
}

// Context returns the memory that describes the event.
func (m *Machine) Context() memory.Region { return m.regions[contextRegion] }

// SetContext sets the context of the next runs. It must match the verify.Context
// of the program. The name of the region is not used: see ContextName.
func (m *Machine) SetContext(r memory.Region) { m.setRegion(contextRegion, r) }

// Holds reports whether the context is this one.
func (m *Machine) Holds(r *memory.Region) bool {
	c := &m.regions[contextRegion]
	return r.Base == c.Base && r.Length == c.Length && r.Readable == c.Readable && r.Writable == c.Writable
}

// Start prepares for a run: an empty stack, no deadline yet. It takes the first
// slice of the fuel and returns its size.
func (m *Machine) Start() (left int64) {
	if m.SP != m.top {
		m.Empty()
	}
	return m.FirstSlice()
}

// Empty empties the stack. Engines that cannot afford a call of Start use Empty
// and FirstSlice.
func (m *Machine) Empty() { m.Enter(m.top) }

// FirstSlice takes the first slice of the fuel and returns its size. It does not
// read the clock yet.
func (m *Machine) FirstSlice() (left int64) {
	m.slices = 0
	slice := min(m.Fuel, m.slice)
	m.Fuel -= slice
	return int64(slice)
}

// Enter makes [sp, top) the stack in use. Memory below sp is inaccessible until
// a frame is pushed.
func (m *Machine) Enter(sp uint64) {
	m.SP = sp
	stack := &m.regions[stackRegion]
	stack.Base, stack.Length = sp, m.top-sp
	m.reads[stackRegion].set(sp, stack.Length, true)
	m.writes[stackRegion].set(sp, stack.Length, true)
	m.Prepared = nil
}

// PushFrame pushes a zeroed frame. The caller must not push more frames than the
// call depth.
func (m *Machine) PushFrame() {
	m.Enter(m.SP - verify.FrameSize)
	m.ClearFrame()
}

// ClearFrame fills the lowest frame with zeros.
func (m *Machine) ClearFrame() { clear(memory.View(m.SP, verify.FrameSize)) }

// FindRead looks for a region that allows a load of 1<<n bytes at addr and makes
// it the Read window; ok is false if there is none.
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

// FindAtomic is FindWrite for the Atomic window, in a region that also allows
// loads.
func (m *Machine) FindAtomic(addr uint64, n int) (ok bool) {
	for i := range m.writes {
		if w := &m.writes[i]; addr-w.Base < w.Limit[n&3] && m.regions[i].Readable {
			m.Atomic = w
			return true
		}
	}
	return false
}

// Windows returns the tables that FindRead and FindWrite search, for engines that
// search them in machine code. The entries change with the stack; the tables do
// not move.
func (m *Machine) Windows() (reads, writes []Window) { return m.reads, m.writes }

// View implements service.Space. The bytes are valid until Close of their memory.
func (m *Machine) View(addr, length uint64, write bool) ([]byte, bool) {
	for i := range m.regions {
		if r := &m.regions[i]; r.Readable && (r.Writable || !write) && r.Contains(addr, length) {
			return memory.View(addr, length), true
		}
	}
	return nil, false
}

// Refill takes another slice and pays for a block that costs more than the
// current slice has left. It returns the fuel of the slice after paying. If kind
// is not empty, the run is over and the slice still has fuel.
//
// The stack check on its entry is where the Go scheduler preempts a goroutine
// that runs nothing but an extension, in code that cannot be preempted itself.
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

// Left implements service.Budget. While a service runs, SliceLeft is the rest of
// the slice.
func (m *Machine) Left() uint64 { return m.Fuel + uint64(m.SliceLeft) }

// Take implements service.Budget.
func (m *Machine) Take(instructions uint64) {
	beyond := min(instructions, m.Fuel)
	m.Fuel -= beyond
	m.SliceLeft -= int64(instructions - beyond)
}

// expired reports whether the time is over. Its first call in a run sets the
// deadline.
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

// Fault ends a run: it describes the fault at a slot. addr matters to kinds with
// an address, err to kinds with a cause.
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

// place names the region that contains an address, or else the nearest one
// within near bytes.
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

// name returns the name of a region. The context's name is a field of its own,
// because it may change with the event while the region stays the same.
func (m *Machine) name(i int) string {
	if i == contextRegion {
		return cmp.Or(m.ContextName, "context")
	}
	return m.regions[i].Name
}
