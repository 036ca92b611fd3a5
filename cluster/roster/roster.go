// Package roster records which numbers are nodes of a machine that grows and shrinks.
//
// The number of a node that has left is free, and the next node gets the lowest free number: the
// numbers, and with them the addresses, of a machine stay as few as its nodes have ever been. Each
// number counts its terms: how many nodes have had it. Join tokens are made for a number and a
// term, so the token of a node that has left does not admit its successor.
//
// A Roster is plain data. Changes return a changed copy, so a caller can record the copy before it
// applies it.
package roster

import (
	"errors"
	"fmt"
	"slices"

	"margay/internal/nodeset"
)

// Most bounds the nodes of a machine: their addresses are one subnet, and a Linux bridge, which
// joins hosted nodes, has 1,023 ports at most.
const Most = 1000

// Roster is the nodes of a machine. The zero value has none. Rosters share their slices, which must
// not be changed.
type Roster struct {
	Nodes []uint32 `json:"nodes"` // in ascending order
	Terms []uint32 `json:"terms"` // by number: how many nodes have had it, the current one included
}

// New returns the roster of a new machine with n nodes.
func New(n int) Roster {
	var r Roster
	for node := range uint32(n) {
		r.Nodes, r.Terms = append(r.Nodes, node), append(r.Terms, 1)
	}
	return r
}

// Of returns the roster of a new machine with nodes of these numbers, in ascending order.
func Of(numbers []uint32) (Roster, error) {
	r := Roster{Nodes: numbers}
	for _, node := range numbers {
		for int64(len(r.Terms)) <= int64(node) && len(r.Terms) < Most {
			r.Terms = append(r.Terms, 0)
		}
		if int64(node) < int64(len(r.Terms)) {
			r.Terms[node] = 1
		}
	}
	return r, r.Check()
}

// Check returns an error unless the roster, which may come from a file or a connection, is one of a
// machine.
func (r Roster) Check() error {
	if len(r.Nodes) > Most || len(r.Terms) > Most {
		return fmt.Errorf("a roster of %d nodes and %d numbers: a machine has %d at most", len(r.Nodes), len(r.Terms), Most)
	}
	for i, node := range r.Nodes {
		switch {
		case i > 0 && node <= r.Nodes[i-1]:
			return fmt.Errorf("a roster with node%d after node%d", node, r.Nodes[i-1])
		case int64(node) >= int64(len(r.Terms)) || r.Terms[node] == 0:
			return fmt.Errorf("a roster with node%d, whose number no node has had", node)
		}
	}
	return nil
}

// Has reports whether a number is a node's.
func (r Roster) Has(node uint32) bool {
	_, ok := slices.BinarySearch(r.Nodes, node)
	return ok
}

// Term returns how many nodes have had a number, the current one included; 0 if none has.
func (r Roster) Term(node uint32) uint32 {
	if int64(node) >= int64(len(r.Terms)) {
		return 0
	}
	return r.Terms[node]
}

// errTerms reports a number that cannot be given once more.
var errTerms = errors.New("it has been given to too many nodes")

// Grow returns the roster with n more nodes, and their numbers: the lowest free ones, without some
// that are still in use.
func (r Roster) Grow(n int, busy ...uint32) (Roster, []uint32, error) {
	if n < 1 || n > Most-len(r.Nodes) {
		return r, nil, fmt.Errorf("a machine has %d nodes at most, and this one has %d already", Most, len(r.Nodes))
	}
	grown := Roster{slices.Clone(r.Nodes), slices.Clone(r.Terms)}
	var added []uint32
	for node := uint32(0); len(added) < n; node++ {
		if int(node) == Most {
			return r, nil, fmt.Errorf("%d of the %d numbers of nodes are free", len(added), Most)
		}
		if int(node) == len(grown.Terms) {
			grown.Terms = append(grown.Terms, 0)
		}
		if r.Has(node) || slices.Contains(busy, node) {
			continue
		}
		if grown.Terms[node]++; grown.Terms[node] == 0 {
			return r, nil, fmt.Errorf("node%d: %w", node, errTerms)
		}
		added = append(added, node)
	}
	grown.Nodes = append(grown.Nodes, added...)
	slices.Sort(grown.Nodes)
	return grown, added, nil
}

// With returns the roster with one more node, of a number.
func (r Roster) With(node uint32) (Roster, error) {
	switch {
	case r.Has(node):
		return r, fmt.Errorf("the machine has a node%d already", node)
	case node >= Most:
		return r, fmt.Errorf("node%d: the numbers of nodes are less than %d", node, Most)
	}
	grown := Roster{slices.Clone(r.Nodes), slices.Clone(r.Terms)}
	for int(node) >= len(grown.Terms) {
		grown.Terms = append(grown.Terms, 0)
	}
	if grown.Terms[node]++; grown.Terms[node] == 0 {
		return r, fmt.Errorf("node%d: %w", node, errTerms)
	}
	grown.Nodes = append(grown.Nodes, node)
	slices.Sort(grown.Nodes)
	return grown, nil
}

// Without returns the roster without a node.
func (r Roster) Without(node uint32) Roster {
	rest := slices.DeleteFunc(slices.Clone(r.Nodes), func(n uint32) bool { return n == node })
	return Roster{rest, r.Terms}
}

// String lists the nodes: node0-3,7.
func (r Roster) String() string { return nodeset.Condense(r.Nodes) }
