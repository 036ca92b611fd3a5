// Package commit has the protocol of operations that change a window of all ranks of a group, or of
// none: XFER-AND-SIGNAL and COMPARE-AND-WRITE. It does no I/O: the library of Go programs
// (lib/margay) brings messages and memory. lib/c/commit.c repeats it in C.
//
// The operations of a group are carried out one after the other. The rank at place 0 is the leader:
// it grants turns, in the order in which ranks ask. The rank with the turn is the root of its
// operation, which takes two phases along a binomial tree of the group's ranks, as a collective
// operation does (lib/collective).
//
//  1. The operation, and the data of a transfer, go down the tree. Each rank checks its window and
//     keeps the data beside it, or compares its word. Votes are combined on their way up. A rank
//     where the operation is not possible votes at once, and its subtree is not asked.
//  2. The root decides, and sends each rank the decision to carry the operation out. A rank that has
//     it changes its window, then counts its event. The root itself does so when it has sent all.
//     Confirmations come up the tree. The decision that nothing happens goes down the tree, to the
//     ranks that know the operation.
//
// Then the root gives the turn back. An operation that only compares ends with the votes.
//
// So an operation takes effect at no rank before the votes of all are there, and windows change in
// the order of turns. A rank that dies makes no difference between the others, unless it is the
// root: what it has sent arrives, so all others have the decision, or none. Only a root that dies
// while it sends the decision leaves it with some of them.
package commit

import (
	"fmt"
	"slices"
	"time"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// Sender sends messages without waiting.
type Sender interface {
	// Post sends a message of wire.HandlerCommit, and reports whether there was room for it. If
	// not, Desk.Advance is called again when there may be.
	Post(rank int, args [2]uint64, payload []byte) (bool, error)
	// Probe sends an empty message, which ends the job if the rank has ended.
	Probe(rank int) error
}

// Memory is the windows of this rank.
type Memory interface {
	// Prepare returns whether an operation is possible, or wire.CommitFalse if the comparison
	// is false.
	Prepare(op *wire.CommitOp) wire.CommitStatus
	// Apply carries out an operation that is possible: it copies the data and counts the event,
	// or writes the word.
	Apply(op *wire.CommitOp, data []byte)
	// Count counts an event of the caller.
	Count(window uint8, offset uint64)
}

// Desk is a rank's part in the operations of all of its groups. It is not safe for concurrent use.
type Desk struct {
	memory  Memory
	find    func(wire.GroupID) *collective.Group
	parts   map[wire.GroupID]*part
	busy    []*part
	letters []letter // answers for groups that this rank does not have
}

// NewDesk returns the part of a rank. find returns its group of a number, nil if it has freed that.
func NewDesk(memory Memory, find func(wire.GroupID) *collective.Group) *Desk {
	return &Desk{memory: memory, find: find, parts: make(map[wire.GroupID]*part)}
}

// letter is a message that waits for room.
type letter struct {
	rank int
	args [2]uint64
}

// mostLetters bounds the answers for groups that this rank does not have.
const mostLetters = 1024

// Call is an operation that this rank has started.
type Call struct {
	op     wire.CommitOp
	data   []byte
	local  uint64 // offset of the caller's event; wire.NoOffset: none
	turn   uint64 // its number; 0: it has not begun
	over   bool
	status wire.CommitStatus
	rank   int // where it was not possible
	err    error
}

// Over reports whether the operation is complete at all ranks, or has failed. Its data are the
// caller's again.
func (c *Call) Over() bool { return c.over }

// Status says, of an operation that is over, whether it was carried out, and if not, the rank where
// it was not possible.
func (c *Call) Status() (status wire.CommitStatus, rank int) { return c.status, c.rank }

// Err returns the error of sending, if that has failed.
func (c *Call) Err() error { return c.err }

// Start starts an operation of a group. data are a transfer's; they belong to the call until it is
// over. When it is complete, the event of this rank at the offset local is counted, unless
// that is wire.NoOffset. Advance must follow.
func (d *Desk) Start(team *collective.Group, op wire.CommitOp, data []byte, local uint64) *Call {
	c := &Call{op: op, data: data, local: local}
	p := d.part(team)
	if p.broken != nil {
		c.over, c.err = true, p.broken
		return c
	}
	p.calls = append(p.calls, c)
	d.enlist(p)
	return c
}

// part returns this rank's part in a group.
func (d *Desk) part(team *collective.Group) *part {
	p := d.parts[team.ID()]
	if p == nil || p.team != team {
		p = &part{desk: d, team: team, holder: nowhere}
		d.parts[team.ID()] = p
	}
	return p
}

func (d *Desk) enlist(p *part) {
	if !slices.Contains(d.busy, p) {
		d.busy = append(d.busy, p)
	}
}

// Arrive takes a message. The payload is copied. The sender may have written anything; the error
// wraps wire.ErrCommit.
func (d *Desk) Arrive(rank int, m wire.Commit, payload []byte) error {
	team := d.find(m.Group)
	if team == nil {
		d.decline(rank, m)
		return nil
	}
	place, ok := team.PlaceOf(rank)
	if !ok {
		return fmt.Errorf("%w: rank %d is not in the group", wire.ErrCommit, rank)
	}
	p := d.part(team)
	p.patience = 0
	d.enlist(p)
	if err := p.arrive(place, m, payload); err != nil {
		return fmt.Errorf("%w; it is message %d of turn %d", err, m.Kind, m.Number)
	}
	return nil
}

// decline answers a message for a group that this rank has freed.
func (d *Desk) decline(rank int, m wire.Commit) {
	answer := wire.Commit{Group: m.Group, Place: wire.NoPlace, Number: m.Number, Status: wire.CommitFreed}
	switch m.Kind {
	case wire.CommitAsk:
		answer.Kind = wire.CommitGrant
	case wire.CommitBegin:
		answer.Kind = wire.CommitVote
	case wire.CommitDecide:
		answer.Kind = wire.CommitDone
	default:
		return
	}
	if len(d.letters) < mostLetters {
		d.letters = append(d.letters, letter{rank, answer.Args()})
	}
}

// Advance makes all possible steps, and reports whether there were any.
func (d *Desk) Advance(s Sender) (some bool) {
	if len(d.letters) > 0 {
		some, _ = flush(&d.letters, s) // an error is one of the parts, too
	}
	for _, p := range d.busy {
		some = p.advance(s) || some
	}
	d.busy = slices.DeleteFunc(d.busy, func(p *part) bool { return !p.isBusy() })
	return some
}

// flush sends letters while there is room.
func flush(letters *[]letter, s Sender) (some bool, err error) {
	for len(*letters) > 0 {
		l := (*letters)[0]
		ok, err := s.Post(l.rank, l.args, nil)
		if !ok || err != nil {
			return some, err
		}
		*letters, some = (*letters)[1:], true
	}
	*letters = nil
	return some, nil
}

// Busy reports whether operations are under way.
func (d *Desk) Busy() bool { return len(d.busy) > 0 || len(d.letters) > 0 }

// BusyIn reports whether operations of a group are under way.
func (d *Desk) BusyIn(id wire.GroupID) bool { return d.parts[id] != nil && d.parts[id].isBusy() }

// Settled reports whether this rank has no turn and wants none: none of its operations is under
// way, those that it has abandoned included.
func (d *Desk) Settled() bool {
	return !slices.ContainsFunc(d.busy, func(p *part) bool { return p.asked || len(p.calls) > 0 })
}

// Forget forgets a group, which this rank has freed. It is not busy.
func (d *Desk) Forget(id wire.GroupID) { delete(d.parts, id) }

// Abandon ends a call without waiting: its data are the caller's again. It reports whether the
// operation takes effect nevertheless, because it was decided. Otherwise it takes effect nowhere.
func (d *Desk) Abandon(team *collective.Group, c *Call) (decided bool) {
	if c.over {
		return false // its group may have been freed
	}
	p := d.part(team)
	if r := p.running; r != nil && r.call == c {
		decided = r.abandon()
		r.call = nil
	}
	p.calls = slices.DeleteFunc(p.calls, func(other *Call) bool { return other == c })
	c.over, c.status, c.data = true, wire.CommitAbandoned, nil
	return decided
}

// firstPatience is how long a rank waits for another before it probes whether that has ended. It
// doubles the time with each probe.
const firstPatience = 250 * time.Millisecond

// Due probes the ranks that have been awaited for long, and returns when it must be called again, 0
// if no operation is under way.
func (d *Desk) Due(now time.Duration, s Sender) (next time.Duration) {
	for _, p := range d.busy {
		switch {
		case p.patience == 0:
			p.patience = firstPatience
			p.due = now + p.patience
		case now >= p.due:
			p.patience = min(2*p.patience, time.Hour)
			p.due = now + p.patience
			for _, place := range p.awaited() {
				if err := s.Probe(p.team.Rank(place)); err != nil {
					p.fail(err)
				}
			}
		}
		if next == 0 || p.due < next {
			next = p.due
		}
	}
	return next
}
