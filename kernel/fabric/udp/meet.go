package udp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"margay/kernel/fabric"
)

// phase is the meeting that a peer takes part in, at most one at a time.
type phase int

const (
	apart    phase = iota
	asking         // this side asks
	visiting       // the peer asks
)

// The pause between two attempts to meet.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
)

// leastAttempts is how many attempts have failed before frames are given up: a node that was itself
// stopped for longer than Config.Death asks again.
const leastAttempts = 4

// meetTimeout bounds a meeting, and the connection for it. Several attempts fit into Config.Death,
// so a peer, or a host, that stood still for a moment costs no frame.
func (t *Transport) meetTimeout() time.Duration {
	return min(3*time.Second, max(time.Second, t.config.Death/leastAttempts))
}

var (
	errNotNow  = errors.New("the other node is asking for a meeting itself")
	errRestart = errors.New("one of the nodes has started again")
	errChanged = errors.New("the connection has changed during the meeting")
	errBehind  = errors.New("the ends of earlier connections are not handled yet")
)

// connect begins to ask for a meeting, unless this side does already. The caller holds the lock.
func (p *peer) connect() {
	if !p.connecting && !p.closed {
		p.connecting = true
		p.transport.running.Go(p.ask)
	}
}

// ask asks for a meeting until there was one, the peer has answered in another way, or the frames
// for it have waited for too long.
func (p *peer) ask() {
	deadline := time.Now().Add(p.transport.config.Death)
	retry := firstRetry
	for attempts := 1; ; attempts++ {
		err := p.askOnce()
		if p.done(err, attempts >= leastAttempts && time.Now().After(deadline)) {
			return
		}
		select {
		case <-time.After(retry):
		case <-p.transport.context.Done():
			return
		}
		retry = min(2*retry, lastRetry)
	}
}

// done reports whether asking has an end. Frames that have waited for too long are discarded; those
// for a peer that is bound are so when its connection ends.
func (p *peer) done(err error, late bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.session
	done := p.closed || s == nil || !s.conn.Outstanding() || s.bound != 0 && (err == nil || !p.silent(p.transport.now()))
	if !done && s.bound == 0 && late && err != nil {
		p.end(fmt.Errorf("meet: %w", err))
		done = true
	}
	if done {
		p.connecting = false
		p.checked = p.transport.now()
	}
	return done
}

// askOnce opens a stream to the peer and holds the asking side of a meeting, unless there is no
// need any more.
func (p *peer) askOnce() error {
	if need, err := p.approach(); !need {
		return err
	}
	defer p.part(nil)
	ctx, cancel := context.WithTimeout(p.transport.context, p.transport.meetTimeout())
	defer cancel()
	c, err := p.transport.streams.Stream(ctx, p.node, Service)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()

	p.mu.Lock()
	own, mine := p.current().identity, p.state()
	p.mu.Unlock()
	if err := p.say(c, hello{step: question, incarnation: mine.own, bound: mine.bound}); err != nil {
		return err
	}
	theirs, err := p.listen(c, answer, renewal)
	if err != nil {
		return err
	}
	if theirs.step == renewal && mine.bound != 0 {
		own = newIdentity()
	}
	if err := p.say(c, own.hello(agreement)); err != nil {
		return err
	}
	if _, err := p.listen(c, confirmation); err != nil {
		return err
	}
	return p.bind(mine, own, &theirs, c)
}

// welcome holds the answering side of a meeting.
func (p *peer) welcome(c net.Conn) error {
	c.SetDeadline(time.Now().Add(p.transport.meetTimeout()))
	q, err := p.listen(c, question)
	if err != nil {
		return err
	}
	if !p.admit(c) {
		return p.say(c, hello{step: refusal, incarnation: 1})
	}
	defer p.part(c)
	p.mu.Lock()
	own, mine := p.current().identity, p.state()
	p.mu.Unlock()
	a := answer
	if !compatible(mine, state{q.incarnation, q.bound}) {
		if a = renewal; mine.bound != 0 {
			own = newIdentity()
		}
	}
	if err := p.say(c, own.hello(a)); err != nil {
		return err
	}
	theirs, err := p.listen(c, agreement)
	if err != nil {
		return err
	}
	if err := p.bind(mine, own, &theirs, c); err != nil {
		return err
	}
	return p.say(c, own.hello(confirmation))
}

// approach waits until this side may ask. It reports false if it need not, because the peer has
// asked in the meantime, or must not.
func (p *peer) approach() (need bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.phase != apart && !p.closed {
		p.changed.Wait()
	}
	s := p.session
	switch {
	case p.closed || s != nil && s.bound != 0 && !p.silent(p.transport.now()):
		return false, nil
	case len(p.ended) >= endings:
		return false, errBehind
	}
	p.phase = asking
	return true, nil
}

// admit waits until the peer may ask. It reports false if this side asks and counts, and if the
// handler has not taken the ends of earlier incarnations. A peer that asks again has given up what
// it asked before.
func (p *peer) admit(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.phase != apart && !p.closed {
		if p.phase == asking && p.transport.config.Self < p.node {
			return false
		}
		if p.phase == visiting {
			p.visit.Close()
		}
		p.changed.Wait()
	}
	if p.closed || len(p.ended) >= endings {
		return false
	}
	p.phase, p.visit = visiting, c
	return true
}

// part ends a meeting.
func (p *peer) part(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.visit == c {
		p.visit = nil
	}
	p.phase = apart
	p.changed.Broadcast()
}

// bind binds this side to the peer's incarnation, with the identity that the peer was sent. mine is
// the state in which the meeting began.
func (p *peer) bind(mine state, own identity, theirs *hello, c net.Conn) error {
	remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	renewed := own.incarnation != mine.own
	switch {
	case p.closed:
		return fabric.ErrClosed
	case p.state() != mine:
		return errChanged
	case !renewed && mine.bound == theirs.incarnation:
		return nil
	case !renewed && mine.bound != 0:
		return fmt.Errorf("node%d goes on with an incarnation that it did not have", p.node)
	case renewed:
		if err := p.renew(own); err != nil {
			return err
		}
	}
	s := p.session
	s.bound = theirs.incarnation
	s.to = netip.AddrPortFrom(remote.Addr().Unmap(), theirs.port)
	if s.seal != nil {
		s.open = newKeys(theirs.key)
	}
	s.conn.Bind(theirs.connection, p.transport.now())
	p.flush()
	return nil
}

// say sends a hello.
func (p *peer) say(c net.Conn, h hello) error {
	h.port, h.sealed = p.transport.port, !p.transport.config.Trusted
	_, err := c.Write(h.encode())
	return err
}

// listen receives a hello of one of these steps.
func (p *peer) listen(c net.Conn, steps ...step) (h hello, err error) {
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(c, b); err != nil {
		return h, fmt.Errorf("the meeting has ended early, or the node does not use datagrams: %w", err)
	}
	if err := h.decode(b); err != nil {
		return h, err
	}
	switch {
	case h.step == refusal:
		return h, errNotNow
	case !slices.Contains(steps, h.step):
		return h, fmt.Errorf("%w: step %d at the wrong time", errHello, h.step)
	case h.sealed == p.transport.config.Trusted:
		return h, fmt.Errorf("of this node and node%d only one trusts the wire: configure both alike", p.node)
	}
	return h, nil
}
