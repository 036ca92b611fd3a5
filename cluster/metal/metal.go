// Package metal has what the substrate metal is made of: machines of their own on a network of this
// host, which boot over it.
//
// Plan says which address a node has. Cards knows the network cards of nodes, and of guests: other
// machines that have asked for an address, and wait until they are made nodes. Console decides what
// is kept of the console of a node. They are without input and output. Wire is the boot network of
// a host, and Watch looks for other DHCP servers there.
package metal

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"margay/cluster/boot"
	"margay/cluster/roster"
	"margay/kernel/abi/id"
)

// Plan divides the addresses of a boot network. The address of a node follows from its number, so
// it stays the same. Guests have the last addresses of the range.
type Plan struct {
	Server netip.Prefix `json:"server"` // address of this host on the boot network, and its subnet
	Range  netip.Prefix `json:"range"`  // the addresses of nodes and guests, without the first and the last one
}

// Bounds of a range, in bits of its prefix, and the most guests.
const (
	leastBits  = 16
	mostBits   = 28
	mostGuests = 64
)

// Check returns an error unless the plan has addresses of a subnet.
func (p Plan) Check() error {
	switch {
	case !p.Range.IsValid() || !p.Range.Addr().Is4() || p.Range.Bits() < leastBits || p.Range.Bits() > mostBits || p.Range != p.Range.Masked():
		return fmt.Errorf("%v is not a range of IPv4 addresses such as 10.8.0.0/24, with a prefix of %d to %d bits", p.Range, leastBits, mostBits)
	case !p.Server.IsValid() || !p.Server.Addr().Is4() || p.Server.Bits() > p.Range.Bits() || !p.Server.Masked().Contains(p.Range.Addr()):
		return fmt.Errorf("the range %v is not in the subnet of %v", p.Range, p.Server)
	}
	return nil
}

// Nodes returns how many nodes have an address.
func (p Plan) Nodes() int { return min(roster.Most, p.usable()-p.Guests()) }

// Guests returns how many guests have an address.
func (p Plan) Guests() int { return min(mostGuests, p.usable()/4) }

// Node returns the address of a node with its subnet. There is none for a number that the range is
// too small for.
func (p Plan) Node(n id.Node) (address netip.Prefix, ok bool) {
	if int64(n) >= int64(p.Nodes()) {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(p.at(int(n)), p.Server.Bits()), true
}

// Number returns the node that has an address.
func (p Plan) Number(a netip.Addr) (n id.Node, ok bool) {
	if !p.has(a) || a == p.Server.Addr() {
		return 0, false
	}
	i := number(a) - number(p.Range.Addr()) - 1
	if p.has(p.Server.Addr()) && number(a) > number(p.Server.Addr()) {
		i--
	}
	return id.Node(i), int64(i) < int64(p.Nodes())
}

// guest returns the address of a place for a guest.
func (p Plan) guest(place int) netip.Addr { return p.at(p.usable() - 1 - place) }

// Broadcast returns the address of all stations of the boot network.
func (p Plan) Broadcast() netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], number(p.Server.Addr())|^uint32(0)>>p.Server.Bits())
	return netip.AddrFrom4(a)
}

// usable is the number of addresses that hosts can have.
func (p Plan) usable() int {
	n := 1<<(32-p.Range.Bits()) - 2
	if p.has(p.Server.Addr()) {
		n--
	}
	return n
}

// has reports whether an address is in the range, and neither its first nor its last one.
func (p Plan) has(a netip.Addr) bool {
	return p.Range.Contains(a) && a != p.Range.Addr() && number(a) != number(p.Range.Addr())|(1<<(32-p.Range.Bits())-1)
}

// at returns the usable address of an index.
func (p Plan) at(i int) netip.Addr {
	n := number(p.Range.Addr()) + 1 + uint32(i)
	if p.has(p.Server.Addr()) && n >= number(p.Server.Addr()) {
		n++
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], n)
	return netip.AddrFrom4(a)
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// Card says how a node is known when it boots: by its network card, by its machine, or by both.
type Card struct {
	Node id.Node `json:"node"`
	MAC  string  `json:"mac,omitempty"`  // of the card; empty: any card of the machine
	UUID string  `json:"uuid,omitempty"` // of the machine; empty: any machine with the card
}

// ParseMAC reads the address of the network card of a station.
func ParseMAC(text string) (boot.MAC, error) {
	m, err := boot.ParseMAC(text)
	if err == nil && (m == (boot.MAC{}) || m[0]&1 != 0) {
		err = fmt.Errorf("%v is not the address of one network card", m)
	}
	return m, err
}
