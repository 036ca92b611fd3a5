package mirror

import (
	"time"

	"margay/kernel/abi/trip"
	"margay/kernel/abi/wire"
)

// maxRecord is the size of a record with a message that needs no pieces.
const maxRecord = wire.ChannelHeader + wire.MaxPayload

// Times and bounds of the protocol.
const (
	ackDelay     = 200 * time.Microsecond // an acknowledgement waits that long for data
	ackEach      = 8                      // or for so many datagrams
	firstTimeout = 20 * time.Millisecond  // before a round trip was measured
	leastTimeout = 2 * time.Millisecond
	mostTimeout  = 250 * time.Millisecond
	firstWindow  = 16 // datagrams on their way
	mostWindow   = 128
	equalAcks    = 3 // acknowledgements without progress that show a loss

	few    = 8        // datagrams on their way that give the other rank enough to do
	gather = 32 << 10 // bytes of data that do not wait for more
)

// Peer is the other end, as datagrams to it name it.
type Peer struct {
	Number  uint32
	Key     uint64
	Largest int // bytes of the largest datagram, Least to Most
}

// flight is a datagram with data that is on its way.
type flight struct {
	end    uint64 // position behind its data
	at     time.Duration
	resent bool // some of it was sent before
}

// End is one end of a pair of channels. Times are durations since any moment, always the same. It
// is not safe for concurrent use.
type End struct {
	peer    Peer
	out, in *wire.Channel

	// Of the ring to the other end.
	sent     uint64 // the data before are on their way, or acknowledged
	reach    uint64 // the data before were sent at least once
	acked    uint64
	flights  [mostWindow]flight // a ring
	first    int                // of flights
	flying   int
	window   int           // the most flights at present
	timeouts int           // since a round trip was measured last (RFC 6298, 3 and 5)
	equal    int           // acknowledgements since that have brought nothing
	deadline time.Duration // of the next time-out; 0: there is none
	ask      bool
	trip     trip.Estimate

	// Of the ring from the other end.
	arrived uint64
	told    uint64        // position of the consumer that the other end knows
	owed    int           // datagrams with data that were not acknowledged
	ackAt   time.Duration // the acknowledgement must be sent then
	hurry   bool          // or at once
	rides   bool          // the last ones have travelled with data
}

// NewEnd returns the end that sends out of the ring of out and fills the ring of in. It goes on
// from the words in them.
func NewEnd(out, in *wire.Channel, peer Peer) *End {
	e := &End{peer: peer, out: out, in: in, window: firstWindow}
	e.acked = out.Acked().Load() &^ 7 // a node kernel reads the words from a rank
	e.sent, e.reach = e.acked, max(e.acked, e.position())
	e.arrived = in.Arrived().Load() &^ 7
	e.told = in.Taken().Load()
	if e.arrived != in.Acknowledged().Load() {
		e.hurry = true
	}
	return e
}

// position is the producer's.
func (e *End) position() uint64 {
	p := e.out.Position().Load()
	if p%8 != 0 || p < e.acked || p-e.acked > wire.ChannelRing {
		return e.acked
	}
	return p
}

// Quiet reports whether all that was written has arrived at the other end.
func (e *End) Quiet() bool { return e.position() == e.acked }

// Reached reports whether all before a position of the ring to the other end has arrived there.
func (e *End) Reached(position uint64) bool { return e.acked >= position }

// Busy reports whether Emit may return something, now or when time has passed.
func (e *End) Busy() bool {
	return e.hurry || e.owed > 0 || e.out.Position().Load() != e.acked || e.creditDue() || e.blocked()
}

// Hurry makes an acknowledgement that waits due.
func (e *End) Hurry() { e.hurry = e.hurry || e.owed > 0 }

// Rest makes an acknowledgement that waits due before the rank sleeps, unless the last ones have
// travelled with data: then the next one probably will, too, and the rank must wake for Due.
func (e *End) Rest() { e.hurry = e.hurry || e.owed > 0 && !e.rides }

// Ask makes the other end answer at once.
func (e *End) Ask() { e.ask = true }

// Flood lets Emit send all that was written. A node kernel needs it: acknowledgements go to the
// rank.
func (e *End) Flood() { e.window = wire.ChannelRing }

func (e *End) creditDue() bool { return e.in.Taken().Load()-e.told >= wire.ChannelRing/4 }

// blocked reports whether the producer waits for room, which an acknowledgement may bring that was
// lost.
func (e *End) blocked() bool { return e.out.Blocked().Load() != 0 }

// Gathers reports whether new data may wait for more of them, which the program probably writes
// next: the other rank has enough to do. The caller then calls Emit when the program polls or
// waits.
func (e *End) Gathers() bool {
	position := e.position()
	return position-e.sent < gather && (e.flying >= few || position-e.out.Taken().Load() >= wire.ChannelRing/2)
}

// Late reports whether an acknowledgement should have left. A rank whose handlers take long should
// look at times, and call Emit, or the other one sends all again.
func (e *End) Late(now time.Duration) bool { return e.owed > 0 && now >= e.ackAt }

// Emit appends the next datagram that is due to b, or nothing.
func (e *End) Emit(b []byte, now time.Duration) []byte {
	position := e.position()
	e.look(now, position)
	switch {
	case e.sent < position && e.flying < e.window:
		at := int(e.sent % wire.ChannelRing)
		n := e.cut(at, int(position-e.sent))
		e.rides = now < e.ackAt
		b = e.begin(b)
		b = append(b, e.out.Ring()[at:at+n]...)
		e.fly(n, now)
	case e.ask || e.hurry || e.creditDue() || e.Late(now):
		e.rides = e.rides && now < e.ackAt
		b = e.begin(b)
	}
	return b
}

// look handles a time-out.
func (e *End) look(now time.Duration, position uint64) {
	switch {
	case position == e.acked && !e.blocked():
		e.deadline = 0
	case e.deadline == 0:
		e.deadline = now + e.timeout()
	case now >= e.deadline:
		e.timeouts++
		if e.acked < e.sent {
			e.back()
		} else {
			e.ask = true
		}
		e.deadline = now + e.timeout()
	}
}

// Due returns when Emit must be called, for a rank that sleeps, too, if nothing arrives and nothing
// is written before; 0: never. Emit must have returned nothing.
func (e *End) Due() time.Duration {
	if e.owed > 0 && (e.deadline == 0 || e.ackAt < e.deadline) {
		return e.ackAt
	}
	return e.deadline
}

// back sends again from the acknowledged position.
func (e *End) back() {
	e.sent, e.flying = e.acked, 0
	e.window = max(e.window/2, 1)
}

// cut returns how many bytes of at most n go into a datagram, from a place in the ring: whole
// records, unless the producer has written nonsense.
func (e *End) cut(at, n int) int {
	most := (e.peer.Largest - HeaderSize) &^ 7
	if n = min(n, wire.ChannelRing-at); n <= most {
		return n
	}
	whole := 0
	for {
		length := e.out.Length(at + whole)
		if whole+length > most {
			break
		}
		whole += length
	}
	if whole == 0 {
		return most
	}
	return whole
}

// begin appends a header.
func (e *End) begin(b []byte) []byte {
	e.told = e.in.Taken().Load()
	e.in.Acknowledged().Store(e.arrived)
	h := Header{Number: e.peer.Number, Key: e.peer.Key, Ask: e.ask, Offset: e.sent, Arrived: e.arrived, Taken: e.told}
	e.owed, e.hurry, e.ask = 0, false, false
	return h.append(b)
}

// fly notes that n bytes are on their way.
func (e *End) fly(n int, now time.Duration) {
	resent := e.sent < e.reach
	e.sent += uint64(n)
	e.reach = max(e.reach, e.sent)
	e.flights[(e.first+e.flying)%mostWindow] = flight{e.sent, now, resent}
	e.flying++
}

// Arrive takes a datagram of the other end.
func (e *End) Arrive(h *Header, data []byte, now time.Duration) {
	e.acknowledge(h, len(data) > 0, now)
	e.hurry = e.hurry || h.Ask
	if len(data) > 0 {
		e.take(h.Offset, data, now)
	}
}

// take takes data.
func (e *End) take(offset uint64, data []byte, now time.Duration) {
	if e.owed++; e.owed == 1 {
		e.ackAt = now + ackDelay
	}
	if offset%8 != 0 || offset > e.arrived || e.arrived-offset >= uint64(len(data)) {
		e.hurry = true // behind a gap, or a duplicate
		return
	}
	data = data[e.arrived-offset:]
	end := e.arrived + uint64(len(data))
	if room := e.in.Taken().Load() + wire.ChannelRing; end+8 > room || e.arrived%wire.ChannelRing+uint64(len(data)) > wire.ChannelRing {
		return // the other end breaks the rules
	}
	e.in.Fill(e.arrived, data)
	e.arrived = end
	e.in.Arrived().Store(end)
	e.hurry = e.hurry || e.owed >= ackEach
}

// acknowledge takes what a datagram says about the ring to the other end.
func (e *End) acknowledge(h *Header, data bool, now time.Duration) {
	switch {
	case h.Arrived < e.acked || h.Arrived > e.position() || h.Arrived%8 != 0:
		return // late, or nonsense; the node kernel may have sent more than this End
	case h.Arrived > e.acked:
		e.progress(h.Arrived, now)
	case !data && e.acked < e.sent:
		if e.equal++; e.equal == equalAcks {
			e.back()
		}
	}
	if h.Taken <= e.acked && h.Taken > e.out.Taken().Load() {
		e.out.Taken().Store(h.Taken)
		e.out.Blocked().Store(0)
	}
}

// progress notes that the other end has the bytes before a position.
func (e *End) progress(arrived uint64, now time.Duration) {
	begin := e.acked // of the first flight
	for e.flying > 0 && e.flights[e.first].end <= arrived {
		if f := &e.flights[e.first]; !f.resent {
			e.trip.Sample(now - f.at)
			e.timeouts = 0
		}
		begin = e.flights[e.first].end
		e.first = (e.first + 1) % mostWindow
		e.flying--
		e.window = min(e.window+1, mostWindow)
	}
	e.acked, e.sent, e.reach = arrived, max(e.sent, arrived), max(e.reach, arrived)
	if e.flying > 0 && arrived > begin { // it was cut on its way
		e.back()
	}
	e.out.Acked().Store(arrived)
	e.equal, e.deadline = 0, 0
	if e.acked < e.sent {
		e.deadline = now + e.timeout()
	}
}

// bounds bound the retransmission time-out.
var bounds = trip.Bounds{First: firstTimeout, Least: leastTimeout, Most: mostTimeout, Delay: ackDelay}

// timeout is the retransmission time-out.
func (e *End) timeout() time.Duration { return e.trip.Timeout(bounds, e.timeouts) }
