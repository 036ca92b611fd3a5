package portable

import "unsafe"

// cellSize is the size of a cell in bytes.
const cellSize = unsafe.Sizeof(cell{})

// pointer turns a host address into a pointer. The access must be checked or
// proved, or guarded turns its panic into a fault of the extension.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func load8(addr uint64) uint64  { return uint64(*(*uint8)(pointer(addr))) }
func load16(addr uint64) uint64 { return uint64(*(*uint16)(pointer(addr))) }
func load32(addr uint64) uint64 { return uint64(*(*uint32)(pointer(addr))) }
func load64(addr uint64) uint64 { return *(*uint64)(pointer(addr)) }

func store8(addr uint64, v uint64)  { *(*uint8)(pointer(addr)) = uint8(v) }
func store16(addr uint64, v uint64) { *(*uint16)(pointer(addr)) = uint16(v) }
func store32(addr uint64, v uint64) { *(*uint32)(pointer(addr)) = uint32(v) }
func store64(addr uint64, v uint64) { *(*uint64)(pointer(addr)) = v }
