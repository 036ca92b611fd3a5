// Package get is the extension get (get.c) for Go programs.
package get

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed get.o
var Object []byte
