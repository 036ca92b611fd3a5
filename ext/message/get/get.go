// Package get is the extension get (get.c) for Go programs.
package get

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed get.o
var Object []byte

// The extension's constants: the handler of requests, whose answers have the next one, and the
// bytes of its memory.
const (
	Handler = "handler"
	Size    = "size"
)

// Memory is the map that is read, in entries of Block bytes.
const (
	Memory = "memory"
	Block  = 1024
)
