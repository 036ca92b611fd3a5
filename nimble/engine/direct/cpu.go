//go:build amd64 || arm64

package direct

import "margay/nimble/engine"

// cpu is what Go and handlers know of a run. Handlers know the offsets of its
// fields. Addresses in it are of things that the Machine and the code keep
// alive.
type cpu struct {
	end    [2]uint64     // zeros: where the runtime stops when it follows BP
	back   uint64        // BP of Go, amd64 only
	left   int64         // fuel that the slice still has, while Go does what handlers left for
	reason reason        // why handlers were left
	pc     uint64        // address of the cell at which they were
	ahead  uint64        // cell to which the block under way jumps, if it does
	addr   uint64        // of an access that missed, or of the unchecked one under way
	at     uint64        // cell of the unchecked access under way, 0: none
	paid   int64         // left during that access
	read   engine.Window // where the last load was
	write  engine.Window // where the last store was
	atomic engine.Window // where the last atomic operation was
	reads  table         // windows of all regions
	writes table
	frames table      // room for callers
	frame  uint64     // address of the next one
	stack  uint64     // lowest address of the stack in use
	top    uint64     // its end
	first  uint64     // its lowest address when a run begins
	reg    [11]uint64 // r0 to r10, while Go runs
}

// table is where the elements of a slice are, [first, end).
type table struct{ first, end uint64 }

// What handlers know of windows and of frames: sizes and offsets in bytes.
const (
	windowSize = 40
	offLimit   = 8

	frameSize = 48
	offReturn = 0
	offSaved  = 8
	offFP     = 40
)

// reason is why handlers were left.
type reason uint64

const (
	finished   reason = iota // the exit of the first function, when nothing calls it
	exit                     // the exit of any other function
	refill                   // a block cannot be paid from this slice
	access                   // an access outside all windows
	misaligned               // an atomic operation at a bad address
	elsewhere                // an atomic operation outside the window
	modify                   // an atomic operation that Go does
	call                     // a call of a service
	local                    // a local call
	deep                     // a local call for which there is no room
)

// cell is one instruction, or one half of it. Handlers know the offsets of its
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
