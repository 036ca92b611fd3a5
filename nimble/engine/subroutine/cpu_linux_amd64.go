package subroutine

import "margay/nimble/engine"

// cpu is what Go and emitted code know of a run. Emitted code reaches it
// through BP, and so the offsets below are part of what is emitted. Addresses
// in it are of things that the Machine keeps alive.
type cpu struct {
	end    [2]uint64     // zeros: where the runtime stops when it follows BP
	left   int64         // fuel that the slice still has, while Go runs
	read   engine.Window // where the last load was
	write  engine.Window // where the last store was
	at     int64         // slot of the unchecked access under way, -1: none
	addr   uint64        // its address, or that of a checked one that missed
	paid   int64         // left when the block of an unchecked access had been paid
	atomic engine.Window // where the last atomic operation was
	number int64         // a constant divisor
	site   int64         // why the code was left
	back   uint64        // where the code goes on after a search
	reads  table         // windows of all regions
	writes table
	frames table      // room for callers
	frame  uint64     // address of the next one
	stack  uint64     // lowest address of the stack in use
	code   uint64     // address of the emitted code
	reg    [11]uint64 // r0 to r10, while Go runs
}

// table is where elements of a slice are, [first, end).
type table struct{ first, end uint64 }

// Offsets in a cpu, in a table, in windows and in frames.
const (
	offLeft   = 16
	offRead   = 24
	offWrite  = 64
	offAt     = 104
	offAddr   = 112
	offPaid   = 120
	offAtomic = 128
	offNumber = 168
	offSite   = 176
	offBack   = 184
	offReads  = 192
	offWrites = 208
	offFrames = 224
	offFrame  = 240
	offStack  = 248
	offCode   = 256
	offReg    = 264

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

// enter runs emitted code at an address until it leaves. It keeps nothing of k.
//
//go:noescape
func enter(k *cpu, at uintptr)
