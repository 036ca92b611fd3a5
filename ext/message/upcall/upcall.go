// Package upcall is the extension upcall (upcall.c) for Go programs.
package upcall

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed upcall.o
var Object []byte

// First is the constant for the lowest handler whose messages interrupt.
const First = "first"

// DefaultFirst is its default.
const DefaultFirst = 128
