package seek

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/internal/check"
	"margay/internal/uuid"
)

var (
	mac    = net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}
	id     = [4]byte{1, 2, 3, 4}
	server = net.IPv4(10, 8, 0, 1)
	own    = net.IPv4(10, 8, 0, 2)
	other  = net.IPv4(10, 8, 0, 3) // the DHCP server of a site

	machine1 = uuid.ID{0x4c, 15: 1}
)

// answer returns what a DHCP server answers; change may be nil.
func answer(t testing.TB, kind dhcpv4.MessageType, change func(*dhcpv4.DHCPv4)) []byte {
	t.Helper()
	m, err := dhcpv4.New(
		dhcpv4.WithMessageType(kind), dhcpv4.WithTransactionID(id), dhcpv4.WithHwAddr(mac), dhcpv4.WithYourIP(own),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server)),
	)
	if err != nil {
		t.Fatal(err)
	}
	m.OpCode, m.BootFileName = dhcpv4.OpcodeBootReply, "http://10.8.0.1/boot.ipxe"
	if change != nil {
		change(m)
	}
	return m.ToBytes()
}

// sent returns the type of the datagram that a question sends next.
func sent(t testing.TB, q *Question) dhcpv4.MessageType {
	t.Helper()
	b, err := q.Next()
	if err != nil {
		t.Fatal(err)
	}
	m, err := dhcpv4.FromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := uuid.FromOption(m.Options.Get(dhcpv4.OptionClientMachineIdentifier)); got != machine1 {
		t.Errorf("sent by machine %v", got)
	}
	if m.OpCode != dhcpv4.OpcodeBootRequest || m.TransactionID != id || m.ClientHWAddr.String() != mac.String() || !m.IsBroadcast() {
		t.Errorf("sent %v", m)
	}
	if m.MessageType() == dhcpv4.MessageTypeRequest && (!m.RequestedIPAddress().Equal(own) || !m.ServerIdentifier().Equal(server)) {
		t.Errorf("the request asks %v for %v", m.ServerIdentifier(), m.RequestedIPAddress())
	}
	return m.MessageType()
}

// A question gets a lease by an offer and an acknowledgement of it.
func TestQuestion(t *testing.T) {
	q := NewQuestion(mac, id, machine1)
	for range 2 {
		if k := sent(t, q); k != dhcpv4.MessageTypeDiscover {
			t.Errorf("sent %v", k)
		}
	}
	if !q.Receive(answer(t, dhcpv4.MessageTypeOffer, nil)) {
		t.Fatal("the offer was not taken")
	}
	if k := sent(t, q); k != dhcpv4.MessageTypeRequest {
		t.Errorf("sent %v", k)
	}
	if !q.Receive(answer(t, dhcpv4.MessageTypeNak, nil)) || sent(t, q) != dhcpv4.MessageTypeDiscover {
		t.Error("a refusal does not begin again")
	}
	if !q.Receive(answer(t, dhcpv4.MessageTypeOffer, nil)) || !q.Receive(answer(t, dhcpv4.MessageTypeAck, nil)) {
		t.Fatal("the acknowledgement was not taken")
	}
	want := Lease{netip.MustParsePrefix("10.8.0.2/24"), netip.MustParseAddr("10.8.0.1")}
	if l, ok := q.Lease(); !ok || l != want {
		t.Errorf("lease %v, %v", l, ok)
	}
	if q.Receive(answer(t, dhcpv4.MessageTypeNak, nil)) || q.Receive(answer(t, dhcpv4.MessageTypeOffer, nil)) {
		t.Error("it goes on after the lease")
	}
}

// foreign are changes to an answer after which it is not one of boot services to this question.
var foreign = map[string]func(*dhcpv4.DHCPv4){
	"of another question":        func(m *dhcpv4.DHCPv4) { m.TransactionID[3]++ },
	"for another card":           func(m *dhcpv4.DHCPv4) { m.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, 2} },
	"a question":                 func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootRequest },
	"without an address":         func(m *dhcpv4.DHCPv4) { m.YourIPAddr = net.IPv4zero },
	"without a subnet":           func(m *dhcpv4.DHCPv4) { m.Options.Del(dhcpv4.OptionSubnetMask) },
	"without a server":           func(m *dhcpv4.DHCPv4) { m.Options.Del(dhcpv4.OptionServerIdentifier) },
	"of a server without boot":   func(m *dhcpv4.DHCPv4) { m.BootFileName = "" },
	"with a file by TFTP":        func(m *dhcpv4.DHCPv4) { m.BootFileName = "undionly.kpxe" },
	"with a name":                func(m *dhcpv4.DHCPv4) { m.BootFileName = "http://server/boot.ipxe" },
	"with a port":                func(m *dhcpv4.DHCPv4) { m.BootFileName = "http://10.8.0.1:1/boot.ipxe" },
	"with a script elsewhere":    func(m *dhcpv4.DHCPv4) { m.BootFileName = "http://192.0.2.1/boot.ipxe" },
	"with a script on this node": func(m *dhcpv4.DHCPv4) { m.BootFileName = "http://10.8.0.2/boot.ipxe" },
}

func TestForeign(t *testing.T) {
	for name, change := range foreign {
		q := NewQuestion(mac, id, machine1)
		if q.Receive(answer(t, dhcpv4.MessageTypeOffer, change)) {
			t.Errorf("an offer %s was taken", name)
		}
		q.Receive(answer(t, dhcpv4.MessageTypeOffer, nil))
		if q.Receive(answer(t, dhcpv4.MessageTypeAck, change)) {
			t.Errorf("an acknowledgement %s was taken", name)
		}
		if _, ok := q.Lease(); ok {
			t.Errorf("%s: there is a lease", name)
		}
	}
}

// ofSite makes an answer one of the DHCP server of a site, which names no script.
func ofSite(m *dhcpv4.DHCPv4) {
	m.BootFileName = ""
	m.UpdateOption(dhcpv4.OptServerIdentifier(other))
}

// ofProxy makes an answer one of boot services that give no address.
func ofProxy(m *dhcpv4.DHCPv4) {
	m.YourIPAddr = net.IPv4zero
	m.Options.Del(dhcpv4.OptionSubnetMask)
}

// Beside a server of the site the address is the site's, and the script is of the boot services, in
// whatever order their offers come.
func TestProxy(t *testing.T) {
	for name, offers := range map[string][2]func(*dhcpv4.DHCPv4){"site first": {ofSite, ofProxy}, "boot services first": {ofProxy, ofSite}} {
		q := NewQuestion(mac, id, machine1)
		if q.Receive(answer(t, dhcpv4.MessageTypeOffer, offers[0])) || sent(t, q) != dhcpv4.MessageTypeDiscover {
			t.Errorf("%s: one offer is enough", name)
		}
		missing := q.Missing()
		if !q.Receive(answer(t, dhcpv4.MessageTypeOffer, offers[1])) {
			t.Fatalf("%s: the offers were not taken", name)
		}
		b, err := q.Next()
		if err != nil {
			t.Fatal(err)
		}
		if m, err := dhcpv4.FromBytes(b); err != nil || m.MessageType() != dhcpv4.MessageTypeRequest || !m.ServerIdentifier().Equal(other) || !m.RequestedIPAddress().Equal(own) {
			t.Errorf("%s: sent %v, %v", name, m, err)
		}
		if q.Receive(answer(t, dhcpv4.MessageTypeAck, nil)) {
			t.Errorf("%s: another server acknowledges", name)
		}
		if !q.Receive(answer(t, dhcpv4.MessageTypeAck, ofSite)) {
			t.Errorf("%s: the acknowledgement was not taken", name)
		}
		if l, ok := q.Lease(); !ok || l.String() != "10.8.0.2/24, boot services at 10.8.0.1" {
			t.Errorf("%s: lease %v, %v; missing was: %v", name, l, ok, missing)
		}
	}
	far := func(m *dhcpv4.DHCPv4) {
		ofProxy(m)
		m.BootFileName = "http://192.0.2.1/boot.ipxe"
	}
	q := NewQuestion(mac, id, machine1)
	if q.Receive(answer(t, dhcpv4.MessageTypeOffer, ofSite)) || q.Receive(answer(t, dhcpv4.MessageTypeOffer, far)) {
		t.Error("boot services of another network are taken")
	}
	if !q.Receive(answer(t, dhcpv4.MessageTypeOffer, ofProxy)) {
		t.Error("the boot services of this network are not taken after that")
	}
}

func TestMissing(t *testing.T) {
	for want, change := range map[string]func(*dhcpv4.DHCPv4){
		"a DHCP server answers there, and no boot services": ofSite, "leave addresses to a DHCP server of the site": ofProxy,
		"the DHCP server 10.8.0.1 offers an address there, and does not acknowledge it": nil,
		"no boot services of a machine answer there":                                    func(m *dhcpv4.DHCPv4) { m.TransactionID[0]++ },
	} {
		q := NewQuestion(mac, id, machine1)
		q.Receive(answer(t, dhcpv4.MessageTypeOffer, change))
		if err := q.Missing(); !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Whatever servers answer in whatever order, there is a lease exactly after an acknowledgement by
// the server whose offer was accepted: the first whole one, or the site's as soon as boot services
// have named their script as well.
func TestProxyModel(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	kinds := []dhcpv4.MessageType{dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak}
	changes := []func(*dhcpv4.DHCPv4){nil, ofSite, ofProxy}
	const (
		whole = iota
		ofTheSite
		scriptOnly
		none
	)
	for range histories() {
		q := NewQuestion(mac, id, machine1)
		accepted, site, script, done := none, false, false, false
		for step := range 12 {
			kind, from := kinds[random.IntN(len(kinds))], random.IntN(len(changes))
			got := q.Receive(answer(t, kind, changes[from]))
			want := false
			switch {
			case done:
			case kind == dhcpv4.MessageTypeOffer && accepted == none:
				site, script = site || from == ofTheSite, script || from == scriptOnly
				switch {
				case from == whole:
					accepted = whole
				case site && script:
					accepted = ofTheSite
				}
				want = accepted != none
			case kind == dhcpv4.MessageTypeNak && accepted != none:
				accepted, site, script, want = none, false, false, true
			case kind == dhcpv4.MessageTypeAck && accepted == from:
				done, want = true, true
			}
			if _, leased := q.Lease(); got != want || leased != done {
				t.Fatalf("step %d: %v from %d: %v, lease %v; want %v, %v", step, kind, from, got, leased, want, done)
			}
		}
	}
}

// Whatever comes in whatever order, there is a lease exactly after an offer and its
// acknowledgement, and it has the address that was offered.
func TestModel(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 0))
	kinds := []dhcpv4.MessageType{dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak, dhcpv4.MessageTypeInform}
	for range histories() {
		q, offered, leased := NewQuestion(mac, id, machine1), byte(0), byte(0)
		for range 10 {
			kind, last := kinds[random.IntN(len(kinds))], byte(2+random.IntN(2))
			got := q.Receive(answer(t, kind, func(m *dhcpv4.DHCPv4) { m.YourIPAddr = net.IPv4(10, 8, 0, last) }))
			want := false
			switch {
			case leased != 0:
			case kind == dhcpv4.MessageTypeOffer && offered == 0:
				offered, want = last, true
			case kind == dhcpv4.MessageTypeNak && offered != 0:
				offered, want = 0, true
			case kind == dhcpv4.MessageTypeAck && offered == last:
				leased, want = last, true
			}
			l, ok := q.Lease()
			if got != want || ok != (leased != 0) || ok && l.Address.Addr() != netip.AddrFrom4([4]byte{10, 8, 0, leased}) {
				t.Fatalf("%v of %d: %v, lease %v, %v; want %v, %d", kind, last, got, l, ok, want, leased)
			}
		}
	}
}

// FuzzReceive: a datagram gives a lease only of a subnet with the server, or nothing.
func FuzzReceive(f *testing.F) {
	f.Add(answer(f, dhcpv4.MessageTypeOffer, nil), answer(f, dhcpv4.MessageTypeAck, nil))
	f.Add(answer(f, dhcpv4.MessageTypeNak, nil), []byte{})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		q := NewQuestion(mac, id, machine1)
		q.Receive(first)
		if _, err := q.Next(); err != nil {
			t.Error(err)
		}
		q.Receive(second)
		if l, ok := q.Lease(); ok && (!l.Address.Contains(l.Server) || l.Address.Addr() == l.Server) {
			t.Errorf("lease %v", l)
		}
	})
}

// histories is how many random histories a test plays, many under MARGAY_SOAK.
func histories() int {
	if os.Getenv("MARGAY_SOAK") != "" {
		return 100_000
	}
	return 200
}
