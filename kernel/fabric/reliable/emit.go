package reliable

import (
	"time"

	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// Emit appends the next datagram that is due to b and returns the result, which has the length of b
// if there is none. A caller calls it until then after each other call, and at the deadline. The
// datagram is not sealed; Config.Datagram leaves room for that.
func (n *Conn) Emit(b []byte, now id.Time) []byte {
	n.tick(now)
	if n.err != nil && !n.ended || !n.bound {
		return b
	}
	d := datagram.Datagram{Source: uint32(n.config.Self), Target: uint32(n.config.Peer), Connection: n.remote, Number: n.number + 1}
	for class := range n.in {
		d.Acks[class] = n.in[class].ack()
		if len(n.in[class].early) > 0 {
			d.Flags |= datagram.FlagUserBitmap << class
		}
	}
	start := len(b)
	b = append(b, make([]byte, datagram.HeaderWith(d.Flags))...)
	b, units := n.addUnits(b, start, now)
	n.askAgain = n.askAgain || n.Doubts(now) && n.probed < n.queued()
	switch {
	case n.ended:
		d.Flags |= datagram.FlagEnd
		n.ended = false
	case units == 0 && n.askAgain:
		d.Flags |= datagram.FlagAsk
	case units == 0 && !n.ackDue(now):
		return b[:start]
	}
	n.number++
	n.fill(&d, now)
	if units > 0 || d.Flags&datagram.FlagAsk != 0 {
		n.times.note(n.number, now)
		n.asked, n.probed, n.askAgain = now, now, false
	}
	d.Put(b[start:], units)
	return b
}

// fill sets the fields by which a datagram answers others, which are answered then.
func (n *Conn) fill(d *datagram.Datagram, now id.Time) {
	if d.Echo = n.echo; d.Echo != 0 {
		d.Delay = uint32(min(now.Sub(n.echoAt)/time.Microsecond, 1<<32-1))
	}
	for class := range n.in {
		n.in[class].advertised = n.in[class].limit
	}
	n.unacked, n.ackAt = 0, Never
}

// addUnits appends the units that may be sent now to a datagram that begins at start.
func (n *Conn) addUnits(b []byte, start int, now id.Time) (_ []byte, units int) {
	if n.err != nil || !n.congestion.open() && n.probes == 0 {
		return b, 0
	}
	for class := datagram.Classes - 1; class >= 0; class-- {
		room := n.config.Datagram - datagram.Overhead - (len(b) - start)
		var added, bytes int
		b, added, bytes = n.out[class].take(b, room, n.number+1, now, n.trusted(now))
		n.congestion.inFlight += bytes
		units += added
	}
	if units > 0 && n.probes > 0 {
		n.probes--
	}
	return b, units
}

func (n *Conn) ackDue(now id.Time) bool {
	return now >= n.ackAt || n.in[datagram.User].stale() || n.in[datagram.System].stale()
}

// tick handles the deadlines that have passed.
func (n *Conn) tick(now id.Time) {
	if n.err != nil || !n.bound {
		return
	}
	if now >= n.lossAt {
		n.detectLoss(now)
	}
	if !n.Outstanding() {
		return
	}
	switch {
	case n.backoff >= leastBackoff && now >= n.deathAt():
		n.err = ErrDead
	case now >= n.asked.Add(n.rtt.timeout(n.backoff)):
		n.timedOut(now)
	}
}

// leastBackoff is how many time-outs in a row a dead peer has left unanswered. An endpoint that was
// itself stopped for longer than Config.Death asks again before it declares its peer dead.
const leastBackoff = 4

// deathAt returns when a peer that owes an answer is dead if it sends nothing.
func (n *Conn) deathAt() id.Time { return max(n.heard, n.since).Add(n.config.Death) }

// timedOut sends the oldest units again. The second time in a row all units count as lost, and the
// congestion window collapses (RFC 9002, 6.2.4 and 7.6). When no unit is in flight, the peer lacks
// room or the datagram that announced it was lost: it is asked (RFC 9293, 3.8.6.1).
func (n *Conn) timedOut(now id.Time) {
	n.backoff++
	n.asked = now
	n.probes = leastWindow
	least := n.config.Datagram
	if n.backoff > 1 {
		least = mostWindow * n.config.Datagram
		n.congestion.collapse(n.number)
	}
	for class := datagram.Classes - 1; class >= 0; class-- {
		o := &n.out[class]
		for i := range o.units {
			if u := &o.units[i]; u.inFlight() && least > 0 {
				least -= u.size()
				n.congestion.inFlight -= u.size()
				o.lose(u)
			}
		}
	}
	n.askAgain = true
}

// packetThreshold is how many datagrams later one must have been sent for its arrival to show a
// loss (RFC 9002, 6.1.1).
const packetThreshold = 3

// detectLoss marks the units as lost that should have arrived before the datagram that was answered
// last.
func (n *Conn) detectLoss(now id.Time) {
	n.lossAt = Never
	delay := n.rtt.lossDelay()
	for class := range n.out {
		o := &n.out[class]
		for i := range o.units {
			u := &o.units[i]
			switch {
			case !u.inFlight() || u.number >= n.answered:
			case u.number+packetThreshold <= n.answered || u.at.Add(delay) <= now:
				n.congestion.lost(u.size(), u.number, n.number)
				o.lose(u)
			default:
				n.lossAt = min(n.lossAt, u.at.Add(delay))
			}
		}
	}
}
