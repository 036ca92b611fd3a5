// Package subroutine is the engine that compiles a program to machine code for
// linux/amd64: every instruction becomes a few machine instructions. Nimble's
// other engines look up the next instruction, this one falls through.
//
// # Between Go and emitted code
//
// Emitted code begins with entries that look like Go functions: Go passes
// arguments and takes results in registers, by its internal calling convention;
// see entry. Each entry loads the registers of the extension that it needs from
// the cpu, which is in the Machine's Scratch, and continues. Emitted code never
// calls Go. For a service, the next slice of fuel, a stack frame and a fault it
// returns to Go: it puts a site, which is a reason and a place, into DX and jumps
// to an exit path, which stores registers in the cpu and returns. Run handles the
// reason and enters the code again. A run that needs none of these, on a Machine
// unchanged since the last run, takes a single call.
//
// Emitted code cannot be preempted, so it must return soon: it gets at most
// engine.Slice of fuel at a time, and Machine.Refill has the stack check at
// which Go preempts a goroutine.
//
// # Registers
//
//	r0  r1  r2  r3  r4  r5  r6  r7   r8   r9   r10
//	AX  DI  SI  R8  CX  R9  BX  R10  R11  R15  R13
//
// BP is the cpu, R12 the fuel that the slice still has, DX is scratch within one
// instruction. When the runtime profiles, it follows BP from frame to frame, so a
// cpu begins with two zeros that end this walk. r0 is AX because of
// compare-and-exchange, and r4 is CX and DX is free because of shifts and
// divisions. SP stays at the return address into Go: otherwise the runtime could
// not profile emitted code. So the frames of local calls are in the Machine and
// not on this stack. R14 and X15 belong to Go, and no vector register is used.
//
// # Lean code
//
// A program without loops and calls, of a length that fits into a slice, is
// emitted as lean code, which does not test the fuel: a run needs fuel for every
// instruction. It counts what it uses as exactly as other code. If, in addition,
// no instruction can leave the code, the code is plain: it uses no cpu, BP stays
// Go's, R12 is the Machine, and one call is the whole run. The first run with less
// fuel makes Run emit the code that tests it. See form.
//
// # Memory
//
// A checked access compares the address with a copy of the window of the region
// used last: one for loads, one for stores, one for atomic operations. A load or
// store that misses calls a search of the windows of all regions, shared by all
// accesses of its kind and size, which copies the window that it finds; an atomic
// operation leaves the search to Go. Copies are valid until the windows change.
// An access that the verifier has proved, or of a trusted extension, is one
// machine instruction. If a trusted one is bad, a signal handler makes the code
// return to Go: see catchFaults.
//
// Programs share an arena of the process, so that a small program need not map
// memory. It is near the process's own code, which makes calls faster. The arena
// is mapped twice, and no view is both writable and executable: code is written
// through one view and executed in the other. Where the system forbids that, pages
// are written and then made executable.
//
// Locks, outermost first: late.making, held while code is made that is needed late,
// then arena.lock.
package subroutine

import "margay/nimble/engine"

// New returns the engine. It returns an error except on linux/amd64.
func New() (engine.Engine, error) { return newEngine(false) }

// NewCalls returns subroutine-calls, the form of the engine that its name comes
// from: a program is a sequence of calls of subroutines, one for each different
// instruction. Only jumps and instructions that return to Go are inlined. It
// exists for comparison in benchmarks.
func NewCalls() (engine.Engine, error) { return newEngine(true) }
