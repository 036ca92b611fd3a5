// Package put is the extension put (put.c) for Go programs.
package put

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed put.o
var Object []byte

// The extension's constants: the handler of the messages, whose answers have the next one, the
// bytes of its memory, and the number of the windows.
const (
	Handler = "handler"
	Size    = "size"
	Window  = "window"
)

// Memory is the map that is written, in entries of Block bytes.
const (
	Memory = "memory"
	Block  = 1024
)

// Bits of the second argument of a message.
const (
	Other  = 1 << 63 // write into the window of the rank in the low half
	Answer = 1 << 62 // an answer is wanted
)
