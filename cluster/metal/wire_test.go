package metal

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// reply is an answer of a DHCP server.
func reply(t testing.TB, kind dhcpv4.MessageType, server net.IP) []byte {
	t.Helper()
	m, err := dhcpv4.New(dhcpv4.WithMessageType(kind))
	if err != nil {
		t.Fatal(err)
	}
	m.OpCode = dhcpv4.OpcodeBootReply
	if server != nil {
		m.UpdateOption(dhcpv4.OptServerIdentifier(server))
	}
	return m.ToBytes()
}

func TestOfferer(t *testing.T) {
	sender := netip.MustParseAddr("10.8.0.9")
	request := reply(t, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 7))
	request[0] = byte(dhcpv4.OpcodeBootRequest)
	for name, c := range map[string]struct {
		datagram []byte
		want     string
	}{
		"offer":            {reply(t, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 7)), "10.8.0.7"},
		"without a server": {reply(t, dhcpv4.MessageTypeNak, nil), "10.8.0.9"},
		"a question":       {request, "invalid IP"},
		"no DHCP":          {[]byte("hello"), "invalid IP"},
		"another message":  {reply(t, dhcpv4.MessageTypeDecline, net.IPv4(10, 8, 0, 7)), "invalid IP"},
	} {
		if got := offerer(c.datagram, sender).String(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// FuzzOfferer: no datagram of a station makes trouble, or a server out of nothing.
func FuzzOfferer(f *testing.F) {
	f.Add(reply(f, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 7)))
	f.Add([]byte{2})
	f.Fuzz(func(t *testing.T, datagram []byte) {
		if got := offerer(datagram, netip.Addr{}); got.IsValid() && !got.Is4() {
			t.Errorf("server %v", got)
		}
	})
}

// On an interface, a Wire has an address while it is open, and another DHCP server is noticed.
func TestWire(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make network interfaces")
	}
	runtime.LockOSThread() // and never unlocks: the thread ends in the other namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "near"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}); err != nil {
		t.Fatal(err)
	}
	far, err := netlink.LinkByName("far")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(far); err != nil {
		t.Fatal(err)
	}
	if _, err := Find("near", netip.Prefix{}); err == nil || !strings.Contains(err.Error(), "--range") {
		t.Errorf("without an address and a range: %v", err)
	}
	if _, err := Find("none", netip.Prefix{}); err == nil {
		t.Error("an interface that does not exist is found")
	}
	if _, err := Find("lo", netip.Prefix{}); err == nil {
		t.Error("the loopback interface is accepted")
	}
	p, err := Find("near", netip.MustParsePrefix("10.8.0.0/24"))
	if err != nil || p.Server.String() != "10.8.0.1/24" {
		t.Fatalf("%v, %v", p, err)
	}
	w, err := Open("near", p, 7117)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if again, err := Find("near", netip.Prefix{}); err != nil || again != p {
		t.Errorf("with its address, without a range: %v, %v", again, err)
	}
	if other, err := Open("near", p, 7118); err == nil {
		other.Close()
		t.Error("two on one interface")
	}
	if err := w.Send(make([]byte, 60)); err != nil {
		t.Error(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	raw, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(raw)
	found := make(chan netip.Addr, 10)
	watched := make(chan error, 1)
	conn, err := w.packets("", dhcpv4.ClientPort)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		watched <- watch(ctx, conn, w.MAC(), p.Server.Addr(), func(server netip.Addr) { found <- server })
	}()
	frame := offerFrame(reply(t, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 77)))
	for seen := false; !seen; {
		if err := unix.Sendto(raw, frame, 0, &unix.SockaddrLinklayer{Ifindex: far.Attrs().Index}); err != nil {
			t.Fatal(err)
		}
		select {
		case server := <-found:
			seen = true
			if server.String() != "10.8.0.77" {
				t.Errorf("found %v", server)
			}
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("the other server is not noticed")
		}
	}
	cancel()
	if err := <-watched; err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if left, err := netlink.AddrList(w.link, netlink.FAMILY_V4); err != nil || len(left) != 0 {
		t.Errorf("the interface keeps %v, %v", left, err)
	}
}

// offerFrame is the frame of a datagram from a DHCP server to all clients.
func offerFrame(datagram []byte) []byte {
	udp := binary.BigEndian.AppendUint16(nil, dhcpv4.ServerPort)
	udp = binary.BigEndian.AppendUint16(udp, dhcpv4.ClientPort)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(datagram)))
	udp = append(append(udp, 0, 0), datagram...) // without a checksum
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 10, 8, 0, 77, 255, 255, 255, 255}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(udp)))
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	frame := []byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 8, 0}
	return append(append(frame, ip...), udp...)
}
