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

// Offsets in an IPv4 header (RFC 791), the minimum length of the header, and values there.
const (
	ipFragment = 6
	ipProtocol = 9
	ipSource   = 12
	ipLen      = 20

	fragmentOffset = 0x1fff // mask
	protocolUDP    = 17
)

// udpLen is the length of a UDP header.
const udpLen = 8

// The UDP ports of DHCP (RFC 2131), and the offset of the client's Ethernet address in a message.
const (
	portDHCPServer = 67
	portDHCPClient = 68

	dhcpHardware = 28
)

// honest reports whether a frame from a station claims no address of another station, neither in
// ARP nor as the source of an IPv4 packet. A station that probes whether an address is free (RFC
// 5227), or has none yet, may claim none. A station with an address may use no other protocol,
// because it could have any number of addresses there. An invalid address is not compared.
func honest(frame []byte, mac ether.MAC, address netip.Addr) bool {
	kind, p, ok := below(frame)
	switch {
	case !ok:
		return !address.IsValid() // there is nothing below its tags
	case kind == typeARP:
		return honestARP(p, mac, address)
	case !address.IsValid():
		return true
	case kind == typeIPv4 && len(p) >= ipLen:
		return owns(address, p[ipSource:])
	}
	return false
}

// below returns the type and the payload of a frame below its tags, where stations look; false if
// it ends in its tags.
func below(frame []byte) (kind uint16, payload []byte, ok bool) {
	at := ether.HeaderLen
	kind = binary.BigEndian.Uint16(frame[at-2:])
	for kind == typeTag || kind == typeOuterTag {
		if at += 4; len(frame) < at {
			return 0, nil, false
		}
		kind = binary.BigEndian.Uint16(frame[at-2:])
	}
	return kind, frame[at:], true
}

// honestDHCP reports whether a frame from a station with an address claims nothing in DHCP: it is
// not for a DHCP client, and as a question it has the station's own Ethernet address. A server
// takes that for the client's, whatever the source of the frame. A first fragment that does not
// contain the port, or in a question the address, is not honest. A later fragment cannot change
// them.
func honestDHCP(frame []byte, mac ether.MAC) bool {
	kind, p, ok := below(frame)
	if !ok || kind != typeIPv4 || len(p) < ipLen || p[ipProtocol] != protocolUDP {
		return true
	}
	if binary.BigEndian.Uint16(p[ipFragment:])&fragmentOffset != 0 {
		return true
	}
	at := int(p[0]&0xf) * 4
	if len(p) < at+4 {
		return false
	}
	switch binary.BigEndian.Uint16(p[at+2:]) {
	case portDHCPClient:
		return false
	case portDHCPServer:
		at += udpLen + dhcpHardware
		return len(p) >= at+len(mac) && ether.MAC(p[at:at+len(mac)]) == mac
	}
	return true
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
