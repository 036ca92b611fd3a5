package kernel

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
	"margay/kernel/fabric"
	"margay/kernel/fabric/udp"
	"margay/kernel/message"
)

// A job has mirrored channels only on a trusted wire, between nodes with IPv4 addresses, and where
// any record fits into a datagram.
func TestRemote(t *testing.T) {
	spec := func(addresses ...string) (s JobSpec) {
		var places []layout.Place
		for i := range addresses {
			places = append(places, layout.Place{Rank: id.Rank(i), Node: id.Node(i)})
		}
		s.Layout = laidOutAt(t, func(n id.Node) netip.AddrPort { return netip.MustParseAddrPort(addresses[n]) }, places...)
		return s
	}
	const a, b = "10.66.1.0:7118", "10.66.1.1:7118"
	for name, test := range map[string]struct {
		fabric  string
		mtu     int
		spec    JobSpec
		largest int // 0: there are none
	}{
		"trusted":     {node.TrustedUDP, 0, spec(a, b), 1372},
		"trusted TCP": {node.TrustedTCP, 0, spec(a, b), 1372},
		"large MTU":   {node.TrustedUDP, 65535, spec(a, b), 9000},
		"small MTU":   {node.TrustedUDP, 1000, spec(a, b), 0},
		"tcp":         {node.TCP, 0, spec(a, b), 0},
		"sealed":      {node.UDP, 0, spec(a, b), 0},
		"one node":    {node.TrustedUDP, 0, spec(a), 0},
		"IPv6":        {node.TrustedUDP, 0, spec(a, "[fd00::1]:7118"), 0},
	} {
		n := &Node{config: Config{Boot: node.Config{Fabric: test.fabric, MTU: test.mtu}}}
		switch r := n.remote(test.spec); {
		case (r != nil) != (test.largest > 0):
			t.Errorf("%s: %+v", name, r)
		case r != nil && (r.Largest != test.largest || r.Self.String() != "10.66.1.0" || r.Address(1).String() != "10.66.1.1"):
			t.Errorf("%s: %+v", name, r)
		}
		// Nodes that differ in MTU must agree.
		if meets := n.meets(test.spec); meets != (node.TrustsWire(test.fabric) && name != "one node") {
			t.Errorf("%s: ranks meet: %v", name, meets)
		}
	}
}

// connected is a node kernel that is a member of a fabric and nothing else.
type connected struct {
	*Node
	address string
	streams chan string // that other nodes have opened: from where, and what

	mu  sync.Mutex
	log []string
}

// said reports whether a line of the log has a text.
func (c *connected) said(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Contains(strings.Join(c.log, "\n"), text)
}

func connect(t *testing.T, number id.Node, name string) *connected {
	t.Helper()
	c := &connected{streams: make(chan string, 1)}
	log := func(format string, args ...any) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.log = append(c.log, fmt.Sprintf(format, args...))
	}
	c.Node = &Node{config: Config{Log: log}, jobs: make(map[id.Job]*job), messages: message.NewEngine(message.Config{Self: number, Log: log})}
	c.config.Boot.Node, c.config.Boot.Fabric = number, name
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: fmt.Sprint(number)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	own := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	var datagrams *net.UDPConn
	if node.Datagrams(name) {
		if datagrams, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	c.Join(Membership{
		Listener: l, Datagrams: datagrams,
		Accept:  &tls.Config{Certificates: own, ClientAuth: tls.RequireAnyClientCert},
		Connect: &tls.Config{Certificates: own, InsecureSkipVerify: true},
		Peer: func(s tls.ConnectionState) (n id.Node, err error) {
			_, err = fmt.Sscan(s.PeerCertificates[0].Subject.CommonName, &n)
			return n, err
		},
		Stream: func(from id.Node, service string, conn net.Conn) {
			defer conn.Close()
			text, _ := io.ReadAll(conn)
			c.streams <- fmt.Sprintf("%s of node%d: %s", service, from, text)
		},
	})
	t.Cleanup(func() { c.transport.Close() })
	return c
}

// A node reaches the nodes of its jobs: frames go to their engines, streams to what Join was given,
// and the end of a connection is reported.
func TestJoin(t *testing.T) {
	for _, name := range node.Fabrics {
		t.Run(name, func(t *testing.T) { testJoin(t, name) })
	}
}

func testJoin(t *testing.T, name string) {
	check.Leaks(t)
	a, b := connect(t, 4, name), connect(t, 5, name)
	if _, err := a.Stream(t.Context(), 5, "files"); err == nil {
		t.Error("a node that no job has is reached")
	}
	j := a.newJob()
	j.spec = JobSpec{Job: 1, Layout: laidOutAt(t, func(id.Node) netip.AddrPort { return netip.MustParseAddrPort(b.address) }, layout.Place{Node: 5, Core: 1})}
	if err := a.claim(j); err != nil {
		t.Fatal(err)
	}
	conn, err := a.Stream(t.Context(), 5, "files")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "text")
	conn.Close()
	if got := <-b.streams; got != "files of node4: text" {
		t.Errorf("stream %q", got)
	}
	if err := a.transport.Send(t.Context(), 5, fabric.System, []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	check.Await(t, "frame", func() bool { return b.said("frame from node4: ") })
	if _, datagrams := a.transport.(*udp.Transport); datagrams != node.Datagrams(name) {
		t.Errorf("the transport is %T", a.transport)
	}
	a.transport.Close()
	check.Await(t, "end of the connection", func() bool { return b.said("connection to node4: ") })
}

// Nodes that are not configured alike refuse each other, and say why.
func TestMixedFabrics(t *testing.T) {
	check.Leaks(t)
	sealed, trusted, tcp := connect(t, 4, node.UDP), connect(t, 5, node.TrustedUDP), connect(t, 6, node.TCP)
	send := func(from, to *connected) {
		t.Helper()
		from.transport.Meet(to.config.Boot.Node, to.address)
		if err := from.transport.Send(t.Context(), to.config.Boot.Node, fabric.System, []byte("nonsense")); err != nil {
			t.Fatal(err)
		}
	}
	send(sealed, trusted)
	check.Await(t, "refusal", func() bool { return trusted.said("meet node4: ") })
	send(tcp, sealed)
	check.Await(t, "frame over TCP", func() bool { return sealed.said("select one transport for all nodes") })
	if trusted.said("frame from") || sealed.said("frame from") {
		t.Errorf("frames came through: %q, %q", sealed.log, trusted.log)
	}
}

// addressBook is a transport that counts the addresses that it gets.
type addressBook struct {
	fabric.Transport
	book map[id.Node]string
	met  int
}

func (a *addressBook) Meet(node id.Node, address string) {
	a.book[node] = address
	a.met++
}

// The transport gets the address of a node once, and again when it is another one.
func TestMeet(t *testing.T) {
	book := &addressBook{book: make(map[id.Node]string)}
	n := &Node{transport: book}
	at := func(base string, nodes ...id.Node) layout.Layout {
		var places []layout.Place
		for i, node := range nodes {
			places = append(places, layout.Place{Rank: id.Rank(i), Node: node, Core: 1})
		}
		first := netip.MustParseAddr(base).As4()
		return laidOutAt(t, func(node id.Node) netip.AddrPort {
			a := first
			a[3] += byte(node)
			return netip.AddrPortFrom(netip.AddrFrom4(a), 7118)
		}, places...)
	}
	for i, step := range []struct {
		layout layout.Layout
		want   int // addresses
	}{
		{at("10.0.0.0", 1, 2, 3, 7), 4},
		{at("10.0.0.0", 2, 3), 0},
		{at("10.0.0.0", 3, 4), 2},
		{at("10.0.1.0", 3), 1},
		{at("10.0.1.0", 3), 0},
		{at("10.0.0.0", 3), 1},
		{at("10.0.0.0", 7), 0},
	} {
		book.met = 0
		n.meet(step.layout)
		if book.met != step.want {
			t.Errorf("step %d: %d addresses, not %d", i, book.met, step.want)
		}
		for place := range step.layout.Nodes() {
			if node := step.layout.Node(place); book.book[node] != step.layout.Address(place).String() {
				t.Errorf("step %d: node%d is at %s", i, node, book.book[node])
			}
		}
	}
}
