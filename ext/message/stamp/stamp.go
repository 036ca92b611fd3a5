// Package stamp is the extension stamp (stamp.c) for Go programs.
package stamp

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed stamp.o
var Object []byte

// First is the constant that says from which handler on messages interrupt.
const First = "first"

// Stamps is the map that holds the nanoseconds of CLOCK_MONOTONIC at which messages arrived, by their first argument modulo Entries.
const (
	Stamps  = "stamps"
	Entries = 1024
)
