package direct

import "unsafe"

// way is a way into handlers, as the Go function that it looks like: they run
// from a cell on until they leave, with left fuel of a slice, and return r0 if
// they are finished, why they left and the fuel that is left. start is for the
// first cell of a run: r1 to r5 are the arguments, r10 is as it is in k and the
// other registers are 0. enter takes them all from k, and no arguments.
//
// Go passes pointers and integers to functions in AX, BX, CX and DI, and gets
// results in AX, BX and CX. It expects nothing of other registers but what
// package direct says.
type way func(k *cpu, at *cell, left int64, args *[5]uint64) (r0 uint64, why reason, rest int64)

var start, enter = function(&handlers()[handleStart]), function(&handlers()[handleEnter])

// function makes a Go function of the code at an address, which it keeps in *at:
// a function is a pointer to a word with the address of its code.
func function(at *uintptr) way { return *(*way)(unsafe.Pointer(&at)) }
