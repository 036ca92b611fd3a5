//go:build amd64 || arm64

package direct

import "margay/nimble/engine"

// cpu is the state of a run that Go and handlers share. Handlers know the offsets
// of its fields. The Machine and the code keep the memory alive to which its
// addresses point.
type cpu struct {
	end    [2]uint64     // zeros, which end the runtime's walk along BP
	back   uint64        // BP of Go, amd64 only
	left   int64         // fuel that the slice still has, while Go runs
	reason reason        // why handlers returned
	pc     uint64        // address of the cell at which they returned
	ahead  uint64        // target of the jump that ends the current block, if a jump does
	addr   uint64        // of an access that missed, or of the last unchecked access
	at     uint64        // cell of the last unchecked access, 0: none
	paid   int64         // left during that access
	read   engine.Window // of the last load
	write  engine.Window // of the last store
	atomic engine.Window // of the last atomic operation
	reads  table         // windows of all regions
	writes table
	frames table      // space for callers
	frame  uint64     // address of the next one
	stack  uint64     // lowest address of the stack in use
	top    uint64     // its end
	first  uint64     // its lowest address when a run begins
	reg    [11]uint64 // r0 to r10, while Go runs
}

// table is the address range of a slice's elements, [first, end).
type table struct{ first, end uint64 }

// Sizes and offsets, in bytes, that handlers use of windows and frames.
const (
	windowSize = 40
	offLimit   = 8

	frameSize = 48
	offReturn = 0
	offSaved  = 8
	offFP     = 40
)

// reason is why handlers returned to Go.
type reason uint64

const (
	finished   reason = iota // the exit of the first function, if no function calls it
	exit                     // the exit of any other function
	refill                   // a block costs more than the slice has left
	access                   // an access outside all windows
	misaligned               // an atomic operation at a bad address
	elsewhere                // an atomic operation outside the window
	modify                   // an atomic operation that Go executes
	call                     // a call of a service
	local                    // a local call
	deep                     // a local call beyond the call depth
)

// cell is an instruction, or half of one. Handlers know the offsets of its
// fields.
type cell struct {
	handler  uintptr
	operand  uint64 // a constant, the offset of an access, the index of a service
	cost     uint32 // fuel of the block that starts here, 0 if none does
	ahead    int32  // distance in bytes to the target of the jump that ends that block
	extra    int32  // distance of a jump in bytes, or the constant of a store
	dst, src uint16 // offsets in the cpu of the registers
}

// handlers returns the addresses of all handlers by number.
func handlers() *[handlerCount]uintptr
