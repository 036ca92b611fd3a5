package nodeset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
)

func TestParseNode(t *testing.T) {
	for text, want := range map[string]uint32{"0": 0, "node0": 0, "12": 12, "node12": 12, "node017": 17} {
		if node, err := ParseNode(text); err != nil || node != want {
			t.Errorf("%s: %d, %v", text, node, err)
		}
	}
	for _, text := range []string{"", "node", "-1", "node-1", "nodes", "node1x", "node 1", "1.5", "4294967295", "Node1"} {
		if node, err := ParseNode(text); err == nil || !strings.Contains(err.Error(), "margay nodes") {
			t.Errorf("%q: %d, %v", text, node, err)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string][]uint32{
		"0": {0}, "node0": {0}, "1..4,10": {1, 2, 3, 4, 10}, "node[1-4,10]": {1, 2, 3, 4, 10}, "3-5": {3, 4, 5}, "node2-node3": {2, 3},
		"node2..3,0": {0, 2, 3}, "5,5,4-6": {4, 5, 6}, "node[0],node[2-3],7": {0, 2, 3, 7}, "node1,node3": {1, 3},
	} {
		if nodes, err := Parse(text); err != nil || !slices.Equal(nodes, want) {
			t.Errorf("%s: %v, %v", text, nodes, err)
		}
	}
	for text, want := range map[string]string{
		"": "it names no node", ",": "ends with a comma", "1,": "ends with a comma", "node[1-2": "brackets", "node]1[": "brackets", "node[[1]]": "brackets",
		"4-1": "runs backwards", "1-": "is not a node", "-1": "is not a node", "a..b": "is not a node", "0-65536": "more than 65536 nodes",
		"0-65535,70000-70001": "more than 65536 nodes", "0-4294967295": "is not a node", "1,,2": "is not a node", "rack[1-2]": "is not a node", "node[]": "is not a node",
	} {
		if nodes, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d nodes, %v", text, len(nodes), err)
		}
	}
}

func TestCondense(t *testing.T) {
	for want, nodes := range map[string][]uint32{"": nil, "node0": {0}, "node0-1": {0, 1}, "node0,2-4,10": {0, 2, 3, 4, 10}} {
		if got := Condense(nodes); got != want {
			t.Errorf("%v: %s", nodes, got)
		}
	}
}

// subset returns about a share of the nodes below n.
func subset(rng *rand.Rand, n uint32, share float64) (nodes []uint32) {
	for node := range n {
		if rng.Float64() < share {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Condensed sets are read as the same sets, on machines with 10,000 nodes as well.
func TestParseCondensed(t *testing.T) {
	seed := check.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, n := range []uint32{1, 2, 10, 100, 10_000, Most} {
		for _, share := range []float64{1, 0.99, 0.5, 0.01} {
			nodes := subset(rng, n, share)
			if len(nodes) == 0 {
				continue
			}
			if got, err := Parse(Condense(nodes)); err != nil || !slices.Equal(got, nodes) {
				t.Errorf("seed %d: %d of %d nodes become %d, %v", seed, len(nodes), n, len(got), err)
			}
		}
	}
}

// A set is condensed to a text that is read as the same set, which is condensed to the same text.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"0", "node0", "1..4,10", "node[1-4,10]", "node2-node3", "node[0],node[2-3],7", "node[1", "1,", "65535-65536"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := Parse(text)
		if err != nil {
			return
		}
		if len(nodes) == 0 || len(nodes) > Most {
			t.Fatalf("%q names %d nodes", text, len(nodes))
		}
		for i, node := range nodes {
			if i > 0 && node <= nodes[i-1] {
				t.Fatalf("%q: node%d follows node%d", text, node, nodes[i-1])
			}
		}
		condensed := Condense(nodes)
		again, err := Parse(condensed)
		if err != nil || !slices.Equal(again, nodes) || Condense(again) != condensed {
			t.Fatalf("%q is condensed to %q, which is read as %v, %v", text, condensed, again, err)
		}
	})
}

// The time for a node does not depend on the size of the set. Every second node makes the longest
// text.
func BenchmarkParseCondensed(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		var nodes []uint32
		for i := range n {
			nodes = append(nodes, uint32(2*i))
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Parse(Condense(nodes)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}
