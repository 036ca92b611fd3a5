// Package neighbour keeps Linux from asking nodes of one host for each other. It enters hardware
// addresses in Linux's table of neighbours, for good, and keeps IPv6 off.
//
// All network namespaces of a host share the room for entries that Linux has learnt (1,024 with the
// default of net.ipv4.neigh.default.gc_thresh3). Some hundred hosted nodes that know serve and a
// few others fill it, and Linux then drops the packets to further neighbours. Permanent entries do
// not count. They also save questions that a bridge would bring to every node.
package neighbour

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Enter enters the hardware address of an IPv4 neighbour at the interface of an index, in the
// network namespace of this process.
func Enter(index int, address netip.Addr, mac net.HardwareAddr) error {
	entry := &netlink.Neigh{
		LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac,
	}
	if err := netlink.NeighSet(entry); err != nil {
		return fmt.Errorf("enter the hardware address of %v: %w", address, err)
	}
	return nil
}

// Quiet keeps Linux from giving an interface addresses of IPv6. It would report each of them to
// all neighbours, several times: with a thousand nodes at one bridge, a million packets for each
// report. The interface must not be up yet. The Handle is of its network namespace.
func Quiet(h *netlink.Handle, link netlink.Link) error {
	const none = 1 // IN6_ADDR_GEN_MODE_NONE
	if err := h.LinkSetIP6AddrGenMode(link, none); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("keep IPv6 off %s: %w", link.Attrs().Name, err)
	}
	return nil
}
