package udp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"margay/internal/cond"
	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/fabric/reliable"
)

// queueBytes is how much may be queued for one node before Send waits.
const queueBytes = 1 << 20

// endings is how many ended incarnations of a peer may wait for the handler.
const endings = 4

// session is an incarnation of the endpoint for one peer, and the peer's one that it is bound to.
type session struct {
	identity
	bound uint64 // the peer's incarnation, 0 while there is none
	conn  *reliable.Conn
	seal  *keys // nil if the wire is trusted
	open  *keys
	to    netip.AddrPort
}

// peer is another node.
type peer struct {
	transport *Transport
	node      id.Node

	mu         sync.Mutex
	changed    sync.Cond
	known      bool // it has an address
	session    *session
	ended      []ending // incarnations whose last messages are not handed over yet
	connecting bool     // ask runs
	phase      phase
	visit      net.Conn // the meeting that the peer has asked for
	delivering bool     // deliver runs
	closed     bool
	timer      *time.Timer
	checked    id.Time // when ask ended last
}

// ending is an incarnation that has ended.
type ending struct {
	conn *reliable.Conn
	err  error
}

// batch is a buffer for datagrams to be sent.
type batch struct {
	bytes []byte
	sizes []int
}

func newPeer(t *Transport, node id.Node) *peer {
	p := &peer{transport: t, node: node}
	p.changed.L = &p.mu
	p.timer = time.AfterFunc(time.Hour, p.answer)
	p.timer.Stop()
	return p
}

// begin begins an incarnation. The caller holds the lock.
func (p *peer) begin(own identity) error {
	var instead uint32
	if p.session != nil {
		instead = p.session.connection
	}
	if !p.transport.route(p, own.connection, instead) {
		return fmt.Errorf("fabric: the connection number %d is in use", own.connection)
	}
	c := p.transport.config
	p.session = &session{identity: own, conn: reliable.New(reliable.Config{Self: c.Self, Peer: p.node, Local: own.connection,
		Datagram: c.Datagram, Longest: fabric.MaxFrame, Death: c.Death})}
	if !c.Trusted {
		p.session.seal = newKeys(own.key)
	}
	return nil
}

// current returns the incarnation, which it begins if there is none. The caller holds the lock.
func (p *peer) current() *session {
	for p.session == nil {
		_ = p.begin(newIdentity()) // a number that is in use is drawn again
	}
	return p.session
}

// state returns what a meeting needs to know. The caller holds the lock.
func (p *peer) state() state {
	s := p.current()
	return state{s.incarnation, s.bound}
}

// end ends the incarnation and reports that to the handler, behind the messages that have arrived.
// Frames that were not sent are lost with it, unless the caller has saved them (renew). The caller
// holds the lock.
func (p *peer) end(err error) {
	p.ended = append(p.ended, ending{p.session.conn, err})
	connection := p.session.connection
	p.session.conn.End()
	p.session = nil
	p.transport.forget(p, connection)
	p.hand()
	p.changed.Broadcast()
}

// forget stops routing datagrams of a connection to a peer.
func (t *Transport) forget(p *peer, connection uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.connections[connection] == p {
		delete(t.connections, connection)
	}
}

func (p *peer) send(ctx context.Context, class fabric.Class, frame []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := cond.Wait(ctx, &p.changed, func() bool {
		return class != fabric.User || p.closed || p.session == nil || p.session.conn.Queued(datagram.User) <= queueBytes
	})
	switch {
	case p.closed:
		return fabric.ErrClosed
	case err != nil:
		return err
	case !p.known && (p.session == nil || p.session.bound == 0):
		return fmt.Errorf("%w %d", fabric.ErrUnknownNode, p.node)
	}
	to := datagram.User
	if class == fabric.System {
		to = datagram.System
	}
	s := p.current()
	if err := s.conn.Send(to, frame, p.transport.now()); err != nil {
		return err
	}
	if s.bound == 0 {
		p.connect()
		return nil
	}
	p.flush()
	return nil
}

// arrive takes one datagram, which may be anything.
func (p *peer) arrive(b []byte, from netip.AddrPort, d *datagram.Datagram) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.session
	if s == nil || s.bound == 0 || p.closed {
		return nil // the end of a connection, or its beginning
	}
	if s.open != nil {
		if b, err = s.open.open(b); err != nil {
			return err
		}
	} else if datagram.Sealed(b) || netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) != s.to {
		return errSeal
	}
	if err := d.Parse(b); err != nil {
		return err
	}
	err = s.conn.Arrive(d, p.transport.now())
	if end := s.conn.Err(); end != nil {
		p.end(end)
		return nil
	}
	return err
}

// renew ends the incarnation because one of the nodes has started again, and begins another, which
// sends the frames that were never sent as a whole. The caller holds the lock.
func (p *peer) renew(own identity) error {
	old := p.session.conn
	p.end(errRestart)
	if err := p.begin(own); err != nil {
		return err
	}
	c, now := p.session.conn, p.transport.now()
	for _, class := range []datagram.Class{datagram.User, datagram.System} {
		for _, frame := range old.Unsent(class) {
			if err := c.Send(class, frame, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// answer sends due datagrams, and hands over messages that have arrived.
func (p *peer) answer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.flush()
		p.hand()
	}
}

// flush sends all datagrams that are due, and sets the timer for the next one. The caller holds the
// lock.
func (p *peer) flush() {
	s := p.session
	if s == nil || s.bound == 0 {
		return
	}
	b := p.transport.batches.Get().(*batch)
	defer p.transport.batches.Put(b)
	now := p.transport.now()
	for s.fill(b, p.transport.config.Datagram, now) {
		p.transport.socket.send(b.bytes, b.sizes, s.to)
	}
	p.changed.Broadcast()
	if err := s.conn.Err(); err != nil {
		p.end(err)
		return
	}
	if p.silent(now) && now.Sub(p.checked) > p.transport.config.Death/8 {
		p.connect()
	}
	if at := s.conn.Deadline(); at != reliable.Never {
		p.timer.Reset(max(at, now).Sub(now))
	}
}

// silent reports whether the peer has been silent for so long that this side asks whether it has
// started again. The caller holds the lock, and there is a session.
func (p *peer) silent(now id.Time) bool {
	patience := p.transport.config.Death / 8
	if p.session.conn.Doubts(now) {
		patience = p.transport.config.Death / 100
	}
	return p.session.conn.Silence(now) > patience
}

// fill fills a batch with datagrams that are due. It reports whether there are any.
func (s *session) fill(b *batch, largest int, now id.Time) bool {
	b.bytes, b.sizes = b.bytes[:0], b.sizes[:0]
	for cap(b.bytes)-len(b.bytes) >= largest && len(b.sizes) < batchDatagrams {
		start := len(b.bytes)
		bytes := s.conn.Emit(b.bytes, now)
		if len(bytes) == start {
			break
		}
		if s.seal != nil {
			var err error
			if bytes, err = s.seal.seal(bytes, start); err != nil {
				break // the numbers are used up; the peer dies of silence
			}
		}
		b.bytes = bytes
		b.sizes = append(b.sizes, len(bytes)-start)
	}
	return len(b.sizes) > 0
}

// hand makes deliver run if there is something for the handler. The caller holds the lock.
func (p *peer) hand() {
	if !p.delivering && !p.closed && (len(p.ended) > 0 || p.session != nil && p.session.conn.Ready()) {
		p.delivering = true
		p.transport.running.Go(p.deliver)
	}
}

// deliver calls the handler until it has everything.
func (p *peer) deliver() {
	for p.deliverOne() {
	}
}

func (p *peer) deliverOne() bool {
	p.mu.Lock()
	if p.closed || len(p.ended) == 0 && (p.session == nil || !p.session.conn.Ready()) {
		p.delivering = false
		p.mu.Unlock()
		return false
	}
	var conn *reliable.Conn
	var err error
	if len(p.ended) > 0 {
		conn, err = p.ended[0].conn, p.ended[0].err
	} else {
		conn = p.session.conn
	}
	m, ok := conn.Deliver()
	if !ok {
		p.ended = p.ended[1:]
	}
	p.mu.Unlock()
	if !ok {
		p.transport.config.Handler.Broken(p.node, fmt.Errorf("fabric: connection with node%d: %w", p.node, err))
		return true
	}
	p.transport.config.Handler.Frame(p.node, m.Data)
	p.mu.Lock()
	defer p.mu.Unlock()
	conn.Consumed(m)
	if !p.closed {
		p.flush()
	}
	return true
}

// close ends the incarnation and everything that waits for the peer.
func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.session; s != nil {
		s.conn.End()
		b := new(batch)
		b.bytes = make([]byte, 0, batchBytes)
		if s.bound != 0 && s.fill(b, p.transport.config.Datagram, p.transport.now()) {
			p.transport.socket.send(b.bytes, b.sizes, s.to)
		}
	}
	p.closed = true
	p.timer.Stop()
	if p.visit != nil {
		p.visit.Close()
	}
	p.changed.Broadcast()
}
