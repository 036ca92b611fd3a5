// Package accumulate is the extension accumulate (accumulate.c) for Go programs: its object and the
// layout of its state.
package accumulate

import (
	_ "embed"
	"encoding/binary"
	"fmt"
)

// Object is the compiled extension, for slot message.
//
//go:embed accumulate.o
var Object []byte

// MaxWord is the length of the longest word that can be counted, in bytes.
const MaxWord = 64

// The names of the extension's maps, and of the constants for the size of the table and the handler
// of counted messages.
const (
	Table    = "table"
	Totals   = "totals"
	Capacity = "capacity"
	Handler  = "handler"
)

// SlotSize is the size of an entry of the table, in bytes: struct hash_slot.
const SlotSize = 16 + MaxWord

// Sums are the extension's totals: struct accumulate_totals.
type Sums struct {
	Handled uint64 // messages counted
	Sum     uint64 // of the first arguments of those
	Full    uint64 // messages that found no room in the table
	Refused uint64 // messages whose payload is not a word
}

// ReadSums reads the bytes of the map Totals.
func ReadSums(b []byte) (Sums, error) {
	var s Sums
	if len(b) < binary.Size(s) {
		return s, fmt.Errorf("accumulate: totals of %d bytes", len(b))
	}
	_, err := binary.Decode(b, binary.LittleEndian, &s)
	return s, err
}

// Err returns an error if a message was not counted.
func (s Sums) Err() error {
	if s.Full > 0 || s.Refused > 0 {
		return fmt.Errorf("accumulate: %d messages found the table full and %d carried no word", s.Full, s.Refused)
	}
	return nil
}

// Each calls f for every word in the bytes of the map Table. The word is valid during the call.
func Each(table []byte, f func(word []byte, count uint64)) {
	for ; len(table) >= SlotSize; table = table[SlotSize:] {
		length := binary.LittleEndian.Uint32(table)
		if length > 0 && length <= MaxWord {
			f(table[16:16+length], binary.LittleEndian.Uint64(table[8:]))
		}
	}
}
