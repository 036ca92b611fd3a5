package udp

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/fabric/fabrictest"
	"margay/kernel/fabric/tcp"
)

// start makes a node of a machine at an address; change may change its configuration.
func start(t testing.TB, m *fabrictest.Machine, node id.Node, address string, h fabric.Handler, change func(*Config)) (*Transport, string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: l.Addr().(*net.TCPAddr).IP})
	if err != nil {
		t.Fatal(err)
	}
	accept, connect := m.Credentials(t, node)
	config := Config{Self: node, Handler: h, Log: t.Logf, Death: 5 * time.Second,
		Streams: func(h fabric.Handler) fabric.Transport {
			return tcp.New(l, tcp.Config{Self: node, Accept: accept, Connect: connect, Peer: fabrictest.PeerNode, Handler: h, Log: t.Logf})
		}}
	if change != nil {
		change(&config)
	}
	return New(c, config), l.Addr().String()
}

func suite(change func(*Config)) fabrictest.Suite {
	return fabrictest.Suite{Leaks: check.Leaks, Rounds: check.Rounds, Machine: func(t testing.TB) fabrictest.New {
		m := fabrictest.NewMachine(t)
		return func(t testing.TB, node id.Node, address string, h fabric.Handler) (fabric.Transport, string) {
			return start(t, m, node, address, h, change)
		}
	}}
}

func TestContract(t *testing.T) {
	suite(nil).Run(t)
}

// The same on a trusted wire with large datagrams.
func TestContractTrusted(t *testing.T) {
	suite(func(c *Config) { c.Trusted, c.Datagram = true, 16<<10 }).Run(t)
}

// BenchmarkFrames sends frames of the size of a batch of messages.
func BenchmarkFrames(b *testing.B) {
	for name, trusted := range map[string]bool{"sealed": false, "trusted": true} {
		b.Run(name, func(b *testing.B) {
			ts, rs := two(b, trusted)
			frame := make([]byte, 4096)
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				ts[0].Send(b.Context(), 1, fabric.User, frame)
			}
			rs[1].Await(b, "frames", func() bool { return len(rs[1].Frames) >= b.N })
		})
	}
}

// two starts two nodes that know each other.
func two(t testing.TB, trusted bool) (ts []*Transport, rs []*fabrictest.Recorder) {
	t.Helper()
	m := fabrictest.NewMachine(t)
	var addresses []string
	for i := range id.Node(2) {
		r := fabrictest.NewRecorder()
		tr, address := start(t, m, i, "127.0.0.1:0", r, func(c *Config) { c.Trusted = trusted })
		t.Cleanup(func() { tr.Close() })
		ts, rs, addresses = append(ts, tr), append(rs, r), append(addresses, address)
	}
	for i := range id.Node(2) {
		ts[i].Meet(1-i, addresses[1-i])
	}
	return ts, rs
}

// On a trusted wire a datagram counts only if it comes from the peer's port: a rank on the peer's
// node sends from the same address.
func TestTrustedPort(t *testing.T) {
	ts, rs := two(t, true)
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("x")); err != nil {
		t.Fatal(err)
	}
	rs[1].Await(t, "frame", func() bool { return len(rs[1].Frames) == 1 })
	p := ts[1].peer(0)
	p.mu.Lock()
	from := p.session.to
	p.mu.Unlock()
	b := make([]byte, datagram.HeaderSize)
	if err := p.arrive(b, netip.AddrPortFrom(from.Addr(), from.Port()^1), new(datagram.Datagram)); !errors.Is(err, errSeal) {
		t.Errorf("from another port: %v", err)
	}
	if err := p.arrive(b, from, new(datagram.Datagram)); err == nil || errors.Is(err, errSeal) {
		t.Errorf("from the peer's port: %v", err)
	}
}
