package reliable

import (
	"fmt"
	"time"

	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// Arrive takes a datagram, which may be anything that was parsed. It returns an error for one that
// is not accepted. A datagram of another connection, and one that has arrived before, change
// nothing. A datagram that violates the protocol ends the connection: without sealing a stranger
// could do that, with sealing only the peer can.
func (n *Conn) Arrive(d *datagram.Datagram, now id.Time) error {
	switch {
	case n.err != nil:
		return n.err
	case !n.bound || d.Connection != n.config.Local || d.Source != uint32(n.config.Peer) || d.Target != uint32(n.config.Self):
		return errForeign
	case !n.replay.enter(d.Number):
		return nil
	}
	if err := n.check(d); err != nil {
		n.err = err
		return err
	}
	n.heard = now
	if d.Flags&datagram.FlagEnd != 0 {
		n.err = ErrEnded
		return n.err
	}
	n.answer(d, now)
	if len(d.Units) == 0 && d.Flags&datagram.FlagAsk == 0 {
		return nil
	}
	if d.Number > n.echo {
		n.echo, n.echoAt = d.Number, now
	}
	return n.receive(d, now)
}

// check checks everything in a datagram that can be checked before it takes effect.
func (n *Conn) check(d *datagram.Datagram) error {
	for class := range n.out {
		if !n.out[class].valid(&d.Acks[class]) {
			return fmt.Errorf("%w: units of class %d acknowledged that were not sent", ErrProtocol, class)
		}
	}
	if d.Echo > n.number {
		return fmt.Errorf("%w: answer to datagram %d, which was not sent", ErrProtocol, d.Echo)
	}
	for i := range d.Units {
		if err := n.in[d.Units[i].Class].check(&d.Units[i]); err != nil {
			return err
		}
	}
	return nil
}

// answer takes the peer's state of both classes, and its echo.
func (n *Conn) answer(d *datagram.Datagram, now id.Time) {
	arrived, progress := 0, false
	for class := range n.out {
		bytes, more := n.out[class].acknowledge(&d.Acks[class])
		arrived += bytes
		progress = progress || more
	}
	if arrived > 0 {
		n.congestion.acknowledged(arrived)
	}
	if progress {
		n.backoff, n.probes = 0, 0
		n.asked = now
	}
	if d.Echo > n.answered {
		n.answered = d.Echo
		if at, ok := n.times.find(d.Echo); ok {
			n.rtt.sample(now.Sub(at) - time.Duration(d.Delay)*time.Microsecond)
			n.alive = at // this answer may be late, so the peer need not be alive any more
		}
		n.detectLoss(now)
	}
	n.waiting = n.waiting && n.Outstanding()
}

// receive takes the units of a datagram and decides when it is acknowledged.
func (n *Conn) receive(d *datagram.Datagram, now id.Time) error {
	inOrder := d.Flags&datagram.FlagAsk == 0
	for _, u := range d.Units {
		ok, err := n.in[u.Class].take(u)
		if err != nil {
			n.err = err
			return err
		}
		inOrder = inOrder && ok
	}
	n.unacked++
	switch {
	case !inOrder || n.unacked >= 2:
		n.ackAt = now
	case n.ackAt == Never:
		n.ackAt = now.Add(ackDelay)
	}
	return nil
}
