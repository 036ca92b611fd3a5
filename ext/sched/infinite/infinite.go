// Package infinite is the scheduler infinite (infinite.c): whoever has the core keeps it until it waits or ends.
package infinite

import _ "embed"

// Object is the compiled extension, for slot sched.
//
//go:embed infinite.o
var Object []byte
