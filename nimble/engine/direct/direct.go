// Package direct is the engine of direct-threaded code: a program becomes an
// array of cells. Each cell holds the constants of one instruction and the
// address of its handler, the machine code that executes it. A handler ends in a
// jump to the handler of the next cell. Insertion makes no memory executable:
// the handlers are part of this program.
//
// # Handlers
//
// tools/handlers generates them from the table of package isa. On amd64 the
// registers of an extension live in machine registers, and there is a handler
// for every register, or pair of registers, that an instruction can name. Some
// rare instructions take two cells: the first handler leaves the source register
// or the address of the access in CX, the second does the rest. On arm64 the
// registers are in memory, and a cell has their offsets.
//
//	          r0  r1  r2   r3  r4  r5  r6  r7   r8   r9   r10     cpu  cell  fuel  ahead
//	amd64     AX  DI  R12  R8  DX  R9  BX  R10  R11  R15  in cpu  BP   SI    X2    R13
//	arm64     all in cpu                                          R0   R1    R2
//
// The cell ahead is the target of the jump that ends the current block, if a
// jump does. It is loaded at the beginning of the block, so that a loop does not
// wait for a load from its last cell. A block that jumps to its own beginning
// does not load it again.
//
// When the runtime profiles, it follows BP from frame to frame, so a cpu begins
// with two zeros that end this walk. R14 and X15 belong to Go. Handlers do not
// move the stack pointer: otherwise the runtime could neither turn a bad access
// of a trusted extension into a panic, nor profile handlers. So the frames of
// local calls are in the Machine.
//
// # Between Go and handlers
//
// Run keeps the state of a run in a cpu, in the Machine's Scratch. It calls start
// once, then enter, which load the registers and jump to the handler of a cell.
// On amd64 these two are handlers that look like Go functions: arguments and
// results are in registers, so that a short run takes a single call. Handlers
// never call Go. For a service, the next slice of fuel, some local calls and
// atomic operations, and a fault, they return to Go, after storing all registers,
// the cell and a reason in the cpu. They cannot be preempted, so they must return
// soon: they get at most engine.Slice of fuel at a time, and Machine.Refill has
// the stack check at which Go preempts a goroutine.
//
// A jump pays for the block that it enters, and start for the first block. A
// block entered by falling through has a cell of its own that pays.
//
// # Memory
//
// A checked access compares the address with a copy of the window of the region
// used last: one for loads, one for stores, one for atomic operations. A load or
// store that misses searches the windows of all regions, copies the one that it
// finds, and is repeated; an atomic operation leaves the search to Go. An
// unchecked access of a trusted extension records its cell, address and fuel in
// the cpu, because a panic does not preserve the registers. An access that the
// verifier has proved does neither.
package direct

import "margay/nimble/engine"

//go:generate go run ../../../tools/handlers amd64
//go:generate go run ../../../tools/handlers arm64

// New returns the engine. It returns an error on architectures without handlers.
func New() (engine.Engine, error) { return newEngine() }
