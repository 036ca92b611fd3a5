package vswitch

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"margay/qemu/ether"
)

func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

// arp is a frame of a station with an ARP packet that claims a hardware and an IP address.
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

// packet is a frame of a station with the header of an IPv4 packet of a source, and a payload.
func packet(from, to ether.MAC, source netip.Addr, payload string, tags ...uint16) []byte {
	f := append(to[:], from[:]...)
	for _, tag := range tags {
		f = binary.BigEndian.AppendUint16(f, tag)
		f = append(f, 0, 0)
	}
	f = append(f, "\x08\x00\x45"...)
	f = append(f, make([]byte, ipSource-1)...)
	f = append(f, source.AsSlice()...)
	f = append(f, 10, 0, 0, 9)
	return append(f, payload...)
}

func TestHonest(t *testing.T) {
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
		{"a tag and no more", arp(m, other, m, address(2), typeTag)[:ether.HeaderLen+2], false},
		{"another protocol", ipv6, false},
		{"IPv4", packet(m, other, address(1), "x"), true},
		{"IPv4 before there is an address", packet(m, other, netip.IPv4Unspecified(), ""), true},
		{"IPv4 of another", packet(m, other, address(2), "x"), false},
		{"IPv4 of another below a tag", packet(m, other, address(2), "x", typeTag), false},
		{"IPv4 too short", packet(m, other, address(1), "")[:ether.HeaderLen+ipLen-1], false},
		{"IPv6", append(append(other[:], m[:]...), append([]byte("\x86\xdd\x60"), make([]byte, 60)...)...), false},
		{"neither IPv4 nor ARP", frame(other, m, "anything"), false},
	}
	for _, c := range cases {
		if got := honest(c.frame, m, address(1)); got != c.honest {
			t.Errorf("%s: honest %v", c.name, got)
		}
	}
	if !honest(arp(m, other, m, address(2)), m, netip.Addr{}) || honest(arp(m, other, other, address(2)), m, netip.Addr{}) {
		t.Error("of a peer without an address, the hardware address counts and nothing else")
	}
	if !honest(frame(other, m, "anything"), m, netip.Addr{}) || !honest(packet(m, other, address(2), ""), m, netip.Addr{}) {
		t.Error("a peer without an address may say anything else")
	}
}

// udp is a frame of station 1 with a UDP datagram to a port, in a fragment at an offset, and with
// words of options in its IPv4 header.
func udp(port, fragment uint16, options int, tags ...uint16) []byte {
	f := packet(mac(1), ether.Broadcast, address(1), strings.Repeat("\x00", 4*options)+"\x00\x43", tags...)
	at := ether.HeaderLen + 4*len(tags)
	f[at] += byte(options)
	f[at+ipProtocol] = protocolUDP
	binary.BigEndian.PutUint16(f[at+ipFragment:], fragment)
	return append(binary.BigEndian.AppendUint16(f, port), "datagram"...)
}

// question is a frame of station 1 with a DHCP message of the client with an Ethernet address.
func question(client ether.MAC, options int, tags ...uint16) []byte {
	f := udp(portDHCPServer, 0, options, tags...)[:ether.HeaderLen+4*len(tags)+ipLen+4*options+udpLen]
	f = append(f, make([]byte, dhcpHardware)...)
	return append(append(f, client[:]...), "rest"...)
}

func TestHonestDHCP(t *testing.T) {
	tcp := udp(portDHCPClient, 0, 0)
	tcp[ether.HeaderLen+ipProtocol] = 6
	own := question(mac(1), 0)
	for name, c := range map[string]struct {
		frame  []byte
		honest bool
	}{
		"answer":                         {udp(portDHCPClient, 0, 0), false},
		"below a tag":                    {udp(portDHCPClient, 0, 0, typeTag), false},
		"after options":                  {udp(portDHCPClient, 0, 3), false},
		"first fragment":                 {udp(portDHCPClient, 0x2000, 0), false},
		"too short for a port":           {udp(0, 0x2000, 0)[:ether.HeaderLen+ipLen+3], false},
		"cut off in its header":          {udp(portDHCPClient, 0, 3)[:ether.HeaderLen+ipLen], false},
		"later fragment":                 {udp(portDHCPClient, 1, 0), true},
		"question":                       {own, true},
		"question after options":         {question(mac(1), 3), true},
		"question cut off":               {own[:ether.HeaderLen+ipLen+udpLen+dhcpHardware+5], false},
		"question of another":            {question(mac(2), 0), false},
		"question of another, tagged":    {question(mac(2), 0, typeTag), false},
		"question of another by options": {question(mac(2), 3), false},
		"another port":                   {udp(7117, 0, 3), true},
		"TCP":                            {tcp, true},
		"ARP":                            {arp(mac(1), mac(2), mac(1), address(1)), true},
		"a tag and no more":              {udp(portDHCPClient, 0, 0, typeTag)[:ether.HeaderLen+2], true},
	} {
		if got := honestDHCP(c.frame, mac(1)); got != c.honest {
			t.Errorf("%s: honest: %v", name, got)
		}
	}
}

// Only a peer without an address answers DHCP clients, and a peer with one asks for itself alone.
func TestDHCPServer(t *testing.T) {
	l := newLab(t, 3, func(c *Config) {
		for i := range c.Ports {
			c.Ports[i].Address = address(i)
		}
		c.Ports[0].Address = netip.Addr{}
	})
	server, node, imposter := l.plug(0), l.plug(2), l.plug(1)
	imposter.write(ether.Append(nil, udp(portDHCPClient, 0, 0)))
	imposter.write(ether.Append(nil, question(node.mac, 0)))
	own := question(imposter.mac, 0)
	imposter.write(ether.Append(nil, own))
	node.expect(imposter.mac, string(own[ether.HeaderLen:]))
	server.expect(imposter.mac, string(own[ether.HeaderLen:]))
	if got, want := l.Port("p1").Stats().Drops, (Drops{Claim: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	answer := packet(server.mac, node.mac, address(0), string(udp(portDHCPClient, 0, 0)[ether.HeaderLen+ipLen:]))
	answer[ether.HeaderLen+ipProtocol] = protocolUDP
	server.write(ether.Append(nil, answer))
	node.expect(server.mac, string(answer[ether.HeaderLen:]))
}

// A frame that claims another station's address, in ARP or as the source of a packet, is dropped
// and counted.
func TestImposter(t *testing.T) {
	l := newLab(t, 2, func(c *Config) {
		for i := range c.Ports {
			c.Ports[i].Address = address(i)
		}
	})
	a, b := l.plug(0), l.plug(1)
	a.write(ether.Append(nil, arp(a.mac, b.mac, a.mac, address(9))))
	a.write(ether.Append(nil, arp(a.mac, ether.Broadcast, mac(9), address(0))))
	a.write(ether.Append(nil, packet(a.mac, b.mac, address(9), "")))
	own := packet(a.mac, b.mac, address(0), "after that")
	a.write(ether.Append(nil, own))
	b.expect(a.mac, string(own[ether.HeaderLen:]))
	if got, want := l.Port("p0").Stats().Drops, (Drops{Claim: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// FuzzHonest: whatever passes is IPv4, or ARP for IPv4, as the stations read it, and claims the
// peer's own addresses.
func FuzzHonest(f *testing.F) {
	m, other := mac(1), mac(2)
	for _, tags := range [][]uint16{nil, {typeTag}, {typeOuterTag, typeTag}} {
		f.Add(arp(m, other, m, address(1), tags...))
		f.Add(arp(m, other, other, address(2), tags...))
		f.Add(packet(m, other, address(1), "", tags...))
		f.Add(packet(m, other, address(2), "", tags...))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < ether.HeaderLen || !honest(frame, m, address(1)) {
			return
		}
		rest := frame[2*len(m):]
		for len(rest) > 4 && (rest[0] == 0x81 && rest[1] == 0 || rest[0] == 0x88 && rest[1] == 0xa8) {
			rest = rest[4:]
		}
		if len(rest) >= 2+ipLen && rest[0] == 8 && rest[1] == 0 {
			if ip := netip.AddrFrom4([4]byte(rest[14:18])); ip != address(1) && !ip.IsUnspecified() {
				t.Errorf("the source %v passes", ip)
			}
			return
		}
		if len(rest) < 2+arpLen || rest[0] != 8 || rest[1] != 6 {
			t.Fatalf("%x passes", frame)
		}
		if ether.MAC(rest[10:16]) != m {
			t.Errorf("the Ethernet address %x passes", rest[10:16])
		}
		if ip := netip.AddrFrom4([4]byte(rest[16:20])); ip != address(1) && !ip.IsUnspecified() {
			t.Errorf("the address %v passes", ip)
		}
	})
}
