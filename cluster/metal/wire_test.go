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

func TestReadOffer(t *testing.T) {
	sender := netip.MustParseAddr("10.8.0.9")
	request := reply(t, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 7))
	request[0] = byte(dhcpv4.OpcodeBootRequest)
	boots, err := dhcpv4.FromBytes(reply(t, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 7)))
	if err != nil {
		t.Fatal(err)
	}
	boots.BootFileName = "pxelinux.0"
	for name, c := range map[string]struct {
		datagram []byte
		want     string
		boots    bool
	}{
		"offer":             {reply(t, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 7)), "10.8.0.7", false},
		"offer with a file": {boots.ToBytes(), "10.8.0.7", true},
		"without a server":  {reply(t, dhcpv4.MessageTypeNak, nil), "10.8.0.9", false},
		"a question":        {request, "invalid IP", false},
		"no DHCP":           {[]byte("hello"), "invalid IP", false},
		"another message":   {reply(t, dhcpv4.MessageTypeDecline, net.IPv4(10, 8, 0, 7)), "invalid IP", false},
	} {
		if got := readOffer(c.datagram, sender); got.Server.String() != c.want || got.Boots != c.boots {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// FuzzReadOffer: no datagram of a station makes trouble, or a server out of nothing.
func FuzzReadOffer(f *testing.F) {
	f.Add(reply(f, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 7)))
	f.Add([]byte{2})
	f.Fuzz(func(t *testing.T, datagram []byte) {
		if got := readOffer(datagram, netip.Addr{}).Server; got.IsValid() && !got.Is4() {
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
	if _, err := Find("near", netip.Prefix{}, false); err == nil || !strings.Contains(err.Error(), "--range") {
		t.Errorf("without an address and a range: %v", err)
	}
	if _, err := Find("none", netip.Prefix{}, false); err == nil {
		t.Error("an interface that does not exist is found")
	}
	if _, err := Find("lo", netip.Prefix{}, false); err == nil {
		t.Error("the loopback interface is accepted")
	}
	p, err := Find("near", netip.MustParsePrefix("10.8.0.0/24"), false)
	if err != nil || p.Server.String() != "10.8.0.1/24" {
		t.Fatalf("%v, %v", p, err)
	}
	w, err := Open("near", p, 7117, false)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if again, err := Find("near", netip.Prefix{}, false); err != nil || again != p {
		t.Errorf("with its address, without a range: %v, %v", again, err)
	}
	if other, err := Open("near", p, 7118, false); err == nil {
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
	found := make(chan Offer, 10)
	watched := make(chan error, 1)
	conn, err := w.packets("", dhcpv4.ClientPort)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		watched <- watch(ctx, conn, w.MAC(), p.Server.Addr(), func(o Offer) { found <- o })
	}()
	frame := offerFrame(reply(t, dhcpv4.MessageTypeOffer, net.IPv4(10, 8, 0, 77)))
	for seen := false; !seen; {
		if err := unix.Sendto(raw, frame, 0, &unix.SockaddrLinklayer{Ifindex: far.Attrs().Index}); err != nil {
			t.Fatal(err)
		}
		select {
		case o := <-found:
			seen = true
			if o.Server.String() != "10.8.0.77" {
				t.Errorf("found %v", o)
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

	// Beside the server of a site, the interface must have an address in its network.
	if _, err := Find("near", netip.Prefix{}, true); err == nil || !strings.Contains(err.Error(), "--range") {
		t.Errorf("a site without a range: %v", err)
	}
	if _, err := Find("near", netip.MustParsePrefix("10.9.0.0/24"), true); err == nil || !strings.Contains(err.Error(), "no address in a subnet") {
		t.Errorf("a site with a range of another subnet: %v", err)
	}
	if in, err := Find("near", netip.MustParsePrefix("10.8.0.128/25"), true); err != nil || in.Server != p.Server {
		t.Errorf("a site: %v, %v", in, err)
	}

	// An interface that is made again gets its address and the sockets back.
	line := w.Line()
	if bind, changed := line.See(w.Look()); bind || changed {
		t.Errorf("an interface that is well: %t, %t, %s", bind, changed, line.Trouble())
	}
	if err := netlink.LinkDel(far); err != nil {
		t.Fatal(err)
	}
	if bind, changed := line.See(w.Look()); bind || !changed || !strings.Contains(line.Trouble(), "is gone") {
		t.Errorf("an interface that is gone: %t, %t, %s", bind, changed, line.Trouble())
	}
	if err := w.Bind(); err == nil {
		t.Error("sockets are bound to no interface")
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}); err != nil {
		t.Fatal(err)
	}
	if bind, _ := line.See(w.Look()); !bind {
		t.Errorf("an interface that is back: %s", line.Trouble())
	}
	if line.Bound(w.index(), w.Bind()); line.Trouble() != "" || w.Look().Index != w.index() || !w.Look().Address {
		t.Errorf("an interface that is back: %s, %+v", line.Trouble(), w.Look())
	}
	if far, err = netlink.LinkByName("far"); err == nil {
		err = netlink.LinkSetUp(far)
	}
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for buf := make([]byte, 10); ; { // after the question of this host for other servers
			n, _, err := w.DHCP.ReadFrom(buf)
			if err != nil {
				t.Error(err)
			}
			if err != nil || string(buf[:n]) == "question" {
				return
			}
		}
	}()
	deadline := time.After(time.Minute)
	for received := false; !received; {
		if err := unix.Sendto(raw, questionFrame(), 0, &unix.SockaddrLinklayer{Ifindex: far.Attrs().Index}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-answered:
			received = true
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatal("no question arrives on the interface that is back")
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if left, err := netlink.AddrList(w.link, netlink.FAMILY_V4); err != nil || len(left) != 0 {
		t.Errorf("the interface keeps %v, %v", left, err)
	}
}

// offerFrame is the frame of a datagram from a DHCP server to all clients.
func offerFrame(datagram []byte) []byte { return frame(datagram, dhcpv4.ServerPort, dhcpv4.ClientPort) }

// questionFrame is the frame of a datagram to DHCP servers.
func questionFrame() []byte { return frame([]byte("question"), dhcpv4.ClientPort, dhcpv4.ServerPort) }

// frame is the frame of a datagram from 10.8.0.77 to all stations.
func frame(datagram []byte, from, to uint16) []byte {
	udp := binary.BigEndian.AppendUint16(nil, from)
	udp = binary.BigEndian.AppendUint16(udp, to)
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
