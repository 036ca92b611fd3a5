// Package minimum is the extension minimum (minimum.c), which keeps nodes out of the machine that have too little.
package minimum

import _ "embed"

// Object is the compiled extension, for slot boot.
//
//go:embed minimum.o
var Object []byte

// The names of the constants that say how many bytes for jobs, and how many application cores, a node must have.
const (
	Memory = "memory"
	Cores  = "cores"
)
