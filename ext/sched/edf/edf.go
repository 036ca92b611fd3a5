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

// Quantum is the name of the constant for the length of a turn in unreserved time, in nanoseconds.
const Quantum = "quantum"

// Slice returns the name of the constant for a task's share of each period, in nanoseconds, by
// order of arrival at the core.
func Slice(task int) string { return fmt.Sprintf("slice%d", task) }

// Period returns the name of the constant for the length of its periods, in nanoseconds.
func Period(task int) string { return fmt.Sprintf("period%d", task) }
