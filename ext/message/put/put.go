// Package put is the extension put (put.c) for Go programs.
package put

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed put.o
var Object []byte
