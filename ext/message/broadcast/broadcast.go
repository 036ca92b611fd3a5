// Package broadcast is the extension broadcast (broadcast.c) for Go programs.
package broadcast

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed broadcast.o
var Object []byte
