// Package minimum is the extension minimum (minimum.c), which rejects nodes with too few resources.
package minimum

import _ "embed"

// Object is the compiled extension, for slot boot.
//
//go:embed minimum.o
var Object []byte

// The names of the constants for the least bytes for jobs and the least number of application cores
// of a node.
const (
	Memory = "memory"
	Cores  = "cores"
)
