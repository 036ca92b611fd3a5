// Package stamp is the extension stamp (stamp.c) for Go programs.
package stamp

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed stamp.o
var Object []byte

// First is the constant for the lowest handler whose messages interrupt.
const First = "first"

// Stamps is the map of arrival times, in nanoseconds of CLOCK_MONOTONIC, indexed by the first
// argument modulo Entries.
const (
	Stamps  = "stamps"
	Entries = 1024
)
