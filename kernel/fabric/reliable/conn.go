// Package reliable is the protocol that makes messages between two endpoints reliable over a
// network that loses, repeats, reorders and delays datagrams (kernel/abi/datagram has their
// layout). It is a state machine of one endpoint: time and datagrams are passed in, datagrams,
// messages, the next deadline and the peer's death are passed out. It has no goroutine, no lock and
// no clock, so tests explore it and a simulator can run it.
//
// # Order
//
// Each message has a class. Messages of a class are delivered exactly once and in the order of
// sending; classes are independent, and wherever both wait, the system class goes first. The units
// of a class are numbered. A receiver drops a unit that it has before anything else depends on it.
//
// # Acknowledgement and loss
//
// Each datagram carries, for each class, the next unit that its source waits for and a bitmap of
// later ones that have arrived (like RFC 2018), and the number of the latest datagram that asked
// for an answer, with the time since its arrival. The latter gives round trips that are not
// ambiguous after a retransmission (the problem of RFC 6298, 3), and shows which datagrams should
// have arrived: a unit counts as lost when a datagram that was sent three later, or a round trip
// later, has arrived before it (RFC 9002, 6.1). When nothing at all is answered, the oldest units
// are sent again after a time-out (RFC 6298; RFC 9002, 6.2), which doubles each time, up to 250 ms.
// An acknowledgement travels with the next datagram, alone after a millisecond, and at once for
// each second datagram, for a gap, or on request (RFC 9000, 13.2).
//
// # Bounds
//
// A receiver grants credit: units that it has room for. A unit counts until its message is
// consumed, so a slow consumer stops the sender and never loses a message. Units in flight and
// units that arrive early are bounded by datagram.Window, messages that wait to be consumed by the
// window and one message. The sender's queue is the caller's to bound (Queued). Bytes in flight
// follow the network (congestion control, RFC 9002, 7).
//
// # Death
//
// While a message has not been acknowledged, the endpoint sends at least one datagram in 250 ms,
// and a peer that sends none for Config.Death is dead. An idle endpoint sends nothing and notices
// nothing.
//
// # Doubt
//
// A peer may have been killed and started again, unnoticed while nothing is sent. So an endpoint
// sends a message for the first time only if the peer has answered a datagram that was sent after
// the message was queued, or in the last 10 ms. Otherwise it asks first. What was never sent as a
// whole cannot have arrived: another endpoint can send it to the next incarnation (Unsent).
//
// # Incarnations
//
// An endpoint lives as long as both sides keep their state. Both choose a number of the connection,
// which every datagram to them bears, and must not choose one again: so a datagram of an earlier
// incarnation is never accepted. How two endpoints agree on these numbers, and notice that one of
// them has started again, is the transport's matter.
package reliable

import (
	"errors"
	"fmt"
	"time"

	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// The ways in which a connection ends.
var (
	ErrDead     = errors.New("reliable: the peer does not answer")
	ErrEnded    = errors.New("reliable: the peer has closed the connection")
	ErrProtocol = errors.New("reliable: the peer violates the protocol")
)

// errForeign reports a datagram of another pair of endpoints or another incarnation.
var errForeign = errors.New("reliable: datagram of another connection")

// Never is the deadline of an endpoint that waits for nothing.
const Never = ^id.Time(0)

// Config describes an endpoint. The zero values of Window, Longest, Datagram and Death select the
// largest window, the longest message of the layout, the smallest datagram, and 10 s.
type Config struct {
	Self, Peer id.Node
	Local      uint32 // connection number of datagrams to this endpoint
	Datagram   int    // largest datagram to be sent in bytes, datagram.MinDatagram or more, with room for sealing
	Window     int    // units of each class that this endpoint grants, 1..datagram.Window
	Longest    int    // longest message that it accepts, bytes
	Death      time.Duration
	// Begin has the number of the first unit of each class in both directions: zero, unless both
	// endpoints continue the messages of earlier ones, at the beginning of a message.
	Begin [datagram.Classes]Position
}

// Position is how far a class has come.
type Position struct{ Send, Receive uint64 }

// Conn is one endpoint. It is not safe for concurrent use.
type Conn struct {
	config Config
	bound  bool
	remote uint32 // connection number of datagrams to the peer
	out    [datagram.Classes]out
	in     [datagram.Classes]in
	err    error // the end of the connection
	ended  bool  // End was called: one more datagram says so

	number     uint64 // of the datagram sent last
	times      sendTimes
	rtt        rtt
	congestion congestion
	answered   uint64  // the largest echo
	lossAt     id.Time // when detectLoss finds more
	asked      id.Time // when a datagram that asks for an answer was sent last
	backoff    int     // time-outs since the last progress
	probes     int     // datagrams that may be sent beyond the congestion window
	askAgain   bool    // a datagram without units must ask for the peer's state
	since      id.Time // since when something is outstanding
	waiting    bool    // something is outstanding
	probed     id.Time // when a datagram that asks for an answer was sent
	alive      id.Time // when the latest one of these that was answered was sent: the peer lived then

	replay  replay
	heard   id.Time // when a datagram arrived last
	echo    uint64  // largest number of a datagram that asked for an answer
	echoAt  id.Time // when it arrived
	unacked int     // datagrams with units since the last acknowledgement
	ackAt   id.Time // when an acknowledgement is due
}

// New makes an endpoint. It sends nothing before Bind.
func New(c Config) *Conn {
	if c.Window == 0 {
		c.Window = datagram.Window
	}
	if c.Longest == 0 {
		c.Longest = datagram.MaxMessage
	}
	if c.Death == 0 {
		c.Death = 10 * time.Second
	}
	c.Datagram = min(max(c.Datagram, datagram.MinDatagram), datagram.MaxSize)
	n := &Conn{config: c, congestion: newCongestion(c.Datagram), lossAt: Never, ackAt: Never}
	for class := range datagram.Classes {
		b := c.Begin[class]
		n.out[class] = out{class: datagram.Class(class), next: b.Send, limit: b.Send}
		n.in[class] = in{window: uint64(c.Window), most: c.Longest, next: b.Receive, limit: b.Receive + uint64(c.Window),
			early: make(map[uint64]datagram.Unit)}
	}
	return n
}

// Bind sets the number that the peer has chosen for the connection. Before it, the endpoint accepts
// no datagrams.
func (n *Conn) Bind(remote uint32, now id.Time) {
	n.bound, n.remote = true, remote
	n.since, n.heard, n.alive = now, now, now
	n.askAgain = true // the peer's credit is not known
}

// Send queues a message, which is the endpoint's from then on: at most datagram.MaxMessage bytes.
func (n *Conn) Send(class datagram.Class, message []byte, now id.Time) error {
	switch {
	case n.err != nil:
		return n.err
	case len(message) > datagram.MaxMessage:
		return fmt.Errorf("reliable: message of %d bytes, at most %d are allowed", len(message), datagram.MaxMessage)
	}
	n.out[class].push(message, now)
	n.wait(now)
	return nil
}

// wait notes that something is outstanding.
func (n *Conn) wait(now id.Time) {
	if !n.waiting && n.Outstanding() {
		n.waiting, n.since, n.asked = true, now, now
	}
}

// certainty is how long a peer counts as alive. A node kernel needs longer to start again and to be
// given a job, so a job that begins afterwards loses nothing.
const certainty = 10 * time.Millisecond

// trusted returns up to when messages must have been queued to be sent now.
func (n *Conn) trusted(now id.Time) id.Time {
	if now <= n.alive.Add(certainty) {
		return now
	}
	return n.alive
}

// Doubts reports whether the endpoint waits for an answer of the peer before it sends a message for
// the first time.
func (n *Conn) Doubts(now id.Time) bool {
	return n.bound && n.queued() > n.trusted(now)
}

// queued returns when the next message of the class that waits for less time was queued; 0: none
// waits.
func (n *Conn) queued() (at id.Time) {
	for class := range n.out {
		if q := n.out[class].queue; len(q) > 0 {
			at = max(at, q[0].at)
		}
	}
	return at
}

// Unsent returns the messages of a class that were never sent as a whole, in order. The peer cannot
// have delivered them.
func (n *Conn) Unsent(class datagram.Class) (messages [][]byte) {
	for _, q := range n.out[class].queue {
		messages = append(messages, q.message)
	}
	return messages
}

// Queued returns the bytes of a class that have not been sent once.
func (n *Conn) Queued(class datagram.Class) int { return n.out[class].queued }

// Outstanding reports whether a message has not been acknowledged as a whole.
func (n *Conn) Outstanding() bool {
	return !n.out[datagram.User].idle() || !n.out[datagram.System].idle()
}

// Silence returns for how long the peer has not answered although something is outstanding.
func (n *Conn) Silence(now id.Time) time.Duration {
	if begin := max(n.heard, n.since); n.bound && n.Outstanding() && now > begin {
		return now.Sub(begin)
	}
	return 0
}

// Err returns the reason why the connection has ended, or nil.
func (n *Conn) Err() error { return n.err }

// End ends the connection: nothing is sent any more but one datagram that says so, which may be
// lost.
func (n *Conn) End() {
	if n.err == nil {
		n.err, n.ended = ErrEnded, n.bound
	}
}

// Ready reports whether Deliver has a message.
func (n *Conn) Ready() bool {
	return len(n.in[datagram.User].ready)+len(n.in[datagram.System].ready) > 0
}

// Deliver returns the next message, the system class first. It counts against the peer's credit
// until Consumed.
func (n *Conn) Deliver() (m Message, ok bool) {
	for class := datagram.Classes - 1; class >= 0; class-- {
		if ready := n.in[class].ready; len(ready) > 0 {
			m, ready[0] = ready[0], Message{}
			n.in[class].ready = ready[1:]
			return m, true
		}
	}
	return Message{}, false
}

// Consumed returns the credit of a message that Deliver has returned.
func (n *Conn) Consumed(m Message) {
	i := &n.in[m.Class]
	i.held -= m.units
	i.open()
}

// Deadline returns when Emit must be called again, if nothing else happens before; Never if not at
// all.
func (n *Conn) Deadline() id.Time {
	if n.err != nil || !n.bound {
		return Never
	}
	at := min(n.ackAt, n.lossAt)
	if n.Outstanding() {
		at = min(at, n.asked.Add(n.rtt.timeout(n.backoff)))
		if n.backoff >= leastBackoff {
			at = min(at, n.deathAt())
		}
	}
	return at
}
