// Package echo is the extension echo (echo.c) for Go programs.
package echo

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed echo.o
var Object []byte
