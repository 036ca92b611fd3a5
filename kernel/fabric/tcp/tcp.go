// Package tcp is the fabric over TLS and TCP: one connection for the frames of each pair of nodes,
// opened on first use, and one for each stream.
//
// Opening: the node that connects sends a line "margay VERSION KIND SERVICE\n" through TLS, where
// KIND is frames or stream. A stream follows at once. For frames the accepting node answers one
// byte, 'y' or 'n'. 'n' says that it is connecting in the other direction at this moment and that
// its own connection counts, which is so when its number is the lower one. To 'y' the connecting
// node answers 'y' if it still has no connection, and hangs up otherwise. That is how both settle
// on one connection when both begin at the same moment. Then both send frames, each a 4-byte
// big-endian length and that many bytes.
//
// Locks, outermost first: peer.serving (held while the handler is called for a node, which may
// send), Transport.mu, peer.mu.
package tcp

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/gate"
)

// version is the version of the opening and of the framing.
const version = "1"

// openTimeout bounds the opening of a connection, handshake included. A context bounds the
// handshake of a stream.
const openTimeout = 10 * time.Second

// How many connections may not have shown a node's certificate yet: in all, and from one address.
const (
	strangers     = 1024
	strangersEach = 16
)

// opensEach is how many streams one node may have open here, connections that are being opened
// among them. It needs one for each job that it passes files of.
const opensEach = 128

// Config is what a transport needs.
type Config struct {
	Self    id.Node
	Accept  *tls.Config // as the side that is connected to; must demand the peer's certificate
	Connect *tls.Config // as the side that connects
	// Peer reads a node's number from the certificate it has shown.
	Peer func(tls.ConnectionState) (id.Node, error)
	// Reach, if it is not nil, is called with the IP address of the other side before a connection
	// is opened, and when one is accepted.
	Reach   func(netip.Addr)
	Handler fabric.Handler
	Log     func(format string, args ...any)

	Patience time.Duration // how long the opening of a connection that is accepted may take; 0: openTimeout
}

// reach calls Config.Reach.
func (t *Transport) reach(address string) {
	if a, err := netip.ParseAddrPort(address); err == nil && t.config.Reach != nil {
		t.config.Reach(a.Addr().Unmap())
	}
}

// Transport implements fabric.Transport.
type Transport struct {
	config   Config
	listener net.Listener
	log      *gate.Log       // of what strangers do
	known    *gate.Log       // of what nodes do
	context  context.Context // ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu    sync.Mutex
	peers map[id.Node]*peer
}

var _ fabric.Transport = (*Transport)(nil)

// New makes a transport that accepts connections on l, which it owns from then on.
func New(l net.Listener, c Config) *Transport {
	log := gate.NewLog(c.Log, 10, 1)
	l = gate.New(gate.Config{Most: strangers, MostEach: strangersEach, Wait: 2 * cmp.Or(c.Patience, openTimeout), Log: log}).Listener(l)
	t := &Transport{config: c, listener: l, log: log, known: gate.NewLog(c.Log, 10, 1), peers: make(map[id.Node]*peer)}
	t.context, t.cancel = context.WithCancel(context.Background())
	t.running.Go(t.accept)
	return t
}

// Meet implements fabric.Transport.
func (t *Transport) Meet(node id.Node, address string) {
	p := t.peer(node)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.address = address
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
	conn, err := t.open(ctx, t.peer(to), "stream", service)
	if err != nil {
		return nil, fmt.Errorf("fabric: stream %s to node%d: %w", service, to, err)
	}
	return conn, nil
}

// Close implements fabric.Transport.
func (t *Transport) Close() error {
	t.cancel()
	err := t.listener.Close()
	t.mu.Lock()
	for _, p := range t.peers {
		p.close()
	}
	t.mu.Unlock()
	t.running.Wait()
	t.log.Close()
	t.known.Close()
	return err
}

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

// open connects to a peer and holds the first half of the opening.
func (t *Transport) open(ctx context.Context, p *peer, kind, service string) (net.Conn, error) {
	p.mu.Lock()
	address, closed := p.address, p.closed
	p.mu.Unlock()
	if closed {
		return nil, fabric.ErrClosed
	}
	if address == "" {
		return nil, fmt.Errorf("%w %d", fabric.ErrUnknownNode, p.node)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(t.context, cancel)
	defer stop()
	t.reach(address)
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, t.config.Connect)
	if err := t.introduce(ctx, conn, p.node, kind, service); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func (t *Transport) introduce(ctx context.Context, conn *tls.Conn, node id.Node, kind, service string) error {
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	got, err := t.config.Peer(conn.ConnectionState())
	if err != nil {
		return err
	}
	if got != node {
		return fmt.Errorf("fabric: %s is node%d, not node%d", conn.RemoteAddr(), got, node)
	}
	conn.SetDeadline(time.Now().Add(openTimeout))
	defer conn.SetDeadline(time.Time{})
	_, err = fmt.Fprintf(conn, "margay %s %s %s\n", version, kind, service)
	return err
}

func (t *Transport) accept() {
	for {
		raw, err := t.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			t.log.Printf("fabric: accept: %v", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-t.context.Done():
				return
			}
			continue
		}
		t.running.Go(func() {
			t.reach(raw.RemoteAddr().String())
			if err := t.welcome(tls.Server(raw, t.config.Accept)); err != nil && t.context.Err() == nil {
				log := t.known
				if !gate.Admitted(raw) {
					log = t.log
				}
				log.Printf("fabric: connection from %s: %v", raw.RemoteAddr(), err)
			}
		})
	}
}

// patience returns how long the opening of an accepted connection may take.
func (t *Transport) patience() time.Duration { return cmp.Or(t.config.Patience, openTimeout) }

// welcome holds the accepting side of an opening and hands the connection on.
func (t *Transport) welcome(conn *tls.Conn) error {
	stop := context.AfterFunc(t.context, func() { conn.NetConn().Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(t.patience()))
	if err := conn.Handshake(); err != nil {
		conn.Close()
		return err
	}
	node, err := t.config.Peer(conn.ConnectionState())
	if err != nil {
		conn.Close()
		return err
	}
	p := t.peer(node)
	if !p.enter() {
		conn.Close()
		return fmt.Errorf("node%d has %d connections open already", node, opensEach)
	}
	defer p.leave()
	gate.Admit(conn)
	line, err := readLine(conn)
	if err != nil {
		conn.Close()
		return fmt.Errorf("opening: %w", err)
	}
	words := strings.Split(line, " ")
	if len(words) != 4 || words[0] != "margay" || words[1] != version {
		conn.Close()
		return fmt.Errorf("opening %q is not of version %s: use one node image on all nodes", line, version)
	}
	switch words[2] {
	case "stream":
		conn.SetDeadline(time.Time{})
		t.config.Handler.Stream(node, words[3], conn)
		return nil
	case "frames":
		return p.accept(conn)
	}
	conn.Close()
	return fmt.Errorf("opening %q asks for nothing known", line)
}

// maxLine bounds the opening line, in bytes.
const maxLine = 128

// readLine reads a line byte by byte, since what follows it belongs to someone else.
func readLine(conn net.Conn) (string, error) {
	var line []byte
	var b [1]byte
	for len(line) < maxLine {
		if _, err := conn.Read(b[:]); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
	return "", bufio.ErrTooLong
}
