// Package nimble inserts and runs extensions: small programs in eBPF
// instructions (RFC 9669) that decide what happens to the kernel's events.
//
// Insert takes what package object has read, has package verify check it, makes
// its maps (package state) and threads it on an engine that the caller chooses
// (package engine and those below it). The Extension that it returns is run for
// each event, is stopped at a fault or a limit, keeps statistics, and is removed
// by Close. Nothing here knows of nodes, jobs or messages.
//
// # What RFC 9669 leaves open
//
// These rules hold on every engine; the facts of engine/enginetest test them.
// The engine linux refuses programs that would notice the kernel's different
// rules, and counts no fuel.
//
//   - Byte order is little-endian, of instructions and of memory.
//   - Loads and stores may be unaligned. An atomic operation at an address that
//     is not a multiple of its size is a fault of kind alignment.
//   - Atomic operations are sequentially consistent, also with atomic operations
//     of applications that share the memory. Plain accesses are not ordered. An
//     aligned plain access of 8 bytes or fewer is not torn.
//   - At entry r1 is the address of the context and r2 its length; every other
//     register but r10 is 0, and so is every byte of the stack, in each function
//     and each run.
//   - r10 is read-only. A function that names it has a stack frame of 512 bytes
//     that ends there; a function that does not name it has none.
//   - The stack is one region, the frames of all active functions: a function
//     may use pointers to its callers' frames. What lies below is out of reach.
//   - A local call passes all registers but r10. The called function's exit
//     restores r6 to r10 and leaves r0 to r5 as they are. A service changes r0.
//   - A program has at most 1,000,000 slots. A call depth of 8 functions, a
//     million instructions and one second are the limits unless others are set.
//   - Fuel is charged at entry to a basic block by its number of instructions,
//     a wide one counting once. A block that exceeds the fuel left does not start.
//     A service counts as the one instruction that calls it. The clock is read
//     after every 100,000 instructions, and starts at the first reading.
//   - An address is a host address. An access is allowed if it lies in one
//     region that permits it; addresses wrap around at 2^64 and so do not help.
//   - A map, as a value in a register, is opaque, and so is the address of a
//     function. A map descriptor and a map index mean the same: the place in
//     the program's list of maps. There are no platform variables.
//   - Program counters, jump distances and indices count slots of 8 bytes.
//
// Refused by name are the legacy packet instructions and callx. A program with
// an instruction that can never be reached is accepted, but every function must
// end in an exit or an unconditional jump.
//
// # Proofs
//
// Where package verify proves that an access stays in its memory for every
// content of the context, the access runs without a check. Proofs cover the
// stack, maps, and the context as far as Options.Context promises its size. Run
// refuses an event that breaks the promise.
//
// # Trust
//
// An untrusted extension cannot touch memory outside its regions. A trusted one
// runs without checks: an access of memory that is not mapped is a fault of the
// extension, but one that overwrites this process is not noticed.
//
// # Locks
//
// An Extension has three: Extension.running, held during a run or a burst of
// runs, Extension.open, held for reading while its memory is used without a run,
// and Extension.reading, held by Stats. Close takes running before open, and
// Stats and Close take reading before running. The only other lock in nimble
// guards the pages for emitted code in engine/subroutine; no other lock is taken
// under it.
package nimble
