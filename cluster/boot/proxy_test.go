package boot

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/internal/check"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
	"margay/kernel/seek"
)

// site is the DHCP server of the site, and given an address from it.
var (
	site  = netip.MustParseAddr("10.66.0.1")
	given = netip.MustParseAddr("10.66.7.7")
)

func proxy(c *Config) { c.Proxy, c.Broadcast = true, true }

// chosen is the request of a client to the server of the site, which is broadcast.
func chosen(t testing.TB, n int, modifiers ...dhcpv4.Modifier) []byte {
	return request(t, n, append([]dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(site.AsSlice())), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(given.AsSlice())),
	}, modifiers...)...)
}

// asked is the request of a client to a proxy, from the address that it has.
func asked(t testing.TB, n int, modifiers ...dhcpv4.Modifier) []byte {
	return question(t, n, append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(given.AsSlice()),
	}, modifiers...)...)
}

// A proxy gives no address, only what a client boots from. Each kind of client gets the answer that
// it takes for one of a proxy: its search on the port of DHCP, and its request on the port of PXE.
func TestProxyAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    dhcpv4.Modifier
		class   string
		file    string
		options string
	}{
		{"BIOS", firmware("PXEClient:Arch:00000:UNDI:002001", 0), "PXEClient", "undionly.kpxe", "\x06\x01\x08\xff"},
		{"UEFI", firmware("PXEClient:Arch:00007:UNDI:003000", 7), "PXEClient", "ipxe.efi", "\x06\x01\x08\xff"},
		{"UEFI HTTP boot", firmware("HTTPClient:Arch:00016:UNDI:003000", 16), "HTTPClient", "http://10.66.0.2/ipxe.efi", ""},
		{"iPXE", func(*dhcpv4.DHCPv4) {}, "PXEClient", "http://10.66.0.2/boot.ipxe", ""},
	} {
		s, r := services(t, proxy)
		for _, on := range []struct {
			pxe      bool
			datagram []byte
			want     dhcpv4.MessageType
		}{
			{false, question(t, 1, c.kind), dhcpv4.MessageTypeOffer},
			{false, chosen(t, 1, c.kind), dhcpv4.MessageTypeNone}, // the server of the site answers
			{true, asked(t, 1, c.kind), dhcpv4.MessageTypeAck},
			{true, question(t, 1, c.kind), dhcpv4.MessageTypeNone},
		} {
			out, to := s.answer(start, on.datagram, on.pxe)
			if on.want == dhcpv4.MessageTypeNone {
				if out != nil {
					t.Errorf("%s, %t: answer %x", c.name, on.pxe, out)
				}
				continue
			}
			d, err := dhcpv4.FromBytes(out)
			if err != nil || d.MessageType() != on.want || to.String() != "255.255.255.255:68" {
				t.Fatalf("%s: %v to %v, %v", c.name, d, to, err)
			}
			if !d.YourIPAddr.IsUnspecified() || d.SubnetMask() != nil || d.IPAddressLeaseTime(0) != 0 || d.ServerIPAddr.String() != "10.66.0.2" ||
				d.ServerIdentifier().String() != "10.66.0.2" || d.ClassIdentifier() != c.class || d.BootFileName != c.file ||
				string(d.Options.Get(dhcpv4.OptionVendorSpecificInformation)) != c.options {
				t.Errorf("%s gets %s", c.name, d.Summary())
			}
		}
		if h, known := s.host(given); !known || h.Node != 1 {
			t.Errorf("%s: %v is the address of %v, %t", c.name, given, h, known)
		}
		if !strings.Contains(r.all(), "got") {
			t.Errorf("%s: reports %q", c.name, r.all())
		}
	}
}

// Of other stations of the site's network nothing is said, and of a node that another server gives
// an address nothing but its address is learnt.
func TestProxyIgnores(t *testing.T) {
	s, r := services(t, proxy)
	for name, datagram := range map[string][]byte{
		"a laptop":          question(t, 9, firmware("dhcpcd-9", 0)),
		"a node's Linux":    chosen(t, 1, firmware("dhcpcd-9", 0)),
		"an unknown client": question(t, 9),
	} {
		if out, _ := s.answer(start, datagram, false); out != nil {
			t.Errorf("%s gets %x", name, out)
		}
	}
	if text := r.all(); strings.Count(text, "\n") > 0 || !strings.Contains(text, "no node has the MAC address") {
		t.Errorf("reports %q", text)
	}
	if _, known := s.host(given); known {
		t.Error("an address is learnt from a node's Linux")
	}
}

// The address of a host is the last one that it has asked for. No host takes the address of one
// that has used it just now, nor the server's.
func TestProxyLearns(t *testing.T) {
	l := NewLeases(true)
	for n := range 3 {
		if err := l.Add(Host{Node: id.Node(n), MAC: host(n).MAC}); err != nil {
			t.Fatal(err)
		}
	}
	a, b := netip.MustParseAddr("10.66.7.1"), netip.MustParseAddr("10.66.7.2")
	for i, step := range []struct {
		at     time.Duration
		n      int
		wants  netip.Addr
		leased bool
		owners string // of a and b
	}{
		{0, 0, a, true, "0-"},
		{1, 1, a, false, "0-"},
		{2, 1, b, true, "01"},
		{3, 0, server, false, "01"},
		{4, 0, netip.Addr{}, false, "01"},
		{5, 0, netip.IPv4Unspecified(), false, "01"},
		{holdTime + 4, 2, a, false, "01"}, // refused questions are a sign of the host, too
		{holdTime + 5, 2, a, true, "21"},
		{holdTime + 6, 2, b, true, "-2"},
		{holdTime + 7, 1, a, true, "12"},
	} {
		answer := l.Handle(start.Add(step.at), server, Question{Kind: Request, MAC: host(step.n).MAC, Wants: step.wants, Server: site, Means: ByScript})
		owners := ""
		for _, address := range []netip.Addr{a, b} {
			if h, known := l.Host(address); known {
				owners += fmt.Sprint(uint32(h.Node))
			} else {
				owners += "-"
			}
		}
		if answer.Leased != step.leased || answer.Kind != Other || (answer.Refusal == "") != step.leased || owners != step.owners {
			t.Errorf("step %d: %+v, owners %s, want %s", i, answer, owners, step.owners)
		}
	}
	l.Forget(host(1).MAC)
	if len(l.addresses) != 1 || len(l.hosts) != 2 {
		t.Errorf("after one was forgotten: %v, %v", l.addresses, l.hosts)
	}
}

// A node keeps its address while it fetches, however long ago it has asked for it.
func TestProxyUses(t *testing.T) {
	l := NewLeases(true)
	for n := range 2 {
		if err := l.Add(Host{Node: id.Node(n), MAC: host(n).MAC}); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(at time.Duration, n int) bool {
		return l.Handle(start.Add(at), server, Question{Kind: Request, MAC: host(n).MAC, Wants: given, Server: site, Means: ByScript}).Leased
	}
	if !wants(0, 0) {
		t.Fatal("the first node has no address")
	}
	l.Uses(start.Add(holdTime), host(0).MAC)
	if wants(holdTime+1, 1) {
		t.Error("another one takes its address")
	}
	if !wants(2*holdTime+1, 1) {
		t.Error("another one cannot have its address when it is silent")
	}
	l.Uses(start, host(7).MAC)
	if len(l.owners) != 2 {
		t.Errorf("owners %v", l.owners)
	}
}

// A machine that was detained while it booted goes on as a node, with the address that it has asked
// another server for.
func TestProxyDetained(t *testing.T) {
	s, _ := services(t, proxy)
	s.Remove(1)
	if err := s.Add(Host{Guest: true, MAC: host(1).MAC}); err != nil {
		t.Fatal(err)
	}
	s.answer(start, chosen(t, 1), false)
	if h, known := s.host(given); !known || !h.Guest {
		t.Fatalf("%v is the address of %v, %t", given, h, known)
	}
	if err := s.Settle(Host{Node: 1, MAC: host(1).MAC}); err != nil {
		t.Fatal(err)
	}
	h, known := s.host(given)
	if !known || h.Guest || h.Node != 1 {
		t.Fatalf("%v is the address of %v, %t", given, h, known)
	}
	if refusal := s.grants.Take(time.Now(), h); refusal != "" {
		t.Errorf("its configuration is refused: %s", refusal)
	}
	if s.leases.learn(start, &Host{MAC: host(0).MAC}, given) {
		t.Error("another one takes its address")
	}
}

// ofSite is the answer of the site's server to a question, with an address and nothing to boot.
func ofSite(t testing.TB, datagram []byte) []byte {
	t.Helper()
	in, err := dhcpv4.FromBytes(datagram)
	if err != nil {
		t.Fatal(err)
	}
	kind := dhcpv4.MessageTypeOffer
	if in.MessageType() == dhcpv4.MessageTypeRequest {
		kind = dhcpv4.MessageTypeAck
	}
	out, err := dhcpv4.NewReplyFromRequest(in, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(given.AsSlice()),
		dhcpv4.WithNetmask(net.CIDRMask(16, 32)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(site.AsSlice())))
	if err != nil {
		t.Fatal(err)
	}
	return out.ToBytes()
}

// A machine that has booted from a disk has an address of the site's server, and its configuration
// from the services.
func TestProxyOfDisk(t *testing.T) {
	s, r := services(t, func(c *Config) {
		proxy(c)
		c.Node = func(n id.Node, disk bool) ([]byte, error) { return fmt.Appendf(nil, "node%d", n), nil }
	})
	mac := host(1).MAC
	q := seek.NewQuestion(mac[:], [4]byte{1, 2, 3, 4}, uuid.ID{})
	for range 2 {
		datagram, err := q.Next()
		if err != nil {
			t.Fatal(err)
		}
		q.Receive(ofSite(t, datagram))
		if out, to := s.answer(start, datagram, false); out != nil {
			if to.String() != "255.255.255.255:68" {
				t.Errorf("an answer to %v", to)
			}
			q.Receive(out)
		}
	}
	if lease, ok := q.Lease(); !ok || lease != (seek.Lease{Address: netip.PrefixFrom(given, 16), Server: server}) {
		t.Fatalf("lease %v, %v; reports %q", lease, ok, r.all())
	}
	h, known := s.host(given)
	if !known || h.Node != 1 {
		t.Fatalf("%v is the address of %v, %t", given, h, known)
	}
	if why := s.grants.Take(start, h); why != "" {
		t.Errorf("its configuration is refused: %s", why)
	}
}

// A client that asks on the port of PXE is answered where it has asked from.
func TestServePXE(t *testing.T) {
	s, _ := services(t, proxy)
	p, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, s, Sockets{PXE: p})
	conn, err := net.Dial("udp4", p.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(asked(t, 0)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, maxDatagram)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := dhcpv4.FromBytes(buf[:n]); err != nil || d.MessageType() != dhcpv4.MessageTypeAck {
		t.Errorf("answer %v, %v", d, err)
	}
}

// A client that is faster than its question for an address waits until its address is learnt, and
// its connection is a host's from then on.
func TestFastClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := services(t, func(c *Config) {
			c.Proxy = true
			c.Image = File{strings.NewReader(strings.Repeat("i", 300<<10)), 300 << 10}
		})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		p := check.NewPipes()
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, Sockets{DHCP: play(), TFTP: play(), HTTP: p}) }()
		c := dial(t, p, given.String()+":1000")
		defer c.Close()
		if _, err := io.WriteString(c, "GET /image HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s.answer(time.Now(), chosen(t, 1), false)
		answer, err := http.ReadResponse(bufio.NewReaderSize(c, 4096), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", answer, err)
		}
		for got := 0; got < 300<<10; {
			time.Sleep(strangerWait / 50) // more than strangerWait in all
			n, err := answer.Body.Read(make([]byte, 4096))
			if err != nil && (err != io.EOF || got+n != 300<<10) {
				t.Fatalf("after %d bytes: %v", got+n, err)
			}
			got += n
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
