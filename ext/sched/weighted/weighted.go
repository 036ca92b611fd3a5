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

// Quantum is the name of the constant that says how long a turn is, in nanoseconds.
const Quantum = "quantum"

// Weight returns the name of the constant that is the weight of a task, by the order in which the tasks came to the core.
func Weight(task int) string { return fmt.Sprintf("weight%d", task) }
