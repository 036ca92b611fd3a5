package vswitch

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"margay/qemu/ether"
)

func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

// arp is a frame of a station with an ARP packet in which it claims a hardware and an IP address.
func arp(from, to, hardware ether.MAC, claimed netip.Addr, tags ...uint16) []byte {
	f := append(to[:], from[:]...)
	for _, tag := range tags {
		f = binary.BigEndian.AppendUint16(f, tag)
		f = append(f, 0, 0) // the network 0, which is none
	}
	f = append(f, "\x08\x06"+arpKind+"\x00\x01"...)
	f = append(f, hardware[:]...)
	f = append(f, claimed.AsSlice()...)
	return append(f, make([]byte, arpLen-arpProtocol-4)...)
}

func TestARP(t *testing.T) {
	m, other := mac(1), mac(2)
	cut := arp(m, other, m, address(1))
	ipv6 := slices.Clone(cut)
	ipv6[ether.HeaderLen+3] = 0xdd
	cases := []struct {
		name   string
		frame  []byte
		honest bool
	}{
		{"own", arp(m, other, m, address(1)), true},
		{"probe", arp(m, ether.Broadcast, m, netip.IPv4Unspecified()), true},
		{"IP address of another", arp(m, other, m, address(2)), false},
		{"hardware address of another", arp(m, other, other, address(1)), false},
		{"both", arp(m, ether.Broadcast, other, address(2)), false},
		{"own below a tag", arp(m, other, m, address(1), typeTag), true},
		{"another's below a tag", arp(m, other, m, address(2), typeTag), false},
		{"another's below two tags", arp(m, other, m, address(2), typeOuterTag, typeTag), false},
		{"too short", cut[:len(cut)-11], false},
		{"a tag and no more", arp(m, other, m, address(2), typeTag)[:ether.HeaderLen+2], true},
		{"another protocol", ipv6, false},
		{"no ARP", frame(other, m, "not ARP"), true},
	}
	for _, c := range cases {
		if got := honest(c.frame, m, address(1)); got != c.honest {
			t.Errorf("%s: honest %v", c.name, got)
		}
	}
	if !honest(arp(m, other, m, address(2)), m, netip.Addr{}) || honest(arp(m, other, other, address(2)), m, netip.Addr{}) {
		t.Error("of a peer without an address, the hardware address counts and nothing else")
	}
}

// A station that claims the address of another in ARP is not heard, and counted.
func TestARPOfImposter(t *testing.T) {
	l := newLab(t, 2, func(c *Config) {
		for i := range c.Ports {
			c.Ports[i].Address = address(i)
		}
	})
	a, b := l.plug(0), l.plug(1)
	a.write(ether.Append(nil, arp(a.mac, b.mac, a.mac, address(9))))
	a.write(ether.Append(nil, arp(a.mac, ether.Broadcast, mac(9), address(0))))
	a.send(b.mac, "after that")
	b.expect(a.mac, "after that")
	if got, want := l.Port("p0").Stats().Drops, (Drops{Claim: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// FuzzHonest: whatever passes and is ARP for IPv4, as the stations read it, claims the peer's own addresses.
func FuzzHonest(f *testing.F) {
	m, other := mac(1), mac(2)
	for _, tags := range [][]uint16{nil, {typeTag}, {typeOuterTag, typeTag}} {
		f.Add(arp(m, other, m, address(1), tags...))
		f.Add(arp(m, other, other, address(2), tags...))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < ether.HeaderLen || !honest(frame, m, address(1)) {
			return
		}
		rest := frame[2*len(m):]
		for len(rest) > 4 && (rest[0] == 0x81 && rest[1] == 0 || rest[0] == 0x88 && rest[1] == 0xa8) {
			rest = rest[4:]
		}
		if len(rest) < 2+arpLen || rest[0] != 8 || rest[1] != 6 {
			return
		}
		if ether.MAC(rest[10:16]) != m {
			t.Errorf("the Ethernet address %x passes", rest[10:16])
		}
		if ip := netip.AddrFrom4([4]byte(rest[16:20])); ip != address(1) && !ip.IsUnspecified() {
			t.Errorf("the address %v passes", ip)
		}
	})
}
