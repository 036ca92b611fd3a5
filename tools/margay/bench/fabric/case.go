// Package fabric measures ways to exchange messages in turns of one run, and prints the figures.
//
// A case is an operation with a size of messages; a place is a number of nodes and ranks; a
// contender is a way to run cases. In each round every contender has its turn with every case of a
// place, one after the other, so that other load affects all of them alike. Figures are over all
// rounds. Cases and Places are tables: a further operation is a row, and a function in each program
// that has it.
package fabric

import (
	"fmt"
	"slices"
)

// Place is where ranks run.
type Place struct {
	Name    string
	Title   string
	Nodes   int
	Ranks   int // in all
	PerCore int // ranks that share a core
}

// Places are the places of all cases.
var Places = []Place{
	{"same-node", "two ranks on one node", 1, 2, 1},
	{"two-nodes", "two nodes with a rank each", 2, 2, 1},
	{"eight-nodes", "eight nodes with a rank each", 8, 8, 1},
	{"eight-ranks", "eight ranks on one node with two cores", 1, 8, 4},
}

// Unit is a unit of figures.
type Unit string

// The units.
const (
	Microseconds      Unit = "µs"   // of a repetition
	MillionsPerSecond Unit = "M/s"  // messages
	MegabytesPerS     Unit = "MB/s" // 1,000,000 bytes
)

// Case is one measurement that contenders make.
type Case struct {
	Title     string // for people
	Operation string // of the programs
	Bytes     int    // of a message; 0: there are none
	Unit      Unit
	Places    []string
}

var (
	pairs     = []string{"same-node", "two-nodes"}
	groups    = []string{"eight-nodes", "eight-ranks"}
	anyPlaces = append(slices.Clone(pairs), groups...)
)

// Cases are all cases. A repetition of rate sends a train of messages one way and waits for one
// acknowledgement; in a repetition of alltoall each rank sends to each other one.
var Cases = []Case{
	{"round trip, 8 B", "roundtrip", 8, Microseconds, pairs},
	{"round trip, 64 B", "roundtrip", 64, Microseconds, pairs},
	{"put, 8 B", "put", 8, Microseconds, pairs},
	{"put, 64 B", "put", 64, Microseconds, pairs},
	{"get, 8 B", "get", 8, Microseconds, pairs},
	{"get, 64 B", "get", 64, Microseconds, pairs},
	{"fetch-and-add", "fetchadd", 8, Microseconds, pairs},
	{"one way, 8 B", "rate", 8, MillionsPerSecond, pairs},
	{"one way, 64 B", "rate", 64, MillionsPerSecond, pairs},
	{"all to all, 64 B", "alltoall", 64, MillionsPerSecond, groups},
	{"bandwidth, 1 KB", "rate", 1 << 10, MegabytesPerS, pairs},
	{"bandwidth, 64 KB", "rate", 64 << 10, MegabytesPerS, pairs},
	{"bandwidth, 1 MB", "rate", 1 << 20, MegabytesPerS, pairs},
	{"bandwidth, 4 MB", "rate", 4 << 20, MegabytesPerS, pairs},
	{"barrier", "barrier", 0, Microseconds, anyPlaces},
	{"all-reduce, 8 B", "allreduce", 8, Microseconds, anyPlaces},
}

// Name returns the name of a case for command lines.
func (c Case) Name() string {
	if c.Bytes == 0 {
		return c.Operation
	}
	return fmt.Sprintf("%s-%d", c.Operation, c.Bytes)
}

// Value is the figure of a repetition that takes so many nanoseconds and sends so many messages.
func (c Case) Value(ns float64, messages int) float64 {
	switch c.Unit {
	case MillionsPerSecond:
		return float64(messages) / ns * 1e3
	case MegabytesPerS:
		return float64(messages) * float64(c.Bytes) / ns * 1e3
	}
	return ns / 1e3
}

// speed returns how many times as fast a figure is as another one.
func (u Unit) speed(figure, other float64) float64 {
	if u == Microseconds {
		return other / figure
	}
	return figure / other
}

// At returns the cases of a place, in their order.
func At(cases []Case, place string) (here []Case) {
	for _, c := range cases {
		if slices.Contains(c.Places, place) {
			here = append(here, c)
		}
	}
	return here
}

// CaseNames returns the names of all cases.
func CaseNames() (names []string) {
	for _, c := range Cases {
		names = append(names, c.Name())
	}
	return names
}

// PlaceNames returns the names of all places.
func PlaceNames() (names []string) {
	for _, p := range Places {
		names = append(names, p.Name)
	}
	return names
}
