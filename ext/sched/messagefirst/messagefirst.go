// Package messagefirst is the scheduler message-first (messagefirst.c): the core goes to tasks with
// pending messages.
package messagefirst

import _ "embed"

// Object is the compiled extension, for slot sched.
//
//go:embed messagefirst.o
var Object []byte

// The names of the constants for the length of a turn and for the interval between checks for
// pending messages, in nanoseconds.
const (
	Quantum = "quantum"
	Look    = "look"
)
