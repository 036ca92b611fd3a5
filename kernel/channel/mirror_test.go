package channel

import (
	"net/netip"
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
	c := Config{Remote: &Remote{Self: host, Ranks: nodes * each, Address: func(id.Rank) netip.Addr { return host }, Largest: mirror.Least}, Keeper: make(kept), Log: t.Logf}
	c.Ranks = ranksOf(t, 4)
	for i := range c.Ranks {
		c.Ranks[i].Number = id.Rank(i)
	}
	var leaders []id.Rank
	for node := range nodes {
		leaders = append(leaders, id.Rank(node*each))
	}
	c.Leaders = func() []id.Rank { return leaders }
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
	table, _ := openWith(t, 2, &Remote{Self: host, Ranks: 20, Address: func(id.Rank) netip.Addr { return host }, Largest: mirror.Least})
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

// An answer says which messages are settled. If others could use a mirrored channel once later ones
// are, too, it is asked for again.
func TestSettledFar(t *testing.T) {
	host := netip.MustParseAddr("127.0.0.1")
	table, _ := openWith(t, 1, &Remote{Self: host, Ranks: 20, Address: func(id.Rank) netip.Addr { return host }, Largest: mirror.Least})
	every := func(id.Rank) bool { return true }
	only := func(rank id.Rank) func(id.Rank) bool { return func(r id.Rank) bool { return r == rank } }
	for _, rank := range []id.Rank{5, 6} {
		table.Meet(0, rank)
	}
	table.Pause(every, false)
	f := table.farOf(0, 5)
	if !table.SpokeFar(0, 5, 800, 3) {
		t.Fatal("it does not matter whether a message is settled")
	}
	for _, k := range []struct {
		when      string
		is        func(id.Rank) bool
		number    uint64
		paused    bool
		unsettled bool
		settled   uint64
	}{
		{"too early", every, 2, false, true, 0},
		{"too early, and paused", every, 2, true, false, 0},
		{"of another node", only(6), 9, false, false, 0},
		{"the message", every, 3, false, false, 800},
		{"again", every, 2, false, false, 800},
	} {
		table.Pause(only(5), k.paused)
		if got := table.SettledFar(k.is, k.number); got != k.unsettled || f.out.Settled().Load() != k.settled {
			t.Errorf("%s: unsettled %t, settled up to %d", k.when, got, f.out.Settled().Load())
		}
	}
}
