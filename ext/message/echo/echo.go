// Package echo is the extension echo (echo.c) for Go programs.
package echo

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed echo.o
var Object []byte

// The extension's constants: the handler of the messages that are sent back, the handler of the
// answers, and the number of answers to a message.
const (
	Handler = "handler"
	Answer  = "answer"
	Copies  = "copies"
)

// Refused is the map that counts answers that were refused: their number (64 bits) and the last
// error (32 bits, negative).
const Refused = "refused"
