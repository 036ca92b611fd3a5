package collective

import (
	"fmt"
	"slices"

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
	leaders []uint32             // ranks by place
	shapes  [2][]turn            // of this leader: in the exchange, and in the tree
	from    [wire.NoteRounds]int // the place that sends this leader notes of a round; -1: none does

	number uint64 // of the last barrier that was begun
	turns  []turn // of it that are left
	view   view   // what this leader knows of it so far

	// The notes for the last barrier and the next one, by the number's lowest bit and the round; 0:
	// it has not come.
	came [2][wire.NoteRounds]view
}

// turn is something that a leader does in a barrier: it sends a note of a round to another leader,
// or waits for one.
type turn struct {
	place int
	round uint8
	waits bool
}

// view is what a note says of the leaders that its sender knows about.
type view struct {
	outcome wire.Outcome
	strewn  bool
}

// with returns what two views say of all their leaders.
func (v view) with(w view) view { return view{max(v.outcome, w.outcome), v.strewn && w.strewn} }

// NewExchange returns the part of the leader with a rank, which is among leaders.
func NewExchange(leaders []uint32, rank uint32) *Exchange {
	place := slices.Index(leaders, rank)
	e := &Exchange{leaders: leaders, shapes: [2][]turn{spread(place, len(leaders)), climb(place, len(leaders))}}
	for round := range e.from {
		e.from[round] = -1
	}
	for _, shape := range e.shapes {
		for _, t := range shape {
			if t.waits {
				e.from[t.round] = t.place
			}
		}
	}
	return e
}

// spread returns the turns of a leader in an exchange.
func spread(place, leaders int) (turns []turn) {
	for round := 0; 1<<round < leaders; round++ {
		step := 1 << round
		turns = append(turns, turn{(place + step) % leaders, uint8(round), false}, turn{(place + leaders - step) % leaders, uint8(round), true})
	}
	return turns
}

// climb returns the turns of a leader in the tree.
func climb(place, leaders int) (turns []turn) {
	for child := place + 1; child < leaders; child++ {
		if parent, round := wire.Parent(child); parent == place {
			turns = append(turns, turn{child, wire.RoundUp + round, true})
		}
	}
	children := slices.Clone(turns)
	if place != 0 {
		parent, round := wire.Parent(place)
		turns = append(turns, turn{parent, wire.RoundUp + round, false}, turn{parent, wire.RoundDown + round, true})
	}
	for _, t := range slices.Backward(children) { // the largest subtree first
		turns = append(turns, turn{t.place, t.round - wire.RoundUp + wire.RoundDown, false})
	}
	return turns
}

// Begin begins the next barrier. v is how the ranks of this node have entered it, and strewn says
// that this rank shares its CPU with ranks of other nodes. The last barrier is decided. If all
// leaders were strewn in that, this one climbs the tree.
func (e *Exchange) Begin(number uint64, v wire.Outcome, strewn bool) {
	clear(e.came[(number+1)&1][:]) // the barrier after this one has the place of the one before
	e.turns = e.shapes[0]
	if e.view.strewn {
		e.turns = e.shapes[1]
	}
	e.number, e.view = number, view{v, strewn}
}

// Begun returns the number of the last barrier that was begun.
func (e *Exchange) Begun() uint64 { return e.number }

// take takes the notes that have come, up to the turn in which this leader must send its own. It
// waits for none in an abandoned barrier.
func (e *Exchange) take() {
	for len(e.turns) > 0 && e.turns[0].waits {
		v := e.came[e.number&1][e.turns[0].round]
		switch {
		case v.outcome != 0:
			e.view = e.view.with(v)
		case e.view.outcome != wire.OutcomeAbandoned:
			return
		}
		e.turns = e.turns[1:]
	}
}

// Arrive takes a message of wire.HandlerBarrier. The sender may have written anything; the error
// wraps wire.ErrNote.
func (e *Exchange) Arrive(source uint32, args [2]uint64, payload int) error {
	n, err := wire.ParseNote(args, payload)
	switch {
	case err != nil:
		return err
	case e.from[n.Round] < 0 || e.leaders[e.from[n.Round]] != source:
		return fmt.Errorf("%w: round %d from rank %d", wire.ErrNote, n.Round, source)
	case n.Number > e.number+1:
		return fmt.Errorf("%w: barrier %d, this rank is in %d", wire.ErrNote, n.Number, e.number)
	case n.Number < e.number:
		return nil // a second time
	}
	if came := &e.came[n.Number&1][n.Round]; came.outcome == 0 {
		*came = view{n.Outcome, n.Strewn}
	}
	return nil
}

// Next returns the note that must be sent next, and the rank to which; false: there is none at
// present.
func (e *Exchange) Next() (to uint32, n wire.Note, ok bool) {
	if e.take(); len(e.turns) == 0 || e.turns[0].waits {
		return 0, n, false
	}
	t := e.turns[0]
	return e.leaders[t.place], wire.Note{Number: e.number, Round: t.round, Outcome: e.view.outcome, Strewn: e.view.strewn}, true
}

// Sent notes that the note of Next was sent.
func (e *Exchange) Sent() { e.turns = e.turns[1:] }

// Decided returns the outcome about the last barrier that was begun, and false while there is none.
func (e *Exchange) Decided() (wire.Outcome, bool) {
	e.take()
	return e.view.outcome, len(e.turns) == 0
}

// Abandon abandons a barrier, which need not have begun: Next returns all notes that this leader
// has not sent of it, without waiting for others'.
func (e *Exchange) Abandon(number uint64) {
	if e.number != number {
		e.Begin(number, wire.OutcomeAbandoned, false)
	}
	e.view.outcome = wire.OutcomeAbandoned
}
