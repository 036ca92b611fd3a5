package channel

import (
	"net/netip"
	"slices"
	"testing"

	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/wire"
)

// Pairs of ranks that do not meet in barriers leave mirrored channels for those that do.
func TestReserve(t *testing.T) {
	const nodes, each = 9, 40 // the local ranks are the ranks of node 0
	host := netip.MustParseAddr("127.0.0.1")
	c := Config{Remote: &Remote{Self: host, Addresses: slices.Repeat([]netip.Addr{host}, nodes*each), Largest: mirror.Least}, Keeper: make(kept), Log: t.Logf}
	c.Ranks = ranksOf(t, 4)
	for i := range c.Ranks {
		c.Ranks[i].Number = id.Rank(i)
	}
	for node := range nodes {
		c.Leaders = append(c.Leaders, id.Rank(node*each))
	}
	table, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Keeper.(kept).close()
	defer table.Close()
	made := 0
	for local := range c.Ranks {
		for rank := id.Rank(each); rank < nodes*each; rank++ {
			if rank%each == 0 && local == 0 {
				continue
			}
			if _, _, ok := table.Meet(local, rank); ok {
				made++
			}
		}
	}
	if made != MirrorLimit-MirrorReserve {
		t.Errorf("%d other pairs have mirrored channels", made)
	}
	for _, node := range []int{1, 2, 4, 5, 7, 8} { // 1, 2 and 4 before or behind node 0
		if _, _, ok := table.Meet(0, id.Rank(node*each)); !ok {
			t.Errorf("none are left for the leaders of nodes 0 and %d", node)
		}
	}
	if _, _, ok := table.Meet(0, 3*each); ok {
		t.Error("leaders that do not meet have got some of the reserve")
	}
}

// The bound of barriers on the board is only ever lowered.
func TestBound(t *testing.T) {
	table, _ := open(t, 2)
	for _, k := range []struct{ number, bound uint64 }{{0, 0}, {7, 7}, {9, 7}, {0, 7}, {3, 3}} {
		table.Bound(k.number)
		for _, r := range table.config.Ranks {
			if n := r.Area.Bound().Load(); n != k.bound {
				t.Errorf("after %d it is %d", k.number, n)
			}
		}
	}
	table.board.Decide(5, wire.OutcomeQuiet)
	if n := table.Decided(); n != 5 {
		t.Errorf("barrier %d is decided", n)
	}
}
