package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"margay/kernel/abi/node"
)

// Each neighbour is entered once. After an error it is tried again.
func TestNeighbours(t *testing.T) {
	var s neighbours
	a, b := netip.MustParseAddr("10.66.1.1"), netip.MustParseAddr("10.66.1.2")
	var entered []netip.Addr
	full := errors.New("full")
	for i, address := range []netip.Addr{a, b, a, b, b} {
		err := s.enter(address, func() error {
			if entered = append(entered, address); i == 1 {
				return full
			}
			return nil
		})
		if (err != nil) != (i == 1) {
			t.Errorf("try %d: %v", i, err)
		}
	}
	if want := []netip.Addr{a, b, b}; !slices.Equal(entered, want) {
		t.Errorf("%v are entered, not %v", entered, want)
	}
}

// A node enters the addresses whose hardware addresses it knows, and no others.
func TestReached(t *testing.T) {
	var said []string
	n := &Node{config: Config{Boot: node.Config{MAC: "52:54:00:66:00:05", Address: "10.66.1.5/16", Serve: "10.66.0.1:7117"}}}
	n.config.Log = func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	n.reached(netip.MustParseAddr("10.66.1.7"))
	if len(said) > 0 {
		t.Errorf("without knowing any it says %q", said)
	}
	n.config.Boot.ServeMAC = "52:54:00:ff:ff:01"
	n.reached(netip.MustParseAddr("10.67.1.7"))
	if len(said) > 0 {
		t.Errorf("about a stranger it says %q", said)
	}
	n.reached(netip.MustParseAddr("10.66.1.7")) // there is no interface with the node's address
	if len(said) != 1 || !strings.Contains(said[0], "no interface has the node's address 10.66.1.5") {
		t.Errorf("it says %q", said)
	}
}
