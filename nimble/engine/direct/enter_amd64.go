package direct

import "unsafe"

// way is an entry into handlers, as the Go function that it looks like. Handlers
// run from a cell on with left fuel of a slice. They return r0 if they are
// finished, why they returned, and the rest of the fuel. start is for the first
// cell of a run: r1 to r5 are the arguments, r10 is taken from k and the other
// registers are 0. enter takes all registers from k, and no arguments.
//
// Go passes pointers and integers to functions in AX, BX, CX and DI, and gets
// results in AX, BX and CX. Of the other registers it needs only those that the
// package comment names.
type way func(k *cpu, at *cell, left int64, args *[5]uint64) (r0 uint64, why reason, rest int64)

var start, enter = function(&handlers()[handleStart]), function(&handlers()[handleEnter])

// function makes a Go function of the code whose address is in *at: a Go function
// value points to a word with the address of its code. *at must stay in place.
func function(at *uintptr) way { return *(*way)(unsafe.Pointer(&at)) }
