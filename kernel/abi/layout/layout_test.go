package layout

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/id"
)

// at is the address of a node whose address follows from its number.
func at(node id.Node) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 66, byte(node>>8) + 1, byte(node)}), 7118)
}

// uniform is a job with so many ranks on each of the nodes from first on.
func uniform(first id.Node, nodes, each int) (places []Place) {
	for n := range nodes {
		for i := range each {
			places = append(places, Place{Rank: id.Rank(len(places)), Node: first + id.Node(n), Core: id.Core(1 + i)})
		}
	}
	return places
}

// random is a job on some of 1,000 nodes, with the same share of most.
func random(rng *rand.Rand) (places []Place) {
	usual, wide := 1+rng.IntN(4), rng.IntN(3)
	for node := range id.Node(1 + rng.IntN(1000)) {
		if rng.IntN(20) == 0 {
			continue
		}
		each, first := usual, id.Core(1)
		if rng.IntN(20) == 0 {
			each, first = 1+rng.IntN(4), id.Core(1+rng.IntN(3))
		}
		for i := range each {
			p := Place{Rank: id.Rank(len(places)), Node: node, Core: first + id.Core(i*(wide+1))}
			for w := range wide {
				p.More = append(p.More, p.Core+1+id.Core(w))
			}
			places = append(places, p)
		}
	}
	return places
}

// same compares places. A place without other cores may have nil or an empty slice.
func same(a, b Place) bool {
	return a.Rank == b.Rank && a.Node == b.Node && a.Core == b.Core && slices.Equal(a.More, b.More)
}

// Expanding a condensed layout gives the same places by each of its methods, also after a trip
// through JSON.
func TestCondense(t *testing.T) {
	seed := check.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	address := func(node id.Node) netip.AddrPort {
		if node%97 == 5 { // not the next one
			return netip.MustParseAddrPort("[fd00::1]:7118")
		}
		return at(node)
	}
	for range 20 {
		places := random(rng)
		l, err := Condense(places, address)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var again Layout
		if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(again, l) {
			t.Fatalf("after a trip it is %v, %v", again, err)
		}
		if got := slices.Collect(l.All()); !slices.EqualFunc(got, places, same) || l.Ranks() != len(places) {
			t.Fatalf("%d ranks at %v, not at %v", l.Ranks(), got, places)
		}
		var nodes []id.Node
		by := make(map[id.Node][]Place)
		for _, p := range places {
			if len(by[p.Node]) == 0 {
				nodes = append(nodes, p.Node)
			}
			by[p.Node] = append(by[p.Node], p)
			if got, ok := l.Rank(p.Rank); !ok || !same(got, p) {
				t.Fatalf("rank %d is at %v, not at %v", p.Rank, got, p)
			}
		}
		if _, ok := l.Rank(id.Rank(len(places))); ok || l.Nodes() != len(nodes) {
			t.Fatalf("there is a rank %d, or there are %d nodes", len(places), l.Nodes())
		}
		for place, node := range nodes {
			if got, ok := l.PlaceOf(node); !ok || got != place || l.Node(place) != node || l.Address(place) != address(node) {
				t.Fatalf("node%d is at place %d, where node%d is, at %v", node, got, l.Node(place), l.Address(place))
			}
		}
		for node := range id.Node(1001) {
			if got := slices.Collect(l.On(node)); !slices.EqualFunc(got, by[node], same) {
				t.Fatalf("on node%d are %v, not %v", node, got, by[node])
			}
		}
	}
}

// The layouts of usual jobs do not grow with their nodes.
func TestSize(t *testing.T) {
	for _, nodes := range []int{1, 64, 10_000} {
		places := append(uniform(3, nodes, 2), Place{Rank: id.Rank(2 * nodes), Node: id.Node(3 + nodes), Core: 1}) // the last node has fewer
		l, err := Condense(places, func(node id.Node) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 66 + byte(node>>16), byte(node >> 8), byte(node)}), 7118)
		})
		if c := l.Condensed(); err != nil || len(c.Runs) != 2 || len(c.Shares) != 2 {
			t.Errorf("%d nodes: %d runs of %d shares, %v", nodes, len(c.Runs), len(c.Shares), err)
		}
	}
}

func TestZero(t *testing.T) {
	var l Layout
	if _, ok := l.PlaceOf(0); ok || l.Nodes() != 0 || l.Ranks() != 0 {
		t.Error("it has a node")
	}
	if _, ok := l.Rank(0); ok {
		t.Error("it has a rank")
	}
	for p := range l.On(0) {
		t.Errorf("it has %v", p)
	}
	for p := range l.All() {
		t.Errorf("it has %v", p)
	}
}

// Ranks and nodes that are not in order have no layout.
func TestOrder(t *testing.T) {
	for name, places := range map[string][]Place{
		"ranks":         {{Rank: 1, Node: 0, Core: 1}, {Rank: 0, Node: 0, Core: 2}},
		"from 1":        {{Rank: 1, Node: 0, Core: 1}},
		"nodes":         {{Rank: 0, Node: 1, Core: 1}, {Rank: 1, Node: 0, Core: 1}},
		"a node, again": {{Rank: 0, Node: 0, Core: 1}, {Rank: 1, Node: 1, Core: 1}, {Rank: 2, Node: 0, Core: 2}},
	} {
		if l, err := Condense(places, at); err == nil {
			t.Errorf("%s: %v", name, l)
		}
	}
}

func TestRefused(t *testing.T) {
	one := []Share{{{1}}}
	for want, c := range map[string]Condensed{
		"has no ranks":              {Shares: []Share{{}}},
		"a rank without cores":      {Shares: []Share{{{}}}},
		"run 0 has 0 nodes":         {Runs: []Run{{}}, Shares: one},
		"run 0 has -1 nodes":        {Runs: []Run{{Count: -1}}, Shares: one},
		"run 1 has 65536 nodes":     {Runs: []Run{{Count: 1}, {Node: 1, Count: MaxNodes}}, Shares: one},
		"run 1 begins at node1, ou": {Runs: []Run{{Count: 2, Address: at(0)}, {Node: 1, Count: 1}}, Shares: one},
		"run 0 begins at node42949": {Runs: []Run{{Node: 1<<32 - 1, Count: 2, Address: at(0)}}, Shares: one},
		"run 0 has share 1 of 1":    {Runs: []Run{{Count: 1, Share: 1}}, Shares: one},
		"run 0 has share -1 of 1":   {Runs: []Run{{Count: 1, Share: -1}}, Shares: one},
		"more than 1048576 ranks":   {Runs: []Run{{Count: MaxNodes, Address: at(0)}}, Shares: []Share{slices.Repeat(Share{{1}}, 17)}},
		"do not follow from [::1]":  {Runs: []Run{{Count: 2, Address: netip.MustParseAddrPort("[::1]:1")}}, Shares: one},
		"follow from 255.255.255.2": {Runs: []Run{{Count: 3, Address: netip.MustParseAddrPort("255.255.255.254:1")}}, Shares: one},
		"follow from invalid Addr":  {Runs: []Run{{Count: 2}}, Shares: one},
	} {
		if l, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, l, err)
		}
	}
}

// A layout that is accepted can be looked at from all sides, and is condensed to one that says the
// same.
func FuzzLayout(f *testing.F) {
	for _, places := range [][]Place{nil, uniform(0, 3, 2), uniform(7, 1, 1), append(uniform(1, 2, 2), Place{Rank: 4, Node: 9, Core: 3, More: []id.Core{4}})} {
		l, err := Condense(places, at)
		if err != nil {
			f.Fatal(err)
		}
		text, err := json.Marshal(l)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"Runs":[{"Node":4294967295,"Count":1}],"Shares":[[[1]]]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var l Layout
		if json.Unmarshal(text, &l) != nil || l.Ranks() > 10_000 {
			return
		}
		places := slices.Collect(l.All())
		if len(places) != l.Ranks() {
			t.Fatalf("%d places of %d ranks", len(places), l.Ranks())
		}
		again, err := Condense(places, func(node id.Node) netip.AddrPort {
			place, ok := l.PlaceOf(node)
			if !ok || l.Node(place) != node {
				t.Fatalf("node%d has no place", node)
			}
			return l.Address(place)
		})
		if err != nil || !slices.EqualFunc(slices.Collect(again.All()), places, same) || again.Nodes() != l.Nodes() {
			t.Fatalf("%v, %v", again, err)
		}
	})
}

// TestRuns compares runs of few nodes with all of their nodes and addresses.
func TestRuns(t *testing.T) {
	address := netip.MustParseAddrPort("10.66.1.0:7118")
	nodes := func(r Run) map[id.Node]netip.AddrPort {
		all := make(map[id.Node]netip.AddrPort)
		for i := range r.Count {
			all[r.Node+id.Node(i)], _ = advance(r.Address, i)
		}
		return all
	}
	var runs []Run
	for first := range 4 {
		for count := 1; count < 5; count++ {
			for shift := range 4 {
				at, _ := advance(address, shift)
				runs = append(runs, Run{Node: id.Node(first), Count: count, Share: shift % 2, Address: at})
			}
		}
	}
	within := 0
	for _, a := range runs {
		for _, b := range runs {
			wantWithin, wantOverlaps := true, false
			for node, address := range nodes(a) {
				other, ok := nodes(b)[node]
				wantWithin = wantWithin && ok && other == address
				wantOverlaps = wantOverlaps || ok
			}
			if a.Within(b) != wantWithin || a.Overlaps(b) != wantOverlaps {
				t.Errorf("%v, %v: within %v, overlaps %v", a, b, a.Within(b), a.Overlaps(b))
			}
			if wantWithin {
				within++
			}
		}
	}
	if within <= len(runs) {
		t.Errorf("of %d runs, %d are within others", len(runs), within)
	}
	one := Run{Count: 1, Address: netip.MustParseAddrPort("[fd00::1]:7118")}
	if !one.Within(one) || one.Within(Run{Count: 1, Address: address}) {
		t.Error("a run of one node at an address of IPv6")
	}
}
