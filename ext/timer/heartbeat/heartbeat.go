// Package heartbeat is the extension heartbeat (heartbeat.c) for Go programs: its object and its
// state.
package heartbeat

import (
	_ "embed"
	"encoding/binary"
)

// Object is the compiled extension, for slot timer.
//
//go:embed heartbeat.o
var Object []byte

// The names of the extension's map, and of the constants for the interval in nanoseconds and the
// number of beats.
const (
	Map      = "heartbeats"
	Interval = "interval"
	Beats    = "beats"
)

// State holds the counters: struct heartbeat.
type State struct {
	Beats  uint64
	Missed uint64 // intervals without a beat
	Late   uint64 // nanoseconds that the latest beat was late
	First  uint64 // when the first beat was, and the last, in nanoseconds
	Last   uint64
}

// Read reads the bytes of the map.
func Read(b []byte) (State, error) {
	var s State
	_, err := binary.Decode(b, binary.LittleEndian, &s)
	return s, err
}
