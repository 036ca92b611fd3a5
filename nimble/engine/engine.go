// Package engine is the border between what an extension is and how it runs.
//
// An Engine threads a verified program into Code, once, at insertion. Code is
// run on a Machine, which is everything of one running extension that is not
// code: memory, fuel, time, call frames. Code does not change, so many Machines
// may run it at the same time; a Machine runs one thing at a time. State that
// outlives a run is in maps, which belong to neither, so an extension can move
// to another engine between two runs.
//
// All engines agree. For the same program, maps, context, arguments and fuel
// they return the same r0 or the same Fault (kind, pc, address, fuel left) with
// the same memory behind; only faults of kind Time are outside this promise.
// Package enginetest holds the suite that an engine must pass. The engine linux
// is an accelerator: it may refuse a program, one that it takes has no faults,
// and it counts no fuel.
//
// Fuel is charged at entry to a basic block by the number of its instructions
// in the original program, a wide instruction counting once. A block that
// cannot be paid does not start: the fault's pc is its first instruction. An
// instruction that faults leaves its block charged.
package engine

import (
	"margay/nimble/state"
	"margay/nimble/verify"
)

// Engine makes programs run. It is safe for concurrent use.
type Engine interface {
	// Name returns the engine's name, such as portable.
	Name() string

	// Thread prepares a program for running with the given maps, one for each
	// of the program's descriptions and in their order. The maps must stay open
	// for as long as the Code is used.
	Thread(p *verify.Program, maps []*state.Map) (Code, error)
}

// Code is a threaded program.
type Code interface {
	// Run runs the program on a Machine made for the same program and maps, and
	// returns its r0. An error is a *Fault. Run does not allocate unless it
	// faults. Different Machines may run at the same time.
	Run(m *Machine) (r0 uint64, err error)

	// Close releases what the engine holds. The Code must not be running, and
	// must not be run again.
	Close() error
}

// Sized is Code that knows how much memory it takes.
type Sized interface {
	// Size returns the bytes of what an engine executes.
	Size() int
}
