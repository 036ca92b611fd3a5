package subroutine

import "margay/nimble/engine"

// cpu is the state of a run that Go and emitted code share. Emitted code accesses
// it through BP with the offsets below. The Machine keeps the memory alive to
// which its addresses point.
type cpu struct {
	end    [2]uint64     // zeros, which end the runtime's walk along BP
	read   engine.Window // of the last load
	write  engine.Window // of the last store
	stray  uint64        // where emitted code continues after a bad access; 0: a bad access is a bug of ours
	addr   uint64        // address of a checked access that missed its window
	at     uint64        // address of the instruction whose access was bad
	atomic engine.Window // of the last atomic operation
	spill  [2]uint64     // registers spilled within one instruction
	reads  table         // windows of all regions
	writes table
	frames table      // space for callers
	frame  uint64     // address of the next one
	stack  uint64     // lowest address of the stack in use
	top    uint64     // its end
	code   uint64     // address of the emitted code
	bp     uint64     // BP of Go while emitted code runs
	begin  uint64     // lowest address of the stack in use when a run begins
	reg    [11]uint64 // r0 to r10, while Go runs
}

// table is the address range of a slice's elements, [first, end).
type table struct{ first, end uint64 }

// Offsets in a cpu, in a table, in windows and in frames. Arguments are elsewhere
// in the Machine: memory_unsafe.go has their offsets.
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

// Machine registers with another use.
const (
	scratch = dx
	self    = bp
	fuel    = r12
)

// entry is an entry of emitted code, as the Go function that it looks like. left
// is the fuel of the slice; some entries ignore r0 and next (an address in the
// code). It returns r0, the site at which the code returned, and the rest of the
// fuel.
//
// Go passes k, left, r0 and next in AX, BX, CX and DI, takes the results from AX,
// BX and CX, and needs only SP, BP, R14 and X15 to be preserved (Go internal ABI
// specification, "amd64 architecture").
type entry func(k *cpu, left int64, r0, next uint64) (r0out uint64, at site, leftOut int64)
