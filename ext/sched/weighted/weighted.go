// Package weighted is the scheduler weighted (weighted.c): processor time in proportion to weights.
package weighted

import (
	_ "embed"
	"fmt"
)

// Object is the compiled extension, for slot sched.
//
//go:embed weighted.o
var Object []byte

// Quantum is the name of the constant for the length of a turn, in nanoseconds.
const Quantum = "quantum"

// Weight returns the name of the constant for the weight of a task, by order of arrival at the
// core.
func Weight(task int) string { return fmt.Sprintf("weight%d", task) }
