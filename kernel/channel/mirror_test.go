package channel

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/wire"
)

// Pairs of ranks that do not meet in barriers leave mirrored channels for those that do.
func TestReserve(t *testing.T) {
	const nodes, each = 12, 40 // the local ranks are the ranks of node 0
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
	for node := 1; node < nodes; node++ {
		_, _, ok := table.Meet(0, id.Rank(node*each))
		// 1, 2, 4 and 8 before or behind node 0, and its children in the tree.
		if want := node != 9; ok != want {
			t.Errorf("the leaders of nodes 0 and %d have got mirrored channels: %v", node, ok)
		}
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

// A rank with two pairs of mirrored channels gets the datagrams of both, although it has connected
// its socket for the first; and when it has ended, its node kernel gets them.
func TestShare(t *testing.T) {
	host := netip.MustParseAddr("127.0.0.1")
	table, _ := openWith(t, 2, &Remote{Self: host, Addresses: slices.Repeat([]netip.Addr{host}, 20), Largest: mirror.Least})
	if _, _, ok := table.Meet(0, 1); !ok {
		t.Fatal("there are no mirrored channels")
	}
	f, s := table.fars[0], table.sockets[0]
	connect := func() {
		t.Helper()
		if err := unix.Connect(int(s.file.Fd()), &unix.SockaddrInet4{Addr: host.As4(), Port: int(s.port)}); err != nil {
			t.Fatal(err)
		}
	}
	is := func(when string, shared uint32) {
		t.Helper()
		_, err := unix.Getpeername(int(s.file.Fd()))
		if f.out.Shared().Load() != shared || err != unix.ENOTCONN {
			t.Errorf("%s: the word is %d, and the socket's peer: %v", when, f.out.Shared().Load(), err)
		}
	}
	is("one pair", 0)
	connect()
	table.Meet(1, 2)
	if f.out.Shared().Load() != 0 {
		t.Error("channels of another rank share the socket")
	}
	table.Meet(0, 2)
	is("two pairs", 1)
	if table.fars[2].out.Shared().Load() != 1 {
		t.Error("the second pair shares no socket")
	}
	connect()
	table.Ended(0)
	is("the rank has ended", 1)
}
