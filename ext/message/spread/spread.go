// Package spread is the extension spread (spread.c) for Go programs.
package spread

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed spread.o
var Object []byte

// The extension's constants: the handler whose messages are spread, and the number of ranks.
const (
	Handler = "handler"
	Ranks   = "ranks"
)
