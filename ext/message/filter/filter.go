// Package filter is the extension filter (filter.c) for Go programs.
package filter

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed filter.o
var Object []byte
