// Package udp is the fabric over UDP: frames travel in the datagrams of package reliable, and
// another transport carries the streams. A frame is lost only if the peer dies or starts again
// while the frame is on its way, which is reported to the handler (Broken). A broken TCP
// connection, a lost datagram, a change of order and a partition shorter than Config.Death lose
// nothing.
//
// # Meeting
//
// Before two nodes exchange frames they meet over a stream, which is authenticated and encrypted:
// one asks with its incarnation and the incarnation of the other that it is bound to, the other
// answers with its own, and they exchange ports, numbers of the connection and keys (type hello).
// If each is bound to the other's incarnation or to none, they go on with what they have, so a
// meeting can be repeated at any time and does no harm. Otherwise one of them has started again:
// each side that is bound to an incarnation that is gone reports Broken and begins again with a new
// one. The answering side changes when it receives the agreement, the asking side when that is
// confirmed; whatever an aborted meeting leaves, the next one mends. If both ask at the same
// moment, the one with the lower number counts, and the other one is refused.
//
// A node asks when it has a frame for a peer that it is not bound to, and when a peer has been
// silent for an eighth of Config.Death although something is outstanding, to find out whether the
// peer has started again. It asks earlier, after a hundredth, when it has sent nothing because it
// doubts that the peer is still the same (package reliable). Frames that were never sent as a whole
// go to the next incarnation of the peer, so an idle peer that was killed costs no frame.
//
// # Protection
//
// Each endpoint seals its datagrams with AES-GCM under its own key, unless the wire is trusted
// (Config.Trusted). Everything that does not authenticate is dropped before it is parsed. A
// repeated datagram is recognised by its number (package reliable). Without sealing, strangers on
// the wire can end a connection, and insert and read frames; strangers elsewhere must guess the 32
// bits of the connection's number and use the peer's address and port.
//
// Locks, outermost first: peer.mu, Transport.mu. The handler is called with none of them held.
package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/gate"
)

// Service is the service of the streams over which nodes meet.
const Service = "datagrams"

// Config is what a transport needs.
type Config struct {
	Self id.Node
	// Streams makes the transport that carries streams. It authenticates the nodes that it
	// connects, and passes the streams that arrive to the handler. The transport made here closes
	// it.
	Streams func(fabric.Handler) fabric.Transport
	// Port is the UDP port that other nodes send to, if it is not the socket's own; 0: it is.
	Port uint16
	// Datagram is the largest datagram in bytes: the MTU less 28 (IPv4) or 48 (IPv6). 0 fits all
	// networks with an MTU of 1500 and most tunnels.
	Datagram int
	// Death is after which silence a peer is dead that owes an answer; 0: 10 s.
	Death   time.Duration
	Trusted bool // the wire is trusted: datagrams are neither encrypted nor authenticated
	Handler fabric.Handler
	Log     func(format string, args ...any)
}

// Transport implements fabric.Transport.
type Transport struct {
	config  Config
	streams fabric.Transport
	socket  *socket
	port    uint16
	log     *gate.Log // of datagrams that are refused
	known   *gate.Log // of actions of authenticated nodes
	start   time.Time
	batches sync.Pool       // of *batch
	context context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu          sync.Mutex
	peers       map[id.Node]*peer
	connections map[uint32]*peer // by the number of the connection that they send to
}

var _ fabric.Transport = (*Transport)(nil)

// New makes a transport that exchanges datagrams through c, which it owns from then on.
func New(c *net.UDPConn, config Config) *Transport {
	if config.Death == 0 {
		config.Death = 10 * time.Second
	}
	config.Datagram = min(max(config.Datagram, datagram.MinDatagram), batchBytes)
	t := &Transport{config: config, socket: newSocket(c), port: config.Port, start: time.Now(),
		log: gate.NewLog(config.Log, 10, 1), known: gate.NewLog(config.Log, 10, 1),
		peers: make(map[id.Node]*peer), connections: make(map[uint32]*peer)}
	if t.port == 0 {
		t.port = c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	}
	t.batches.New = func() any { return &batch{bytes: make([]byte, 0, batchBytes)} }
	t.context, t.cancel = context.WithCancel(context.Background())
	t.streams = config.Streams(visitor{t})
	t.running.Go(t.receive)
	return t
}

// Meet implements fabric.Transport.
func (t *Transport) Meet(node id.Node, address string) {
	t.streams.Meet(node, address)
	p := t.peer(node)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = true
}

// Send implements fabric.Transport.
func (t *Transport) Send(ctx context.Context, to id.Node, class fabric.Class, frame []byte) error {
	if len(frame) > fabric.MaxFrame {
		return fmt.Errorf("fabric: frame of %d bytes, at most %d are allowed", len(frame), fabric.MaxFrame)
	}
	return t.peer(to).send(ctx, class, frame)
}

// Stream implements fabric.Transport.
func (t *Transport) Stream(ctx context.Context, to id.Node, service string) (net.Conn, error) {
	return t.streams.Stream(ctx, to, service)
}

// Close implements fabric.Transport. Peers are notified by one datagram, which may be lost.
func (t *Transport) Close() error {
	t.cancel()
	t.mu.Lock()
	peers := make([]*peer, 0, len(t.peers))
	for _, p := range t.peers {
		peers = append(peers, p)
	}
	t.mu.Unlock()
	for _, p := range peers {
		p.close()
	}
	err := errors.Join(t.streams.Close(), t.socket.conn.Close())
	t.running.Wait()
	t.log.Close()
	t.known.Close()
	return err
}

// now returns the time that the protocol runs on.
func (t *Transport) now() id.Time { return id.Time(time.Since(t.start)) }

func (t *Transport) peer(node id.Node) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[node]
	if p == nil {
		p = newPeer(t, node)
		p.closed = t.context.Err() != nil
		t.peers[node] = p
	}
	return p
}

// route makes datagrams of a connection reach a peer, and stops doing so for another connection. It
// reports false if the connection's number is taken.
func (t *Transport) route(p *peer, connection, instead uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.connections[connection] != nil {
		return false
	}
	if t.connections[instead] == p {
		delete(t.connections, instead)
	}
	t.connections[connection] = p
	return true
}

// receive takes what arrives until the socket is closed.
func (t *Transport) receive() {
	b := make([]byte, 64<<10)
	var d datagram.Datagram
	for {
		n, size, from, err := t.socket.receive(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			t.log.Printf("fabric: receive datagrams: %v", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-t.context.Done():
			}
			continue
		}
		t.arrive(b[:n], size, from, &d)
	}
}

// arrive takes datagrams of one source, and answers when it has taken them all.
func (t *Transport) arrive(b []byte, size int, from netip.AddrPort, d *datagram.Datagram) {
	var last *peer
	for len(b) > 0 {
		one := b[:min(size, len(b))]
		b = b[len(one):]
		p := t.find(one)
		if p == nil {
			t.log.Printf("fabric: %d bytes from %s are not a datagram of a connection of this node", len(one), from)
			continue
		}
		if last != p && last != nil {
			last.answer()
		}
		last = p
		if err := p.arrive(one, from, d); err != nil {
			t.log.Printf("fabric: datagram from %s for the connection with node%d: %v", from, p.node, err)
		}
	}
	if last != nil {
		last.answer()
	}
}

// find returns the peer whose connection a datagram claims to belong to.
func (t *Transport) find(b []byte) *peer {
	connection, ok := datagram.Connection(b)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.connections[connection]
}

// visitor is the handler of the transport for streams.
type visitor struct{ *Transport }

// Frame implements fabric.Handler. A node that sends its frames over the streams' transport is
// configured differently.
func (v visitor) Frame(from id.Node, frame []byte) {
	v.known.Printf("fabric: node%d sends frames over TCP, and this node expects datagrams: select one transport for all nodes", from)
}

// Broken implements fabric.Handler.
func (v visitor) Broken(id.Node, error) {}

// Stream implements fabric.Handler.
func (v visitor) Stream(from id.Node, service string, c net.Conn) {
	if service != Service {
		v.config.Handler.Stream(from, service, c)
		return
	}
	defer c.Close()
	if err := v.peer(from).welcome(c); err != nil && v.context.Err() == nil {
		v.known.Printf("fabric: meet node%d: %v", from, err)
	}
}
