// Package allreduce is the extension allreduce (allreduce.c) for Go programs.
package allreduce

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed allreduce.o
var Object []byte

// Handler is the constant for the handler of contributions. What extensions send to each other has
// the next one, and results have the one after that.
const Handler = "handler"

// MaxValues is how many numbers of 64 bits a contribution has at most, and MaxCalls how many calls
// a rank may have started and not finished.
const (
	MaxValues = 32
	MaxCalls  = 16
)

// The operations, on unsigned numbers: the second argument of a contribution.
const (
	Sum = 1 + iota
	Min
	Max
	And
	Or
	Xor
)

// Failed is the bit of a result's second argument that is set where the ranks do not agree about
// the operation or the number of values.
const Failed = 1 << 32
