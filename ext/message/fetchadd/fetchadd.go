// Package fetchadd is the extension fetchadd (fetchadd.c) for Go programs.
package fetchadd

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed fetchadd.o
var Object []byte
