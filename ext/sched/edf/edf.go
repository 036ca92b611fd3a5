// Package edf is the scheduler edf (edf.c): a slice in every period, the earliest deadline first.
package edf

import (
	_ "embed"
	"fmt"
)

// Object is the compiled extension, for slot sched.
//
//go:embed edf.o
var Object []byte

// Quantum is the name of the constant that says how long a turn in unreserved time is, in nanoseconds.
const Quantum = "quantum"

// Slice returns the name of the constant that says how much of each period a task has, in nanoseconds, by the order in which
// the tasks came to the core.
func Slice(task int) string { return fmt.Sprintf("slice%d", task) }

// Period returns the name of the constant that says how long its periods are, in nanoseconds.
func Period(task int) string { return fmt.Sprintf("period%d", task) }
