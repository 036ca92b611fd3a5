// Package barrier is the extension barrier (barrier.c) for Go programs.
package barrier

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed barrier.o
var Object []byte
