package reliable

import (
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/trip"
)

// Bounds of the retransmission time-out. RFC 6298, 2.4 has a floor of one second, for the Internet;
// between nodes a round trip takes microseconds, and incast needs a short floor to recover. Stalls
// of a peer raise the time-out: each echo names the datagram that it answers, so a late answer is a
// sample, also after a retransmission.
const (
	firstTimeout = 30 * time.Millisecond
	leastTimeout = 3 * time.Millisecond
	mostTimeout  = 250 * time.Millisecond
)

// granularity is the clock granularity G of RFC 6298, 2.3, and kGranularity of RFC 9002, 6.1.2.
const granularity = time.Millisecond

// ackDelay is how long an acknowledgement may wait for a datagram to travel with.
const ackDelay = time.Millisecond

// bounds bound the retransmission time-out.
var bounds = trip.Bounds{First: firstTimeout, Least: leastTimeout, Most: mostTimeout, Granularity: granularity, Delay: ackDelay}

// rtt estimates the round trip time and the retransmission time-out.
type rtt struct {
	trip.Estimate
	latest time.Duration
}

// sample takes a measured round trip. The time that the peer held its answer back is subtracted
// already.
func (r *rtt) sample(took time.Duration) {
	r.latest = max(took, 1)
	r.Sample(r.latest)
}

// timeout is the retransmission time-out after so many others without an answer.
func (r *rtt) timeout(backoff int) time.Duration { return r.Timeout(bounds, backoff) }

// lossDelay is how long after a unit was sent it counts as lost if a later datagram has arrived
// (RFC 9002, 6.1.2).
func (r *rtt) lossDelay() time.Duration {
	return max(9*max(r.Smoothed(), r.latest)/8, granularity)
}

// replay recognises numbers of datagrams that have arrived before (RFC 4303, 3.4.3).
type replay struct {
	largest uint64
	seen    [replayWindow / 64]uint64 // by number modulo replayWindow
}

// replayWindow is how far behind the largest number a datagram may arrive.
const replayWindow = 1024

// enter notes a number, and reports whether it is new.
func (r *replay) enter(number uint64) bool {
	if r.largest >= replayWindow && number <= r.largest-replayWindow {
		return false
	}
	if number > r.largest {
		for i := range min(number-r.largest, replayWindow) {
			n := number - i
			r.seen[n%replayWindow/64] &^= 1 << (n % 64)
		}
		r.largest = number
	}
	word, bit := &r.seen[number%replayWindow/64], uint64(1)<<(number%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// sendTimes remembers when recent datagrams were sent, for samples of the round trip.
type sendTimes [256]struct {
	number uint64
	at     id.Time
}

func (s *sendTimes) note(number uint64, at id.Time) {
	e := &s[number%uint64(len(s))]
	e.number, e.at = number, at
}

func (s *sendTimes) find(number uint64) (at id.Time, ok bool) {
	e := s[number%uint64(len(s))]
	return e.at, e.number == number
}
