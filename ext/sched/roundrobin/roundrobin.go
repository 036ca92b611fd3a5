// Package roundrobin is the scheduler roundrobin (roundrobin.c): turns of the same length.
package roundrobin

import _ "embed"

// Object is the compiled extension, for slot sched.
//
//go:embed roundrobin.o
var Object []byte

// Quantum is the name of the constant for the length of a turn, in nanoseconds.
const Quantum = "quantum"
