package reliable

import (
	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// outUnit is a unit that has been sent and is not yet below the peer's next one.
type outUnit struct {
	unit   datagram.Unit
	number uint64  // of the datagram that carried it last
	at     id.Time // when that was sent
	acked  bool
	lost   bool // it must be sent again
}

// inFlight reports whether the unit counts against the congestion window.
func (u *outUnit) inFlight() bool { return !u.acked && !u.lost }

// size is what the unit takes in a datagram.
func (u *outUnit) size() int { return datagram.UnitSize(len(u.unit.Payload)) }

// queued is a message and when it was queued.
type queued struct {
	message []byte
	at      id.Time
}

// out is the sending half of a class.
type out struct {
	class  datagram.Class
	next   uint64    // the unit to be sent next for the first time
	limit  uint64    // the peer has room for units below it
	units  []outUnit // [next-len(units), next)
	queue  []queued  // messages that are not sent yet, or not as a whole
	cut    int       // bytes of queue[0] that are sent
	queued int       // bytes of queue that are not sent
	lost   int       // units that must be sent again
}

func (o *out) base() uint64 { return o.next - uint64(len(o.units)) }

// idle reports whether everything has arrived.
func (o *out) idle() bool { return len(o.units) == 0 && len(o.queue) == 0 }

func (o *out) push(message []byte, now id.Time) {
	o.queue = append(o.queue, queued{message, now})
	o.queued += len(message)
}

// ready reports whether there is a unit to be sent for the first time, of a message that was queued
// by a time, and that the peer has room for it.
func (o *out) ready(by id.Time) bool {
	return len(o.queue) > 0 && o.queue[0].at <= by && o.next < o.limit && len(o.units) < datagram.Window
}

// take returns units for the datagram with this number until one does not fit into room bytes.
// Messages that were queued after a time are left out.
func (o *out) take(b []byte, room int, number uint64, now, by id.Time) (_ []byte, units, bytes int) {
	send := func(u *outUnit) bool {
		if u.size() > room-bytes {
			return false
		}
		u.lost, u.number, u.at = false, number, now
		b = datagram.AppendUnit(b, &u.unit)
		units++
		bytes += u.size()
		return true
	}
	for i := 0; i < len(o.units) && o.lost > 0; i++ {
		if u := &o.units[i]; u.lost {
			if !send(u) {
				return b, units, bytes
			}
			o.lost--
		}
	}
	for o.ready(by) {
		u, rest := o.following()
		if !send(&u) {
			break
		}
		o.advance(u, rest)
	}
	return b, units, bytes
}

// following returns the unit to be sent next for the first time, and how much of its message
// follows.
func (o *out) following() (u outUnit, rest int) {
	message := o.queue[0].message
	size := min(len(message)-o.cut, datagram.Fragment)
	rest = len(message) - o.cut - size
	u.unit = datagram.Unit{Number: o.next, Class: o.class, Message: uint32(len(message)), First: o.cut == 0, Last: rest == 0,
		Payload: message[o.cut : o.cut+size]}
	return u, rest
}

func (o *out) advance(u outUnit, rest int) {
	o.units = append(o.units, u)
	o.next++
	o.cut += len(u.unit.Payload)
	o.queued -= len(u.unit.Payload)
	if rest == 0 {
		o.queue[0] = queued{}
		o.queue, o.cut = o.queue[1:], 0
	}
}

// valid reports whether a peer can have this state of the class: it acknowledges no unit that has
// not been sent, and has not lost one that it has acknowledged.
func (o *out) valid(a *datagram.Ack) bool {
	if a.Next > o.next || a.Credit > datagram.Window {
		return false
	}
	if a.Gaps == (datagram.Bitmap{}) {
		return true
	}
	for i := range uint64(datagram.Window) {
		if a.Gaps.Has(i) && a.Next+1+i >= o.next {
			return false
		}
	}
	return true
}

// acknowledge takes the peer's state of the class, which is valid, and returns the bytes in flight
// that have arrived. progress says that the peer has more units, or room for more.
func (o *out) acknowledge(a *datagram.Ack) (bytes int, progress bool) {
	if limit := a.Next + uint64(a.Credit); limit > o.limit {
		o.limit, progress = limit, true
	}
	base := o.base()
	for i := range o.units {
		u, number := &o.units[i], base+uint64(i)
		arrived := number < a.Next || number > a.Next && number-a.Next-1 < datagram.Window && a.Gaps.Has(number-a.Next-1)
		if u.acked || !arrived {
			continue
		}
		if u.lost {
			o.lost--
		} else {
			bytes += u.size()
		}
		u.acked, u.lost, progress = true, false, true
	}
	done := 0
	for done < len(o.units) && o.units[done].acked {
		o.units[done] = outUnit{}
		done++
	}
	o.units = o.units[done:]
	return bytes, progress
}

// lose marks a unit as lost.
func (o *out) lose(u *outUnit) {
	u.lost = true
	o.lost++
}
