package channel

import (
	"net/netip"
	"slices"
	"testing"

	"margay/kernel/abi/mirror"
)

// A rank that has ended has received nothing from a rank whose end of their mirrored channels its
// node did not know yet. Messages that this rank may have sent are lost.
func TestLastOfUnknownEnd(t *testing.T) {
	host := netip.MustParseAddr("127.0.0.1")
	remote := &Remote{Self: host, Addresses: []netip.Addr{host, host, host}, Largest: mirror.Least}
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

// A message that a rank of another node did not receive is reported lost once, whatever reports
// follow.
func TestLastFar(t *testing.T) {
	host := netip.MustParseAddr("127.0.0.1")
	here, _ := openWith(t, 1, &Remote{Self: host, Addresses: []netip.Addr{host, host, host}, Largest: mirror.Least})
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
