// Package firewall is the extension firewall (firewall.c) for Go programs: its object and its
// state.
package firewall

import (
	_ "embed"
	"encoding/binary"
)

// Object is the compiled extension, for slot packet.
//
//go:embed firewall.o
var Object []byte

// The extension's constants: the handler, the source rank and the source's node of the messages
// that are dropped, and the handler of the answers to these. Any is the default of each; where all
// of the first three have it, no message is dropped, and where the last has it, none is answered.
const (
	Handler = "handler"
	Source  = "source"
	Node    = "node"
	Refuse  = "refuse"

	Any = 1<<32 - 1
)

// Counts is the name of the extension's map, which has a Count for each node, by its number.
const Counts = "counts"

// Count counts the messages from a node: struct count.
type Count struct {
	Messages uint64
	Bytes    uint64 // of their payloads
	Dropped  uint64 // messages
}

// Read reads the bytes of the map.
func Read(b []byte) ([]Count, error) {
	counts := make([]Count, len(b)/binary.Size(Count{}))
	_, err := binary.Decode(b, binary.LittleEndian, counts)
	return counts, err
}
