package boot

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Another implementation of IPv6 reads the advertisement, and finds nothing in it.
func TestAdvertisement(t *testing.T) {
	frame := advertisement(MAC{0x52, 0x54, 0, 0xff, 0xff, 2}, MAC{0x52, 0x54, 0, 0x66, 0, 7})
	if got := hex.EncodeToString(frame[:14]); got != "525400660007"+"525400ffff02"+"86dd" {
		t.Errorf("header %s", got)
	}
	ip := header.IPv6(frame[14:])
	source, destination := netip.MustParseAddr("fe80::5054:ff:feff:ff02"), netip.MustParseAddr("fe80::5054:ff:fe66:7")
	if !ip.IsValid(len(ip)) || ip.SourceAddress() != tcpip.AddrFrom16(source.As16()) || ip.DestinationAddress() != tcpip.AddrFrom16(destination.As16()) || ip.HopLimit() != 255 {
		t.Errorf("IPv6 header of %x", frame)
	}
	icmp := header.ICMPv6(ip.Payload())
	sum := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: ip.SourceAddress(), Dst: ip.DestinationAddress()})
	if icmp.Type() != header.ICMPv6RouterAdvert || icmp.Checksum() != sum {
		t.Errorf("type %d, checksum %x, want %x", icmp.Type(), icmp.Checksum(), sum)
	}
	ra := header.NDPRouterAdvert(icmp.MessageBody())
	if ra.RouterLifetime() != 0 || ra.ManagedAddrConfFlag() || ra.OtherConfFlag() || len(ra.Options()) != 0 {
		t.Errorf("advertisement %x", ra)
	}
}
