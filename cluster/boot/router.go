package boot

import (
	"encoding/binary"
	"slices"
)

// iPXE configures IPv6 beside IPv4, and waits some 15 s for a router before it goes on. A router
// advertisement ends the wait: of a router that offers no route, no address and no server.

// Lengths in bytes, and values of IPv6 (RFC 8200) and of a router advertisement (RFC 4861, section
// 4.2).
const (
	advertisementLen = 16

	typeIPv6            = 0x86dd
	protocolICMPv6      = 58
	hopLimit            = 255
	routerAdvertisement = 134
)

// advertisement is the Ethernet frame with a router advertisement to one station.
func advertisement(from, to MAC) []byte {
	source, destination := linkLocal(from), linkLocal(to)
	message := make([]byte, advertisementLen)
	message[0] = routerAdvertisement
	pseudo := slices.Concat(source[:], destination[:], []byte{0, 0, 0, advertisementLen, 0, 0, 0, protocolICMPv6})
	binary.BigEndian.PutUint16(message[2:], checksum(append(pseudo, message...)))
	frame := slices.Concat(to[:], from[:])
	frame = binary.BigEndian.AppendUint16(frame, typeIPv6)
	frame = append(frame, 0x60, 0, 0, 0, 0, advertisementLen, protocolICMPv6, hopLimit)
	return slices.Concat(frame, source[:], destination[:], message)
}

// linkLocal is the address that a station gives itself (RFC 4291, appendix A).
func linkLocal(m MAC) [16]byte {
	return [16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]}
}

// checksum returns the checksum of RFC 1071. The length of b is even.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
