// Package account is the extension account (account.c) for Go programs: its object and its state.
package account

import (
	_ "embed"
	"encoding/binary"
)

// Object is the compiled extension, for slot exit.
//
//go:embed account.o
var Object []byte

// Map is the name of the extension's map.
const Map = "account"

// Sums are the totals of a node's processes: struct account.
type Sums struct {
	Processes   uint64
	Nanoseconds uint64 // run time of all
	Failed      uint64 // those with an exit status that is not 0
	Killed      uint64 // those that a signal ended
}

// Read reads the bytes of the map.
func Read(b []byte) (Sums, error) {
	var s Sums
	_, err := binary.Decode(b, binary.LittleEndian, &s)
	return s, err
}
