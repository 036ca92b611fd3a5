package collective

import (
	"fmt"
	"math/bits"

	"margay/kernel/abi/wire"
)

// Exchange is a leader's part in the barriers of a job with several nodes (wire, "The board"): it
// finds out with the leaders of the other nodes whether all ranks of the job were quiet. It does no
// I/O and is not safe for concurrent use.
//
// The caller begins each barrier in turn, passes notes that come to Arrive at any time, and sends
// the notes of Next. Notes may come in any order and more than once; a leader that is ahead may
// have sent one of the next barrier. It cannot be further ahead: a barrier is decided only when all
// leaders have begun it.
type Exchange struct {
	leaders []uint32 // ranks by place
	place   int      // of this one
	rounds  int

	number  uint64       // of the last barrier that was begun
	outcome wire.Outcome // that this leader knows so far
	sent    int          // rounds of it in which the note was sent
	taken   int          // rounds of it whose notes are part of outcome

	// The notes for the last barrier and the next one, by the number's lowest bit and the round; 0:
	// it has not come.
	came [2][wire.MaxRounds]wire.Outcome
}

// NewExchange returns the part of the leader with a rank, which is among leaders.
func NewExchange(leaders []uint32, rank uint32) *Exchange {
	e := &Exchange{leaders: leaders, rounds: bits.Len(uint(len(leaders) - 1))}
	e.taken, e.sent = e.rounds, e.rounds
	for place, leader := range leaders {
		if leader == rank {
			e.place = place
		}
	}
	return e
}

// at returns the leader so many places behind this one.
func (e *Exchange) at(step int) uint32 {
	n := len(e.leaders)
	return e.leaders[((e.place+step)%n+n)%n]
}

// Begin begins the next barrier. v is how the ranks of this node have entered it. The last barrier
// is decided.
func (e *Exchange) Begin(number uint64, v wire.Outcome) {
	clear(e.came[(number+1)&1][:]) // the barrier after this one has the place of the one before
	e.number, e.outcome, e.sent, e.taken = number, v, 0, 0
}

// Begun returns the number of the last barrier that was begun.
func (e *Exchange) Begun() uint64 { return e.number }

// take takes the notes that have come, in the order of rounds, up to the last round in which this
// leader has sent its own.
func (e *Exchange) take() {
	for e.taken < e.sent {
		v := e.came[e.number&1][e.taken]
		if v == 0 {
			return
		}
		e.outcome = max(e.outcome, v)
		e.taken++
	}
}

// Arrive takes a message of wire.HandlerBarrier. The sender may have written anything; the error
// wraps wire.ErrNote.
func (e *Exchange) Arrive(source uint32, args [2]uint64, payload int) error {
	n, err := wire.ParseNote(args, payload)
	switch {
	case err != nil:
		return err
	case int(n.Round) >= e.rounds || e.at(-1<<n.Round) != source:
		return fmt.Errorf("%w: round %d from rank %d", wire.ErrNote, n.Round, source)
	case n.Number > e.number+1:
		return fmt.Errorf("%w: barrier %d, this rank is in %d", wire.ErrNote, n.Number, e.number)
	case n.Number < e.number:
		return nil // a second time
	}
	if came := &e.came[n.Number&1][n.Round]; *came == 0 {
		*came = n.Outcome
	}
	e.take()
	return nil
}

// Next returns the note that must be sent next, and the rank to which; false: there is none at
// present.
func (e *Exchange) Next() (to uint32, n wire.Note, ok bool) {
	if e.sent == e.rounds || e.sent > e.taken && e.outcome != wire.OutcomeAbandoned {
		return 0, n, false
	}
	return e.at(1 << e.sent), wire.Note{Number: e.number, Round: uint8(e.sent), Outcome: e.outcome}, true
}

// Sent notes that the note of Next was sent.
func (e *Exchange) Sent() {
	e.sent++
	e.take()
}

// Decided returns the outcome about the last barrier that was begun, and false while there is none.
// An abandoned barrier is decided when all notes are sent.
func (e *Exchange) Decided() (wire.Outcome, bool) {
	return e.outcome, e.taken == e.rounds || e.sent == e.rounds && e.outcome == wire.OutcomeAbandoned
}

// Abandon abandons a barrier, which need not have begun: Next returns all notes that this leader
// has not sent of it, without waiting for others'.
func (e *Exchange) Abandon(number uint64) {
	if e.number != number {
		e.Begin(number, wire.OutcomeAbandoned)
	}
	e.outcome = wire.OutcomeAbandoned
}
