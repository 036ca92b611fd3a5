// Package messagefirst is the scheduler message-first (messagefirst.c): the core goes to whom messages wait for.
package messagefirst

import _ "embed"

// Object is the compiled extension, for slot sched.
//
//go:embed messagefirst.o
var Object []byte

// The names of the constants that say how long a turn is, and after how long it is looked whether messages still wait, in
// nanoseconds.
const (
	Quantum = "quantum"
	Look    = "look"
)
