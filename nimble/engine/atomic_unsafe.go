package engine

import (
	"sync/atomic"
	"unsafe"
)

// pointer turns a host address into a pointer.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// The operations below return the old value. addr must be a multiple of the
// operand's size.

func add32(addr uint64, v uint32) uint32 { return atomic.AddUint32((*uint32)(pointer(addr)), v) - v }
func or32(addr uint64, v uint32) uint32  { return atomic.OrUint32((*uint32)(pointer(addr)), v) }
func and32(addr uint64, v uint32) uint32 { return atomic.AndUint32((*uint32)(pointer(addr)), v) }
func swap32(addr uint64, v uint32) uint32 {
	return atomic.SwapUint32((*uint32)(pointer(addr)), v)
}

func xor32(addr uint64, v uint32) uint32 {
	p := (*uint32)(pointer(addr))
	for {
		if old := atomic.LoadUint32(p); atomic.CompareAndSwapUint32(p, old, old^v) {
			return old
		}
	}
}

func compareAndSwap32(addr uint64, expected, v uint32) uint32 {
	p := (*uint32)(pointer(addr))
	for {
		if atomic.CompareAndSwapUint32(p, expected, v) {
			return expected
		}
		if old := atomic.LoadUint32(p); old != expected {
			return old
		}
	}
}

func add64(addr uint64, v uint64) uint64 { return atomic.AddUint64((*uint64)(pointer(addr)), v) - v }
func or64(addr uint64, v uint64) uint64  { return atomic.OrUint64((*uint64)(pointer(addr)), v) }
func and64(addr uint64, v uint64) uint64 { return atomic.AndUint64((*uint64)(pointer(addr)), v) }
func swap64(addr uint64, v uint64) uint64 {
	return atomic.SwapUint64((*uint64)(pointer(addr)), v)
}

func xor64(addr uint64, v uint64) uint64 {
	p := (*uint64)(pointer(addr))
	for {
		if old := atomic.LoadUint64(p); atomic.CompareAndSwapUint64(p, old, old^v) {
			return old
		}
	}
}

func compareAndSwap64(addr uint64, expected, v uint64) uint64 {
	p := (*uint64)(pointer(addr))
	for {
		if atomic.CompareAndSwapUint64(p, expected, v) {
			return expected
		}
		if old := atomic.LoadUint64(p); old != expected {
			return old
		}
	}
}
