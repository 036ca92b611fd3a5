//go:build amd64 || arm64

package direct

import (
	"unsafe"

	"margay/nimble/engine"
	"margay/nimble/isa"
)

// cellSize is the size of a cell in bytes.
const cellSize = int(unsafe.Sizeof(cell{}))

// cpuOf returns the cpu in the scratch memory of a Machine.
func cpuOf(m *engine.Machine) *cpu { return (*cpu)(unsafe.Pointer(&m.Scratch)) }

// index returns the number of the cell at an address.
func (c *code) index(at uint64) int {
	return int(at-uint64(uintptr(unsafe.Pointer(unsafe.SliceData(c.cells))))) / cellSize
}

// place returns the addresses of a slice's elements. The caller must keep the
// slice alive.
func place[T any](s []T) table {
	first := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s))))
	return table{first, first + uint64(len(s))*uint64(unsafe.Sizeof(*new(T)))}
}

// target returns the address of the cell to which the block that starts at c
// jumps, if it ends in a jump.
func (c *cell) target() uint64 { return uint64(uintptr(unsafe.Pointer(c))) + uint64(int64(c.ahead)) }

// registerOffset returns the offset of a register in the cpu.
func registerOffset(r isa.Register) uint16 { return uint16(unsafe.Offsetof(cpu{}.reg)) + 8*uint16(r) }
