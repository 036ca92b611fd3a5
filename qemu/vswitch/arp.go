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

// An ARP packet for Ethernet and IPv4 (RFC 826): its first eight bytes but for the operation, its length, and where its sender is.
const (
	arpKind     = "\x00\x01\x08\x00\x06\x04"
	arpLen      = 28
	arpHardware = 8
	arpProtocol = 14
)

// Where an IPv4 header (RFC 791) has its source, and its least length.
const (
	ipSource = 12
	ipLen    = 20
)

// honest reports whether a frame that comes from a station says nothing about the address of another: neither in ARP nor as the source of
// an IPv4 packet. Only one that asks whether an address is free (RFC 5227), or has none yet, may claim none. A station with an address
// has nothing else to say: in other protocols it could have any number of addresses. An address that is not valid is not compared.
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

// owns reports whether the IPv4 address at the beginning of b is that of a station, or none.
func owns(address netip.Addr, b []byte) bool {
	claimed := netip.AddrFrom4([4]byte(b))
	return claimed == address || claimed.IsUnspecified()
}
