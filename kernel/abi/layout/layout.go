// Package layout says where the ranks of a job are: on which nodes, at which addresses, on which
// cores. A Layout is condensed: nodes that follow each other, with the same share of the ranks, are
// one run. Its size, in memory and on the wire, grows with its runs only, so layouts of usual jobs
// have the same size on any number of nodes. One node or one rank is found without expanding the
// rest.
//
// The ranks of a job are numbered from 0, the ranks of a node one after the other, in the order of
// the nodes, whose numbers ascend. The index of a node in this order is its place in the job's
// tree.
package layout

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sort"

	"margay/kernel/abi/id"
)

// Bounds of a layout.
const (
	MaxNodes = 1 << 16
	MaxRanks = 1 << 20
)

// Place is where a rank is.
type Place struct {
	Rank id.Rank
	Node id.Node
	Core id.Core   // the first of its cores
	More []id.Core // its other cores, which it shares with no rank
}

// Cores returns all cores of the rank.
func (p Place) Cores() []id.Core { return append([]id.Core{p.Core}, p.More...) }

// Share is what a node has of a job: the cores of each of its ranks, in order.
type Share [][]id.Core

// Run is a run of nodes with consecutive numbers and addresses, and the same share.
type Run struct {
	Node    id.Node        // the first
	Count   int            // of nodes
	Share   int            // index of their share
	Address netip.AddrPort // of the first; several nodes have IPv4 addresses and one port
}

// Condensed is the form of a Layout for the wire.
type Condensed struct {
	Runs   []Run
	Shares []Share
}

// Layout is where the ranks of a job are. The zero value has no ranks. It does not change, and
// callers must not change the slices that it returns.
type Layout struct {
	condensed Condensed
	places    []int // by run: the index of its first node, and at the end the number of nodes
	ranks     []int // by run: its first rank, and at the end the number of ranks
}

// New checks a condensed layout, which may come from another machine.
func New(c Condensed) (Layout, error) {
	for i, s := range c.Shares {
		if len(s) == 0 || slices.ContainsFunc(s, func(cores []id.Core) bool { return len(cores) == 0 }) {
			return Layout{}, fmt.Errorf("layout: share %d has no ranks, or a rank without cores", i)
		}
	}
	l := Layout{condensed: c, places: []int{0}, ranks: []int{0}}
	next, nodes, ranks := uint64(0), 0, 0 // next is the lowest number that the next node may have
	for i, r := range c.Runs {
		switch {
		case r.Count < 1 || r.Count > MaxNodes-nodes:
			return Layout{}, fmt.Errorf("layout: run %d has %d nodes, after %d others; at most %d are allowed", i, r.Count, nodes, MaxNodes)
		case uint64(r.Node) < next || uint64(r.Node)+uint64(r.Count) > 1<<32:
			return Layout{}, fmt.Errorf("layout: run %d begins at node%d, out of order", i, r.Node)
		case r.Share < 0 || r.Share >= len(c.Shares):
			return Layout{}, fmt.Errorf("layout: run %d has share %d of %d", i, r.Share, len(c.Shares))
		case len(c.Shares[r.Share]) > (MaxRanks-ranks)/r.Count:
			return Layout{}, fmt.Errorf("layout: it has more than %d ranks", MaxRanks)
		}
		if _, ok := advance(r.Address, r.Count-1); !ok {
			return Layout{}, fmt.Errorf("layout: the addresses of run %d do not follow from %v", i, r.Address)
		}
		next = uint64(r.Node) + uint64(r.Count)
		nodes += r.Count
		ranks += r.Count * len(c.Shares[r.Share])
		l.places, l.ranks = append(l.places, nodes), append(l.ranks, ranks)
	}
	return l, nil
}

// advance returns the n-th address after a, and false if there is none. Only IPv4 addresses have
// successors.
func advance(a netip.AddrPort, n int) (netip.AddrPort, bool) {
	if n == 0 {
		return a, true
	}
	if !a.Addr().Is4() {
		return a, false
	}
	b := a.Addr().As4()
	number := uint64(binary.BigEndian.Uint32(b[:])) + uint64(n)
	if number >= 1<<32 {
		return a, false
	}
	binary.BigEndian.PutUint32(b[:], uint32(number))
	return netip.AddrPortFrom(netip.AddrFrom4(b), a.Port()), true
}

// errOrder reports places that are not in the order of a layout.
var errOrder = errors.New("layout: ranks or nodes are out of order")

// Condense condenses the places of all ranks. address returns the address of a node.
func Condense(places []Place, address func(id.Node) netip.AddrPort) (Layout, error) {
	var c Condensed
	shares := make(map[string]int) // by their text: indexes
	for first := 0; first < len(places); {
		node, end := places[first].Node, first
		var share Share
		for ; end < len(places) && places[end].Node == node; end++ {
			if int(places[end].Rank) != end {
				return Layout{}, errOrder
			}
			share = append(share, places[end].Cores())
		}
		first = end
		text := fmt.Sprint(share)
		index, known := shares[text]
		if !known {
			index = len(c.Shares)
			shares[text] = index
			c.Shares = append(c.Shares, share)
		}
		run := Run{Node: node, Count: 1, Share: index, Address: address(node)}
		if last := len(c.Runs) - 1; last >= 0 && c.Runs[last].continues(run) {
			c.Runs[last].Count++
		} else {
			c.Runs = append(c.Runs, run)
		}
	}
	return New(c)
}

// continues reports whether the first node of another run could be the next one of r.
func (r Run) continues(other Run) bool {
	next, ok := advance(r.Address, r.Count)
	return ok && next == other.Address && other.Share == r.Share && uint64(other.Node) == uint64(r.Node)+uint64(r.Count)
}

// Within reports whether another run has all nodes of r, at the same addresses.
func (r Run) Within(other Run) bool {
	if r.Node < other.Node || uint64(r.Node)+uint64(r.Count) > uint64(other.Node)+uint64(other.Count) {
		return false
	}
	address, ok := advance(other.Address, int(r.Node-other.Node))
	return ok && address == r.Address
}

// Overlaps reports whether another run has a node of r.
func (r Run) Overlaps(other Run) bool {
	return uint64(r.Node) < uint64(other.Node)+uint64(other.Count) && uint64(other.Node) < uint64(r.Node)+uint64(r.Count)
}

// Condensed returns the form for the wire.
func (l Layout) Condensed() Condensed { return l.condensed }

// Nodes returns the number of nodes.
func (l Layout) Nodes() int { return last(l.places) }

// Ranks returns the number of ranks.
func (l Layout) Ranks() int { return last(l.ranks) }

func last(firsts []int) int {
	if len(firsts) == 0 {
		return 0
	}
	return firsts[len(firsts)-1]
}

// run returns the run that has an index, by the first indexes of all runs.
func run(firsts []int, index int) int { return sort.SearchInts(firsts, index+1) - 1 }

// Node returns the node at a place of the tree, from 0 to Nodes()-1.
func (l Layout) Node(place int) id.Node {
	i := run(l.places, place)
	return l.condensed.Runs[i].Node + id.Node(place-l.places[i])
}

// Address returns the address of the node at a place of the tree, from 0 to Nodes()-1.
func (l Layout) Address(place int) netip.AddrPort {
	i := run(l.places, place)
	a, _ := advance(l.condensed.Runs[i].Address, place-l.places[i]) // New has tried the last one
	return a
}

// PlaceOf returns the place of a node in the tree, and false if the job does not have it.
func (l Layout) PlaceOf(node id.Node) (int, bool) {
	runs := l.condensed.Runs
	i := sort.Search(len(runs), func(i int) bool { return runs[i].Node > node }) - 1
	if i < 0 || uint64(node) >= uint64(runs[i].Node)+uint64(runs[i].Count) {
		return -1, false
	}
	return l.places[i] + int(node-runs[i].Node), true
}

// Rank returns where a rank is, and false if there is no such rank.
func (l Layout) Rank(number id.Rank) (Place, bool) {
	if uint64(number) >= uint64(l.Ranks()) {
		return Place{}, false
	}
	i := run(l.ranks, int(number))
	r := l.condensed.Runs[i]
	share := l.condensed.Shares[r.Share]
	index := int(number) - l.ranks[i]
	return share.place(number, r.Node+id.Node(index/len(share)), index%len(share)), true
}

// place returns where a rank is that is the index-th of its node.
func (s Share) place(rank id.Rank, node id.Node, index int) Place {
	return Place{Rank: rank, Node: node, Core: s[index][0], More: s[index][1:]}
}

// On returns the places of the ranks on a node, in order; none if the job does not have it.
func (l Layout) On(node id.Node) iter.Seq[Place] {
	return func(yield func(Place) bool) {
		place, ok := l.PlaceOf(node)
		if !ok {
			return
		}
		i := run(l.places, place)
		share := l.condensed.Shares[l.condensed.Runs[i].Share]
		first := l.ranks[i] + (place-l.places[i])*len(share)
		for index := range share {
			if !yield(share.place(id.Rank(first+index), node, index)) {
				return
			}
		}
	}
}

// All returns the places of all ranks, in order.
func (l Layout) All() iter.Seq[Place] {
	return func(yield func(Place) bool) {
		rank := id.Rank(0)
		for _, r := range l.condensed.Runs {
			share := l.condensed.Shares[r.Share]
			for n := range r.Count {
				for index := range share {
					if !yield(share.place(rank, r.Node+id.Node(n), index)) {
						return
					}
					rank++
				}
			}
		}
	}
}

// MarshalJSON writes the condensed form.
func (l Layout) MarshalJSON() ([]byte, error) { return json.Marshal(l.condensed) }

// UnmarshalJSON reads what MarshalJSON writes.
func (l *Layout) UnmarshalJSON(text []byte) (err error) {
	var c Condensed
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	*l, err = New(c)
	return err
}
