// Package allreduce is the extension allreduce (allreduce.c) for Go programs.
package allreduce

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed allreduce.o
var Object []byte
