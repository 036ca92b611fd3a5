// Package pack is the extension pack (pack.c), which fills the fullest nodes first.
package pack

import _ "embed"

// Object is the compiled extension, for slot place.
//
//go:embed pack.o
var Object []byte
