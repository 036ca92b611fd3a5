package roster

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
)

func TestGrowAndShrink(t *testing.T) {
	r := New(3).Without(1).Without(7)
	if r.String() != "node0,2" || r.Has(1) || r.Term(1) != 1 || r.Term(3) != 0 {
		t.Errorf("it is %v", r)
	}
	grown, added, err := r.Grow(3)
	if err != nil || !slices.Equal(added, []uint32{1, 3, 4}) || grown.String() != "node0-4" || grown.Term(1) != 2 || grown.Term(4) != 1 {
		t.Errorf("it grows by %v to %v, %v", added, grown, err)
	}
	if r.String() != "node0,2" || r.Term(1) != 1 {
		t.Errorf("the original is now %v", r)
	}
	for _, n := range []int{-1, 0, Most - 1} {
		if same, added, err := r.Grow(n); err == nil || !strings.Contains(err.Error(), "1000 nodes at most, and this one has 2") || added != nil || same.String() != r.String() {
			t.Errorf("grow by %d: %v, %v, %v", n, same, added, err)
		}
	}
	if full, _, err := r.Grow(Most - 2); err != nil || len(full.Nodes) != Most {
		t.Errorf("%d nodes, %v", len(full.Nodes), err)
	}
	r.Terms = []uint32{1, 1<<32 - 1, 1}
	if _, _, err := r.Grow(1); err == nil {
		t.Error("a term is given twice")
	}
}

// A node can get a number beyond the lowest free ones, which others get afterwards.
func TestWith(t *testing.T) {
	r, err := New(2).With(4)
	if err != nil || r.String() != "node0-1,4" || r.Term(4) != 1 || r.Term(3) != 0 || r.Check() != nil {
		t.Fatalf("%v, %v", r, err)
	}
	if again, err := r.Without(4).With(4); err != nil || again.Term(4) != 2 || r.Term(4) != 1 {
		t.Errorf("%v, %v; before %v", again, err, r)
	}
	if _, added, err := r.Grow(3); err != nil || len(added) != 3 || added[0] != 2 || added[2] != 5 {
		t.Errorf("%v, %v", added, err)
	}
	for _, number := range []uint32{1, 4, Most, 1 << 31} {
		if got, err := r.With(number); err == nil || got.String() != r.String() {
			t.Errorf("node%d: %v", number, got)
		}
	}
	full := r
	full.Terms = append([]uint32{1, 1, 1<<32 - 1}, r.Terms[3:]...)
	if _, err := full.With(2); err == nil {
		t.Error("a number has had too many nodes, and is given again")
	}
}

// No two nodes have had the same number and term, and the numbers are as few as they can be.
func TestNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(check.Seed(t), 0))
	type seat struct{ node, term uint32 }
	had := map[seat]bool{{0, 1}: true}
	r := New(1)
	for most := 1; len(had) < 2000; {
		if len(r.Nodes) > 1 && (len(r.Nodes) > 40 || rng.IntN(2) == 0) {
			r = r.Without(r.Nodes[rng.IntN(len(r.Nodes))])
			continue
		}
		grown, added, err := r.Grow(1 + rng.IntN(4))
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range added {
			s := seat{node, grown.Term(node)}
			if had[s] || r.Has(node) {
				t.Fatalf("%v is given twice", s)
			}
			had[s] = true
		}
		if r = grown; r.Check() != nil {
			t.Fatal(r.Check())
		}
		if most = max(most, len(r.Nodes)); len(r.Terms) > most {
			t.Fatalf("%d numbers for %d nodes at most", len(r.Terms), most)
		}
	}
}

// Whatever passes the check can be used, and stays as it is on its way through a file.
func FuzzCheck(f *testing.F) {
	for _, text := range []string{`{"nodes":[0,2],"terms":[1,1,3]}`, `{}`, `{"nodes":[1]}`, `{"nodes":[1,0],"terms":[1,1]}`, `{"nodes":[4294967295],"terms":[1]}`, `{"nodes":[0],"terms":[0]}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r, again Roster
		if json.Unmarshal([]byte(text), &r) != nil || r.Check() != nil {
			return
		}
		for _, node := range r.Nodes {
			if !r.Has(node) || r.Term(node) == 0 || r.Without(node).Has(node) {
				t.Fatalf("node%d of %v", node, r)
			}
		}
		grown, added, err := r.Grow(1)
		if err == nil && (grown.Check() != nil || r.Has(added[0]) || grown.Term(added[0]) != r.Term(added[0])+1) {
			t.Fatalf("%v grows by %v to %v", r, added, grown)
		}
		file, err := json.Marshal(r)
		if err != nil || json.Unmarshal(file, &again) != nil || !slices.Equal(r.Nodes, again.Nodes) || !slices.Equal(r.Terms, again.Terms) {
			t.Fatalf("%v becomes %v", r, again)
		}
	})
}
