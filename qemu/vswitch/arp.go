package vswitch

import (
	"encoding/binary"
	"net/netip"

	"margay/qemu/ether"
)

// Types of frames.
const (
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

// honest reports whether a frame that comes from a station says in ARP nothing about the address of another. Only one that asks
// whether an address is free may claim none (RFC 5227). An address that is not valid is not compared.
func honest(frame []byte, mac ether.MAC, address netip.Addr) bool {
	at := ether.HeaderLen
	kind := binary.BigEndian.Uint16(frame[at-2:])
	for kind == typeTag || kind == typeOuterTag { // the stations look below tags
		if at += 4; len(frame) < at {
			return true // there is nothing below
		}
		kind = binary.BigEndian.Uint16(frame[at-2:])
	}
	if kind != typeARP {
		return true
	}
	p := frame[at:]
	if len(p) < arpLen || string(p[:len(arpKind)]) != arpKind || ether.MAC(p[arpHardware:arpProtocol]) != mac {
		return false
	}
	claimed := netip.AddrFrom4([4]byte(p[arpProtocol:]))
	return !address.IsValid() || claimed == address || claimed.IsUnspecified()
}
