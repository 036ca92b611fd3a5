// Package barrier is the extension barrier (barrier.c) for Go programs.
package barrier

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed barrier.o
var Object []byte

// Handler is the constant for the handler of entries. What extensions send to each other has the
// next one, and releases have the one after that.
const Handler = "handler"
