package ether

import (
	"fmt"
	"net"
)

// A MAC is a 48-bit Ethernet address in the order of the wire. It is comparable and serves as a map
// key.
type MAC [6]byte

// Broadcast is the address of every station.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ParseMAC reads the colon, hyphen or dot notation of a 48-bit address.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, fmt.Errorf("ether: parse MAC %q: %w", s, err)
	}
	if len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("ether: parse MAC %q: %d octets, want 6", s, len(hw))
	}
	return MAC(hw), nil
}

// String returns the address as lower-case hexadecimal octets separated by colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Group reports whether m addresses several stations: multicast or broadcast (IEEE 802.3, I/G bit).
func (m MAC) Group() bool { return m[0]&1 != 0 }

// Station reports whether m can be the address of one station: neither a group address nor all
// zero.
func (m MAC) Station() bool { return !m.Group() && m != MAC{} }
