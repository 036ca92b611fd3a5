// Package subroutine is the engine that turns a program into machine code for
// linux/amd64: every instruction becomes the few machine instructions that are
// its meaning, written one after the other. Where Nimble's other engines look
// up what to do next, this one falls through.
//
// # Between Go and emitted code
//
// Emitted code begins with entries that look like Go functions: Go calls them
// with arguments in registers and gets results in registers, as Go's internal
// calling convention has it, see entry. Each loads what it needs of the
// registers of the extension from the cpu, which is in the Machine, and goes on.
// Emitted code never calls Go. What it does not do itself (a service, the next
// slice of fuel, a stack frame, a fault) it leaves to Go: it puts a site, which
// is a reason and a place, into DX and jumps to a way out, which stores registers
// in the cpu and returns. Run does what is to be done, and enters the code again.
// A run that neither leaves nor finds the Machine changed since the last one
// takes one call and nothing else.
//
// Emitted code cannot be preempted, so it must come back soon: it has at most
// engine.Slice of fuel at a time, and Machine.Refill has the stack check at
// which Go stops a goroutine.
//
// # Registers
//
//	r0  r1  r2  r3  r4  r5  r6  r7   r8   r9   r10
//	AX  DI  SI  R8  CX  R9  BX  R10  R11  R15  R13
//
// BP is the cpu, R12 the fuel that the slice still has, DX is for single
// instructions. The runtime follows BP from frame to frame when it profiles, so
// a cpu begins with what it takes for the last frame. r0 is AX because of
// compare-and-exchange, r4 is CX and DX is nobody's because of shifts and
// divisions. SP stays where the call has left it, at a return address into Go:
// that is what lets the runtime profile what runs here. So the frames of local calls are in the
// Machine and not on this stack. R14 and X15 belong to Go, and no vector register
// is used.
//
// # Memory
//
// A checked access compares the address with a copy of the window of the region
// that was used last: one for loads, one for stores, one for atomic operations.
// A load or store that misses calls a search through the windows of all regions,
// which all of its size share, and which copies what it finds; an atomic
// operation asks Go. Copies last until the windows change. An access that the
// verifier has proved, or of a trusted extension, is one machine instruction. If
// a trusted one is bad, a handler of the signal lets the code be left: see
// catchFaults.
//
// Code is in an arena of the process, so that small programs need not map memory
// each. The arena is mapped twice, and neither view is both writable and
// executable: code is written through the one and executed in the other. Where
// the system forbids that, pages are written and then made executable.
package subroutine

import "margay/nimble/engine"

// New returns the engine, or an error that says why there is none here.
func New() (engine.Engine, error) { return newEngine(false) }

// NewCalls returns the engine in the form that its name comes from, called
// subroutine-calls: a program is a sequence of calls of subroutines, one for
// each different instruction, and nothing is inlined but what leaves or jumps.
// It is there to be measured against the other.
func NewCalls() (engine.Engine, error) { return newEngine(true) }
