package vswitch

import (
	"encoding/binary"
	"net/netip"

	"margay/qemu/ether"
)

// Types of frames.
const (
	typeIPv4     = 0x0800
	typeARP      = 0x0806
	typeTag      = 0x8100 // IEEE 802.1Q
	typeOuterTag = 0x88a8 // IEEE 802.1ad
)

// An ARP packet for Ethernet and IPv4 (RFC 826): its first eight bytes except the operation, its
// length, and the offset of its sender.
const (
	arpKind     = "\x00\x01\x08\x00\x06\x04"
	arpLen      = 28
	arpHardware = 8
	arpProtocol = 14
)

// The offset of the source in an IPv4 header (RFC 791), and the minimum length of the header.
const (
	ipSource = 12
	ipLen    = 20
)

// honest reports whether a frame from a station claims no address of another station, neither in
// ARP nor as the source of an IPv4 packet. A station that probes whether an address is free (RFC
// 5227), or has none yet, may claim none. A station with an address may use no other protocol,
// because it could have any number of addresses there. An invalid address is not compared.
func honest(frame []byte, mac ether.MAC, address netip.Addr) bool {
	at := ether.HeaderLen
	kind := binary.BigEndian.Uint16(frame[at-2:])
	for kind == typeTag || kind == typeOuterTag { // the stations look below tags
		if at += 4; len(frame) < at {
			return !address.IsValid() // there is nothing below
		}
		kind = binary.BigEndian.Uint16(frame[at-2:])
	}
	p := frame[at:]
	switch {
	case kind == typeARP:
		return honestARP(p, mac, address)
	case !address.IsValid():
		return true
	case kind == typeIPv4 && len(p) >= ipLen:
		return owns(address, p[ipSource:])
	}
	return false
}

func honestARP(p []byte, mac ether.MAC, address netip.Addr) bool {
	if len(p) < arpLen || string(p[:len(arpKind)]) != arpKind || ether.MAC(p[arpHardware:arpProtocol]) != mac {
		return false
	}
	return !address.IsValid() || owns(address, p[arpProtocol:])
}

// owns reports whether the IPv4 address at the beginning of b is the station's or zero.
func owns(address netip.Addr, b []byte) bool {
	claimed := netip.AddrFrom4([4]byte(b))
	return claimed == address || claimed.IsUnspecified()
}
