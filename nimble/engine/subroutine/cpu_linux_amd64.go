package subroutine

import "margay/nimble/engine"

// cpu is what Go and emitted code know of a run. Emitted code reaches it
// through BP, and so the offsets below are part of what is emitted. Addresses
// in it are of things that the Machine keeps alive.
type cpu struct {
	end    [2]uint64     // zeros: where the runtime stops when it follows BP
	read   engine.Window // where the last load was
	write  engine.Window // where the last store was
	stray  uint64        // where emitted code goes on after a bad access; 0: such an access is a fault of ours
	addr   uint64        // address of a checked access that missed its window
	at     uint64        // of the instruction whose access was bad
	atomic engine.Window // where the last atomic operation was
	spill  [2]uint64     // what is out of the way of one instruction
	reads  table         // windows of all regions
	writes table
	frames table      // room for callers
	frame  uint64     // address of the next one
	stack  uint64     // lowest address of the stack in use
	top    uint64     // its end
	code   uint64     // address of the emitted code
	bp     uint64     // BP of Go while emitted code runs
	begin  uint64     // lowest address of the stack in use when a run begins
	reg    [11]uint64 // r0 to r10, while Go runs
}

// table is where elements of a slice are, [first, end).
type table struct{ first, end uint64 }

// Offsets in a cpu, in a table, in windows and in frames. Those of arguments,
// which are elsewhere in the Machine, are in memory_unsafe.go.
const (
	offRead   = 16
	offWrite  = 56
	offStray  = 96
	offAddr   = 104
	offAt     = 112
	offAtomic = 120
	offSpill  = 160
	offReads  = 176
	offWrites = 192
	offFrames = 208
	offFrame  = 224
	offStack  = 232
	offTop    = 240
	offCode   = 248
	offBP     = 256
	offReg    = 272

	offFirst = 0
	offEnd   = 8

	offBase    = 0
	offLimit   = 8
	windowSize = 40

	offReturn = 0
	offSaved  = 8
	offFP     = 40
	frameSize = 48
)

// machineRegister is where each register of an extension lives.
var machineRegister = [11]reg{ax, di, si, r8, cx, r9, bx, r10, r11, r15, r13}

// What the others are for.
const (
	scratch = dx
	self    = bp
	fuel    = r12
)

// entry is a way into emitted code, as the Go function that it looks like. left
// is the fuel of the slice, r0 and next (an address in the code) matter only to
// those that take them. It returns the site at which the code was left, and r0
// and the fuel as they were there.
//
// Go passes k, left, r0 and next in AX, BX, CX and DI, takes the results from AX,
// BX and CX, and expects nothing of other registers but SP, BP, R14 and X15
// (Go internal ABI specification, "amd64 architecture").
type entry func(k *cpu, left int64, r0, next uint64) (r0out uint64, at site, leftOut int64)
