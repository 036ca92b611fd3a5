// Package tolerate is the extension tolerate (tolerate.c), which ends a job when too many of its
// ranks have died of a fault.
package tolerate

import _ "embed"

// Object is the compiled extension, for slot fault.
//
//go:embed tolerate.o
var Object []byte

// Faults is the name of the constant for the number of faults that a job may have on a node.
const Faults = "faults"
