// Package infinite is the scheduler infinite (infinite.c): the running task keeps the core until it
// waits or ends.
package infinite

import _ "embed"

// Object is the compiled extension, for slot sched.
//
//go:embed infinite.o
var Object []byte
