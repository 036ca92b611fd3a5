// Package neighbour enters hardware addresses in Linux's table of neighbours, for good.
//
// All network namespaces of a host share the room for entries that Linux has learnt (1,024 with the
// default of net.ipv4.neigh.default.gc_thresh3). Some hundred hosted nodes that know serve and a
// few others fill it, and Linux then drops the packets to further neighbours. Permanent entries do
// not count. They also save questions that a bridge would bring to every node.
package neighbour

import (
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
