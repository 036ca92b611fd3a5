// Package spread is the extension spread (spread.c), which gives the ranks of a job to as many
// nodes as have room.
package spread

import _ "embed"

// Object is the compiled extension, for slot place.
//
//go:embed spread.o
var Object []byte
