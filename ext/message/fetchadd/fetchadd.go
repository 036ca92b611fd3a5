// Package fetchadd is the extension fetchadd (fetchadd.c) for Go programs.
package fetchadd

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed fetchadd.o
var Object []byte

// The extension's constants: the handler of requests, whose answers have the next one, and the
// number of words, which is the number of entries of the map Words.
const (
	Handler = "handler"
	Entries = "entries"
)

// Words is the map of words, of 64 bits each.
const Words = "words"

// NoWord is the bit of an answer's first argument that is set where there is no such word.
const NoWord = 1 << 63
