package reliable

import (
	"fmt"

	"margay/kernel/abi/datagram"
)

// Message is a message that has arrived.
type Message struct {
	Class datagram.Class
	Data  []byte
	units uint64
}

// in is the receiving half of a class.
type in struct {
	window     uint64
	most       int                      // length of the longest message
	next       uint64                   // the unit to be received next
	limit      uint64                   // units below it are accepted; it never falls
	advertised uint64                   // the limit that the peer was last sent
	early      map[uint64]datagram.Unit // units after next; the payloads are copies
	building   []byte                   // the beginning of a message
	whole      int                      // the length of that message
	built      uint64                   // its units that have arrived
	ready      []Message                // messages that are not handed over yet
	held       uint64                   // units of messages that are not consumed
}

// check returns an error for a unit that no peer sends that keeps the rules of the protocol.
func (i *in) check(u *datagram.Unit) error {
	switch {
	case u.Number >= i.limit:
		return fmt.Errorf("%w: unit %d of class %d, with credit up to %d", ErrProtocol, u.Number, u.Class, i.limit)
	case int(u.Message) > i.most:
		return fmt.Errorf("%w: message of %d bytes, at most %d are allowed", ErrProtocol, u.Message, i.most)
	}
	return nil
}

// take takes a unit that check accepts. inOrder says that it was the next one, with no gap behind
// it.
func (i *in) take(u datagram.Unit) (inOrder bool, err error) {
	if u.Number < i.next {
		return false, nil
	}
	if u.Number > i.next {
		if _, ok := i.early[u.Number]; !ok {
			u.Payload = append([]byte(nil), u.Payload...)
			i.early[u.Number] = u
		}
		return false, nil
	}
	inOrder = len(i.early) == 0
	for ok := true; ok; u, ok = i.early[i.next] {
		delete(i.early, u.Number)
		if err := i.append(&u); err != nil {
			return false, err
		}
	}
	i.open()
	return inOrder, nil
}

// append appends the next unit to its message.
func (i *in) append(u *datagram.Unit) error {
	i.next++
	begun := i.built > 0
	if u.First == begun || begun && int(u.Message) != i.whole {
		return fmt.Errorf("%w: unit %d of class %d does not continue its message", ErrProtocol, u.Number, u.Class)
	}
	if u.First {
		i.whole, i.building = int(u.Message), make([]byte, 0, u.Message)
	}
	i.built++
	i.building = append(i.building, u.Payload...)
	if size := len(i.building); size > i.whole || u.Last != (size == i.whole) {
		return fmt.Errorf("%w: unit %d of class %d has the wrong place in its message", ErrProtocol, u.Number, u.Class)
	}
	if u.Last {
		i.ready = append(i.ready, Message{u.Class, i.building, i.built})
		i.held += i.built
		i.building, i.built = nil, 0
	}
	return nil
}

// open raises the limit as far as there is room: a window of units beyond those that wait to be
// consumed. The units of an unfinished message do not count, since it could not become whole
// otherwise.
func (i *in) open() {
	if room := i.next + i.window; room > i.held {
		i.limit = max(i.limit, room-i.held)
	}
}

// stale reports that the peer should be sent the limit: a quarter of the window has become free.
func (i *in) stale() bool { return i.limit-i.advertised >= max(1, i.window/4) }

// ack returns the state of the class as the peer is sent it.
func (i *in) ack() datagram.Ack {
	a := datagram.Ack{Next: i.next, Credit: uint32(i.limit - i.next)}
	for number := range i.early {
		a.Gaps.Set(number - i.next - 1)
	}
	return a
}
