// Package trip estimates the round trip of datagrams, and with it the time after which one without
// an answer is sent again (RFC 6298).
package trip

import "time"

// Bounds are the times of a protocol. RFC 6298, 2.4 has a floor of one second, for the Internet;
// between nodes a round trip takes microseconds.
type Bounds struct {
	First       time.Duration // the time-out before a round trip was measured
	Least, Most time.Duration // Most is at most 256 times Least and First
	Granularity time.Duration // of the clock: G of RFC 6298, 2.3
	Delay       time.Duration // the other end may hold back its answer so long (RFC 9002, 6.2.1)
}

// Estimate is an estimate of the round trip. The zero value has no sample yet.
type Estimate struct {
	smoothed time.Duration // 0: no sample yet
	variance time.Duration
}

// Sample takes a measured round trip (RFC 6298, 2.2 and 2.3).
func (e *Estimate) Sample(took time.Duration) {
	if took = max(took, 1); e.smoothed == 0 {
		e.smoothed, e.variance = took, took/2
		return
	}
	e.variance = (3*e.variance + (e.smoothed - took).Abs()) / 4
	e.smoothed = (7*e.smoothed + took) / 8
}

// Smoothed returns the round trip; 0: none was measured.
func (e *Estimate) Smoothed() time.Duration { return e.smoothed }

// Timeout returns the retransmission time-out after so many others without an answer (RFC 6298, 2.3
// and 5.5).
func (e *Estimate) Timeout(b Bounds, others int) time.Duration {
	t := b.First
	if e.smoothed > 0 {
		t = max(e.smoothed+max(b.Granularity, 4*e.variance)+b.Delay, b.Least)
	}
	return min(t<<min(others, 8), b.Most)
}
