//go:build linux && amd64

package subroutine

import (
	"unsafe"

	"margay/nimble/engine"
)

// Offsets of the arguments of a run and of a service, relative to a cpu.
const (
	offScratch  = int32(unsafe.Offsetof(engine.Machine{}.Scratch))
	offArgs     = int32(unsafe.Offsetof(engine.Machine{}.Args)) - offScratch
	offCallArgs = int32(unsafe.Offsetof(engine.Machine{}.Call)+unsafe.Offsetof(engine.Machine{}.Call.Args)) - offScratch
)

// Offsets in a Machine. Plain code reaches the fuel with a displacement of a byte.
const (
	offMachineArgs = int32(unsafe.Offsetof(engine.Machine{}.Args))
	offFuel        = uint64(unsafe.Offsetof(engine.Machine{}.Fuel))
	_              = 127 - offFuel
)

// cpuOf returns the cpu in the scratch memory of a Machine.
func cpuOf(m *engine.Machine) *cpu { return (*cpu)(unsafe.Pointer(&m.Scratch)) }

// addressOf returns the address of a slice of mapped memory.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// place returns the addresses of a slice's elements. The caller must keep the
// slice alive.
func place[T any](s []T) table {
	first := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s))))
	return table{first, first + uint64(len(s))*uint64(unsafe.Sizeof(*new(T)))}
}

// function makes a Go function of the code whose address is in *at: a Go function
// value points to a word with the address of its code. *at must stay in place.
func function[F entry | plainEntry](at *uintptr) F { return *(*F)(unsafe.Pointer(&at)) }
