//go:build linux && amd64

package subroutine

import (
	"unsafe"

	"margay/nimble/engine"
)

// Where arguments are, of a run and of a service, relative to a cpu.
const (
	offScratch  = int32(unsafe.Offsetof(engine.Machine{}.Scratch))
	offArgs     = int32(unsafe.Offsetof(engine.Machine{}.Args)) - offScratch
	offCallArgs = int32(unsafe.Offsetof(engine.Machine{}.Call)+unsafe.Offsetof(engine.Machine{}.Call.Args)) - offScratch
)

// cpuOf returns the cpu that has the scratch memory of a Machine.
func cpuOf(m *engine.Machine) *cpu { return (*cpu)(unsafe.Pointer(&m.Scratch)) }

// addressOf returns where a slice of mapped memory starts.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// place returns where the elements of a slice are. Who uses the addresses keeps
// the slice.
func place[T any](s []T) table {
	first := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s))))
	return table{first, first + uint64(len(s))*uint64(unsafe.Sizeof(*new(T)))}
}

// function makes a Go function of the code at an address, which it keeps in *at:
// a function is a pointer to a word with the address of its code.
func function(at *uintptr) entry { return *(*entry)(unsafe.Pointer(&at)) }
