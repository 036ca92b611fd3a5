package udp

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy stands before a node's socket and treats the datagrams to it badly.
type proxy struct {
	conn   *net.UDPConn // where other nodes send to
	away   *net.UDPConn // sends to the node
	target netip.AddrPort
	bad    func(p *proxy, b []byte) // passes, changes or drops a datagram
	cut    atomic.Bool              // a partition
	passed atomic.Int64

	mu     sync.Mutex // guards random
	random *rand.Rand

	running sync.WaitGroup
}

// newProxy starts a proxy, which needs to be aimed.
func newProxy(t testing.TB, seed uint64, bad func(*proxy, []byte)) *proxy {
	t.Helper()
	p := &proxy{bad: bad, random: rand.New(rand.NewPCG(seed, 7))}
	for _, c := range []**net.UDPConn{&p.conn, &p.away} {
		var err error
		if *c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		p.conn.Close()
		p.running.Wait()
		p.away.Close()
	})
	return p
}

// port is the port that other nodes send to.
func (p *proxy) port() uint16 { return p.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// aim makes the proxy pass datagrams on to a node.
func (p *proxy) aim(to *Transport) {
	p.target = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.socket.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	p.running.Go(func() {
		b := make([]byte, 64<<10)
		for {
			n, _, err := p.conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if !p.cut.Load() {
				p.bad(p, bytes.Clone(b[:n]))
			}
		}
	})
}

func (p *proxy) pass(b []byte) {
	p.passed.Add(1)
	p.away.WriteToUDPAddrPort(b, p.target)
}

// chance reports true in so many of a hundred cases.
func (p *proxy) chance(percent int) bool { return p.number(100) < percent }

func (p *proxy) number(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.IntN(n)
}

// lossy loses a fifth of all datagrams, repeats a tenth, and delays half of them, so that they are
// overtaken.
func lossy(p *proxy, b []byte) {
	for range 1 + max(0, 1-p.number(10)) {
		switch {
		case p.chance(20):
		case p.chance(50):
			delay := time.Duration(p.number(3000)) * time.Microsecond
			p.running.Go(func() {
				time.Sleep(delay)
				p.pass(b)
			})
		default:
			p.pass(b)
		}
	}
}

// hostile passes every datagram on among forgeries made of it: truncated, extended, changed, and
// repeated.
func hostile(p *proxy, b []byte) {
	changed := bytes.Clone(b)
	changed[p.number(len(b))] ^= 1 << p.number(8)
	noise := make([]byte, p.number(200))
	for i := range noise {
		noise[i] = byte(p.number(256))
	}
	copy(noise, b[:min(len(b), 16)])
	p.pass(changed)
	p.pass(b[:p.number(len(b))])
	p.pass(noise)
	p.pass(b)
	p.pass(append(bytes.Clone(b), 0))
	p.pass(b)
}
