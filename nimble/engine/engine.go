// Package engine defines how verified programs run, and the interface that every
// engine implements.
//
// An Engine threads a verified program into Code, once, at insertion. Code runs
// on a Machine, which holds the rest of one running extension: memory, fuel,
// time, call frames. Code does not change, so many Machines may run it at the
// same time; a Machine runs one program at a time. State that outlives a run is
// in maps, which belong to neither, so an extension can move to another engine
// between two runs.
//
// All engines agree. For the same program, maps, context, arguments and fuel
// they return the same r0 or the same Fault (kind, pc, address, fuel left), and
// leave the same memory; only faults of kind Time are exempt. Package enginetest
// holds the suite that an engine must pass. The engine linux is an accelerator:
// it may refuse a program, a program that it accepts does not fault in a run,
// and it does not count fuel.
//
// Fuel is charged on entry to a basic block: one unit for each instruction of
// the original program, and one for a wide instruction. A block that costs more
// than is left does not start: the fault's pc is its first instruction. An
// instruction that faults leaves its block charged.
package engine

import (
	"margay/nimble/state"
	"margay/nimble/verify"
)

// Engine threads programs. It is safe for concurrent use.
type Engine interface {
	// Name returns the engine's name, such as portable.
	Name() string

	// Thread prepares a program for running with the given maps: one for each map
	// that the program declares, in the same order. The maps must stay open for as
	// long as the Code is used.
	Thread(p *verify.Program, maps []*state.Map) (Code, error)
}

// Code is a threaded program. Run is safe for concurrent use.
type Code interface {
	// Run runs the program on a Machine made for the same program and maps, and
	// returns its r0. An error is a *Fault. Run does not allocate unless it
	// faults, or is the first that needs code which most runs do not need.
	// Concurrent runs need different Machines.
	Run(m *Machine) (r0 uint64, err error)

	// Close releases the engine's resources. The Code must not be running, and
	// must not be run again.
	Close() error
}

// Plain is Code that may have a form in which a run cannot fault.
type Plain interface {
	// Plain returns a function that is Run, on a Machine with more fuel than most.
	// It is nil if there is none.
	Plain() (run func(m *Machine) (r0 uint64), most uint64)
}

// Sized is Code that reports its size.
type Sized interface {
	// Size returns the size of the code that the engine executes, in bytes.
	Size() int
}
