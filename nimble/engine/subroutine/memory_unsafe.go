//go:build linux && amd64

package subroutine

import (
	"sync/atomic"
	"unsafe"

	"margay/nimble/engine"
)

// cpuOf returns the cpu that has the room of a Machine.
func cpuOf(m *engine.Machine) *cpu { return (*cpu)(unsafe.Pointer(&m.Room)) }

// addressOf returns where a slice of mapped memory starts.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// place returns where the elements of a slice are. Who uses the addresses keeps
// the slice.
func place[T any](s []T) table {
	first := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s))))
	return table{first, first + uint64(len(s))*uint64(unsafe.Sizeof(*new(T)))}
}

// pointer turns a host address outside the Go heap into a pointer.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// modify32 replaces the word at addr by what change makes of it and returns
// what it was. addr is a multiple of 4.
func modify32(addr uint64, change func(old uint32) uint32) uint32 {
	p := (*uint32)(pointer(addr))
	for {
		if old := atomic.LoadUint32(p); atomic.CompareAndSwapUint32(p, old, change(old)) {
			return old
		}
	}
}

// modify64 is modify32 for 8 bytes.
func modify64(addr uint64, change func(old uint64) uint64) uint64 {
	p := (*uint64)(pointer(addr))
	for {
		if old := atomic.LoadUint64(p); atomic.CompareAndSwapUint64(p, old, change(old)) {
			return old
		}
	}
}
