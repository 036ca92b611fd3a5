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
	leastPause = 250 * time.Microsecond // until a rank that has not answered gets a copy
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
	gets     int    // that are not answered
	window   int    // the most requests on their way
	timeouts int    // since the last progress
	back     uint64 // first when requests were sent again because of a gap
	deadline time.Duration
	trip     trip.Estimate

	kernel bool          // requests go to the node kernel
	copied bool          // Emit has returned a copy for the rank
	asked  time.Duration // when the rank got the last copy
	again  time.Duration // then it gets the next one
	pause  time.Duration // the last one until then; 0: the rank answers
}

// NewRequester returns the requester of a new pair of mirrored channels.
func NewRequester(p Peer) *Requester {
	piece := (min(p.Largest, Most) - AnswerSize) &^ 7
	return &Requester{peer: p, piece: piece, first: 1, next: 1, sent: 1, reach: 1, window: Outstanding, pause: leastPause}
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
// Length and Offset of q. The data, of at most Piece bytes, are copied.
func (r *Requester) Add(q Request, data []byte) (number uint64) {
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
	r.next++
	return q.Number
}

// ToKernel reports whether the datagrams that Emit has returned go to the node kernel, and not to
// the rank.
func (r *Requester) ToKernel() bool { return r.kernel && !r.copied }

// Emit returns the datagrams that are due: of one length, but the last may be shorter. They are
// valid until the next call of Add or Emit.
func (r *Requester) Emit(now time.Duration) [][]byte {
	r.look(now)
	r.train = r.train[:0]
	if r.copied = r.kernel && r.pause > 0 && r.first < r.next && now >= r.again; r.copied {
		return r.copy(now)
	}
	size, all := 0, 0
	for ; r.sent < r.next && r.sent-r.first < uint64(r.window); r.sent++ {
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

// copy returns a copy of the first request for the rank. It is one datagram: what a rank that
// computes gets is in the way of messages.
func (r *Requester) copy(now time.Duration) [][]byte {
	r.asked, r.pause = now, min(2*r.pause, mostPause)
	r.again = now + r.pause
	r.reach = max(r.reach, r.first+1)
	r.train = append(r.train, r.slots[r.first%Outstanding].datagram)
	return r.train
}

// look decides which server to ask, and handles a time-out.
func (r *Requester) look(now time.Duration) {
	switch {
	case r.first == r.sent:
		r.kernel = r.pause > 0
	case r.deadline == 0 || now < r.deadline:
	case r.kernel:
		r.timeouts++
		r.window = max(r.window/2, 1)
		r.repeat(now)
	default: // the rank computes, or this one did
		r.kernel, r.pause, r.again = true, leastPause, now+leastPause
		r.repeat(now)
	}
}

// repeat sends all that is not answered again.
func (r *Requester) repeat(now time.Duration) { r.sent, r.deadline = r.first, now+r.timeout() }

// Due returns when Emit must be called if nothing arrives before; 0: never.
func (r *Requester) Due() time.Duration { return r.deadline }

// Arrive takes an answer of the rank or of its node kernel, which may be late or nonsense, and
// calls complete for each request that it answers. The data are valid during that call.
func (r *Requester) Arrive(a *Answer, data []byte, byRank bool, now time.Duration, complete func(number uint64, status wire.RemoteStatus, data []byte)) {
	if a.Done >= r.reach {
		return // it answers what was not asked
	}
	if byRank && now-r.asked < patience {
		r.pause = 0
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
