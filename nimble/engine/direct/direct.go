// Package direct is the engine of direct-threaded code: a program becomes an
// array of cells, each with the address of the machine code that does one
// instruction, its handler, and the constants of that instruction. A handler
// ends in a jump to the handler of the next cell. Nothing is made executable at
// insertion: the handlers are part of this program.
//
// # Handlers
//
// They are written by tools/handlers from the table of package isa. On amd64 the
// registers of an extension live in machine registers, and there is a handler
// for every register, or two, that an instruction can name. Some rare
// instructions take two cells: the first handler leaves the source register or
// the address of the access in CX, the second does the rest. On arm64 the
// registers are in memory, and a cell says where.
//
//	          r0  r1  r2   r3  r4  r5  r6  r7   r8   r9   r10     cpu  cell  fuel  ahead
//	amd64     AX  DI  R12  R8  DX  R9  BX  R10  R11  R15  in cpu  BP   SI    X2    R13
//	arm64     all in cpu                                          R0   R1    R2
//
// The cell ahead is the one to which the block under way jumps at its end, if it
// does. It is known from the beginning of the block, so that a loop need not
// wait for what its last cell says. A block that jumps to its own beginning does
// not look it up again.
//
// The runtime follows BP from frame to frame when it profiles, so a cpu begins
// with what it takes for the last frame. R14 and X15 belong to Go. The stack
// pointer stays where the call has left it: that is what lets the runtime turn a
// bad access of a trusted extension into a panic, and profile what runs here.
// So the frames of local calls are in the Machine.
//
// # Between Go and handlers
//
// Run keeps the state of a run in a cpu, in the Machine, and calls start, later
// enter, which loads the registers and jumps to the handler of a cell. On amd64
// these two are handlers that look like Go functions: arguments and results are
// in registers, so that a short run takes one call and nothing else. Handlers
// never call Go. What they do not do themselves (a service, the next slice of
// fuel, a local call, some atomic operations, a fault) they leave to Go: they
// store all registers, the cell and a reason in the cpu and return. They cannot
// be preempted, so they must come back soon: they have at most engine.Slice of
// fuel at a time, and Machine.Refill has the stack check at which Go stops a
// goroutine.
//
// A jump pays for the block it goes to, start for the first; where a block is run
// into, a cell of its own pays.
//
// # Memory
//
// A checked access compares the address with a copy of the window of the region
// that was used last: one for loads, one for stores, one for atomic operations.
// A load or store that misses goes through the windows of all regions, copies
// the one that it finds, and is done again; an atomic operation asks Go. An
// unchecked access of a trusted extension notes its cell, address and fuel in the
// cpu, because nothing of the registers is left when it becomes a panic. What the
// verifier has proved does neither.
package direct

import "margay/nimble/engine"

//go:generate go run ../../../tools/handlers amd64
//go:generate go run ../../../tools/handlers arm64

// New returns the engine, or an error that says why there is none here.
func New() (engine.Engine, error) { return newEngine() }
