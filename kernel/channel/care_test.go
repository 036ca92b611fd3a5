package channel

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
)

// A rank that has ended has received nothing from a rank whose end of their mirrored channels its
// node did not know yet. Messages that this rank may have sent are lost.
func TestLastOfUnknownEnd(t *testing.T) {
	host := netip.MustParseAddr("127.0.0.1")
	remote := &Remote{Self: host, Ranks: 3, Address: func(id.Rank) netip.Addr { return host }, Largest: mirror.Least}
	here, _ := openWith(t, 1, remote)
	if _, complete, ok := here.Meet(0, 2); complete || !ok {
		t.Fatal("there are no mirrored channels")
	}
	if all := here.LastOf(0); len(all) > 0 {
		t.Errorf("before its end: %v", all)
	}
	here.Ended(0)
	if all := here.LastOf(0); !slices.Equal(all, []Last{{2, 0}}) {
		t.Errorf("after its end: %v", all)
	}
}

// Datagrams for a rank that has ended take a bounded time, even those without bytes, which another
// rank may send without end.
func TestEmptyDatagrams(t *testing.T) {
	host := netip.MustParseAddr("127.0.0.1")
	here, _ := openWith(t, 1, &Remote{Self: host, Ranks: 2, Address: func(id.Rank) netip.Addr { return host }, Largest: mirror.Least})
	own, _, _ := here.Meet(0, 1)
	here.Ended(0)
	flooder, _, err := OpenSocket(host)
	if err != nil {
		t.Fatal(err)
	}
	defer flooder.Close()
	send := func() {
		t.Helper()
		if err := unix.Sendto(int(flooder.Fd()), nil, 0, &unix.SockaddrInet4{Addr: host.As4(), Port: int(own.Port)}); err != nil {
			t.Fatal(err)
		}
	}
	held := func() int { // bytes of memory; what was sent need not be there at once
		t.Helper()
		bytes, err := unix.GetsockoptInt(int(here.sockets[0].file.Fd()), unix.SOL_SOCKET, unix.SO_MEMINFO)
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	send()
	check.Await(t, "a datagram", func() bool { return held() > 0 })
	one := held()
	for range takenEach {
		send()
	}
	check.Await(t, "all datagrams", func() bool { return held() >= one*(takenEach+1) })
	here.Tend(0)
	if _, _, ok := here.sockets[0].receive(); !ok {
		t.Error("all datagrams were taken at once")
	}
	if _, _, ok := here.sockets[0].receive(); ok {
		t.Error("fewer datagrams were taken than may be")
	}
}

// A message that a rank of another node did not receive is reported lost once, whatever reports
// follow.
func TestLastFar(t *testing.T) {
	host := netip.MustParseAddr("127.0.0.1")
	here, _ := openWith(t, 1, &Remote{Self: host, Ranks: 3, Address: func(id.Rank) netip.Addr { return host }, Largest: mirror.Least})
	own, _, _ := here.Meet(0, 2)
	if err := here.Met(0, 2, Meeting{Number: own.Number, Key: 1, Port: 9}); err != nil {
		t.Fatal(err)
	}
	here.fars[0].out.Position().Store(64)
	if lost := here.Tend(0); len(lost) > 0 {
		t.Errorf("lost while the other rank goes on: %v", lost)
	}
	here.LastFar(0, Last{2, 64})
	if lost := here.Tend(0); len(lost) > 0 {
		t.Errorf("lost although it has arrived: %v", lost)
	}
	here.LastFar(0, Last{2, 32})
	here.LastFar(0, Last{2, 64})
	if lost := here.Tend(0); len(lost) != 1 || lost[0].Target != 2 {
		t.Errorf("lost: %v", lost)
	}
	if lost := here.Tend(0); len(lost) > 0 {
		t.Errorf("lost again: %v", lost)
	}
}

// All bytes of a rank leave although it does not call its library any longer, and reads no
// acknowledgement: not a window of it only.
func TestTendAll(t *testing.T) {
	const written = 60 << 10
	host := netip.MustParseAddr("127.0.0.1")
	here, _ := openWith(t, 1, &Remote{Self: host, Ranks: 2, Address: func(id.Rank) netip.Addr { return host }, Largest: mirror.Least})
	other, port, err := OpenSocket(host)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	own, _, _ := here.Meet(0, 1)
	if err := here.Met(0, 1, Meeting{Number: own.Number, Key: 1, Port: port}); err != nil {
		t.Fatal(err)
	}
	here.fars[0].out.Position().Store(written)
	here.Tend(0)
	here.Tend(TendEach)
	b := make([]byte, 1<<16)
	check.Await(t, "the last bytes", func() bool {
		for {
			n, _, err := unix.Recvfrom(int(other.Fd()), b, unix.MSG_DONTWAIT)
			if err != nil {
				return false
			}
			if h, data, err := mirror.Parse(b[:n]); err == nil && int(h.Offset)+len(data) == written {
				return true
			}
		}
	})
}
