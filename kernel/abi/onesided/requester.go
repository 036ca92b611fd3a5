package onesided

import (
	"time"

	"margay/kernel/abi/trip"
	"margay/kernel/abi/wire"
)

// Times and bounds of the protocol.
const (
	firstTimeout = 20 * time.Millisecond // before a round trip was measured
	leastTimeout = 2 * time.Millisecond
	mostTimeout  = 250 * time.Millisecond
	mostTrain    = 60000 // bytes of a train

	patience   = 200 * time.Microsecond // that a rank has to answer before its node kernel is asked
	leastPause = 250 * time.Microsecond // until a rank that has not answered is asked again
	mostPause  = 128 * time.Millisecond
)

// Peer is a window's rank, as datagrams to it and to its node kernel name it.
type Peer struct {
	Pair
	Key     uint64 // of the end of the window's rank
	Largest int    // bytes of the largest datagram
}

// slot is a request that was not answered, or one behind such a request.
type slot struct {
	datagram []byte
	kind     wire.RemoteKind
	length   int // bytes of the answer's data
	answered bool
	resent   bool
	at       time.Duration // when it was sent
}

// Requester asks for operations on the windows of one rank. Times are durations since any moment,
// always the same. It is not safe for concurrent use.
type Requester struct {
	peer   Peer
	piece  int // bytes of data in a datagram
	buffer []byte
	slots  [Outstanding]slot
	train  [][]byte

	first    uint64 // number of the first request that is not answered
	next     uint64 // number of the next request
	sent     uint64 // the requests before were sent
	reach    uint64 // the requests before were sent at least once
	alone    uint64 // number after the last request that was added without polled
	gets     int    // that are not answered
	window   int    // the most requests on their way
	timeouts int    // since the last progress
	back     uint64 // first when requests were sent again because of a gap
	deadline time.Duration
	trip     trip.Estimate

	kernel bool          // requests go to the node kernel
	again  time.Duration // then the rank is asked again
	pause  time.Duration // the last one until then; 0: the rank has answered since
}

// NewRequester returns the requester of a new pair of mirrored channels.
func NewRequester(p Peer) *Requester {
	piece := (min(p.Largest, Most) - AnswerSize) &^ 7
	return &Requester{peer: p, piece: piece, first: 1, next: 1, sent: 1, reach: 1, window: Outstanding}
}

// Piece returns how many bytes of data a request has at most.
func (r *Requester) Piece() int { return r.piece }

// Idle reports whether all requests are answered.
func (r *Requester) Idle() bool { return r.first == r.next }

// Next returns the number of the next request.
func (r *Requester) Next() uint64 { return r.next }

// Answered reports whether all requests before a number are answered.
func (r *Requester) Answered(number uint64) bool { return r.first >= number }

// Room reports whether there is room for a request of a kind: there is none for one that may change
// memory while a get is not answered.
func (r *Requester) Room(kind wire.RemoteKind) bool {
	return r.next-r.first < Outstanding && (kind == wire.RemoteGet || r.gets == 0)
}

// Add adds a request, and returns its number. There must be room for it. It uses Kind, Window,
// Length and Offset of q. The data, of at most Piece bytes, are copied. If polled is set, the rank
// polls until the request is answered, or it has no effect.
func (r *Requester) Add(q Request, data []byte, polled bool) (number uint64) {
	if r.buffer == nil {
		r.buffer = make([]byte, Outstanding*Most)
	}
	q.Pair, q.Key, q.Number = r.peer.Pair, r.peer.Key, r.next
	at := r.next % Outstanding
	b := q.Append(r.buffer[at*Most:][:0:Most])
	s := slot{datagram: append(b, data...), kind: q.Kind}
	switch {
	case q.Kind == wire.RemoteGet:
		s.length = int(q.Length)
		r.gets++
	case q.Kind.Atomic():
		s.length = 8
	}
	r.slots[at] = s
	if r.next++; !polled {
		r.alone = r.next
	}
	return q.Number
}

// ToKernel reports whether the datagrams that Emit has returned go to the node kernel, and not to
// the rank.
func (r *Requester) ToKernel() bool { return r.kernel }

// Emit returns the datagrams that are due: of one length, but the last may be shorter. They are
// valid until the next call of Add or Emit.
func (r *Requester) Emit(now time.Duration) [][]byte {
	r.look(now)
	r.train = r.train[:0]
	size, all, window := 0, 0, uint64(r.window)
	if !r.kernel && r.pause > 0 {
		window = 1 // what a rank that computes gets is in the way of messages
	}
	for ; r.sent < r.next && r.sent-r.first < window; r.sent++ {
		s := &r.slots[r.sent%Outstanding]
		if s.answered {
			continue
		}
		n := len(s.datagram)
		if len(r.train) > 0 && (n > size || all+n > mostTrain) {
			break
		}
		s.at, s.resent = now, r.sent < r.reach
		r.train = append(r.train, s.datagram)
		size, all = max(size, n), all+n
		if n < size {
			r.sent++
			break
		}
	}
	r.reach = max(r.reach, r.sent)
	if len(r.train) > 0 && r.deadline == 0 {
		r.deadline = now + r.timeout()
	}
	return r.train
}

// look decides which server to ask, and handles a time-out. A request that was added without
// polled goes to the node kernel, which needs neither rank.
func (r *Requester) look(now time.Duration) {
	switch {
	case r.first == r.sent:
		r.kernel = r.alone > r.first || r.kernel && now < r.again
	case !r.kernel && r.alone > r.first:
		r.kernel = true
		r.repeat(now)
	case r.deadline == 0 || now < r.deadline:
	case r.kernel:
		r.timeouts++
		r.window = max(r.window/2, 1)
		r.repeat(now)
	default: // the rank computes, or sleeps
		r.kernel = true
		r.pause = min(max(2*r.pause, leastPause), mostPause)
		r.again = now + r.pause
		r.repeat(now)
	}
}

// repeat sends all that is not answered again.
func (r *Requester) repeat(now time.Duration) { r.sent, r.deadline = r.first, now+r.timeout() }

// Due returns when Emit must be called if nothing arrives before; 0: never.
func (r *Requester) Due() time.Duration { return r.deadline }

// Arrive takes an answer, which may be late or nonsense, and calls complete for each request that
// it answers. The data are valid during that call.
func (r *Requester) Arrive(a *Answer, data []byte, now time.Duration, complete func(number uint64, status wire.RemoteStatus, data []byte)) {
	if a.Done >= r.reach {
		return // it answers what was not asked
	}
	before := r.first
	for number := r.first; number <= a.Done; number++ {
		s := &r.slots[number%Outstanding]
		if status := a.status(number); !s.answered && (status != wire.RemoteOK || s.kind == wire.RemotePut) {
			r.finish(s, now)
			complete(number, status, nil)
		}
	}
	if n := a.Number; n >= r.first && n <= a.Done {
		if s := &r.slots[n%Outstanding]; !s.answered && s.kind != wire.RemotePut && len(data) == s.length {
			r.finish(s, now)
			complete(n, wire.RemoteOK, data)
		}
	}
	for r.first < r.next && r.slots[r.first%Outstanding].answered {
		r.first++
	}
	r.sent = max(r.sent, r.first)
	switch {
	case r.first != before:
		r.progress(now)
	case a.Gap && a.Done+1 == r.first && r.back != r.first:
		r.back, r.sent = r.first, r.first
	}
}

// finish notes that a request is answered.
func (r *Requester) finish(s *slot, now time.Duration) {
	s.answered = true
	if s.kind == wire.RemoteGet {
		r.gets--
	}
	if !s.resent {
		r.trip.Sample(now - s.at)
	}
	r.window = min(r.window+1, Outstanding)
}

// progress notes that the first request was answered.
func (r *Requester) progress(now time.Duration) {
	r.timeouts, r.deadline = 0, 0
	if !r.kernel {
		r.pause = 0
	}
	if r.first < r.sent {
		r.deadline = now + r.timeout()
	}
}

// bounds bound the retransmission time-out.
var bounds = trip.Bounds{First: firstTimeout, Least: leastTimeout, Most: mostTimeout}

// timeout is the retransmission time-out.
func (r *Requester) timeout() time.Duration {
	if !r.kernel {
		return patience
	}
	return r.trip.Timeout(bounds, r.timeouts)
}
