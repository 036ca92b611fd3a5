// Package collective decides when the ranks of a job leave a barrier. It is a state machine without
// locks, goroutines or I/O: one Barrier is the part of one node, whose owner reports events to it
// and carries out its Steps. Its persistent Counters are in memory that the owner provides and that
// outlives the node kernel; New continues from any state of them.
//
// # Protocol
//
// The nodes of a job form a binary tree (package tree). Barriers are numbered from 1, and a number
// stands for all barriers up to it, so each report may be sent twice. A node reports to its parent
// that its subtree has arrived at barrier n when all its local ranks and the subtrees of its
// children have, and when all messages that its ranks sent before have come to their targets'
// nodes. Package flow knows that: Gather says when the node must flush its messages, and the owner
// calls Advance only when they are quiesced. The root releases barrier n instead of reporting it,
// and each node passes the release to its children.
//
// A rank that has ended counts as having entered the barriers that it had. If a rank waits in a
// barrier that an ended one did not enter, no rank will ever leave it: Missing.
package collective

import (
	"fmt"
	"math"
	"slices"

	"margay/internal/tree"
	"margay/kernel/abi/id"
)

// Counters is the persistent state of a node, zeroes for a new job. The owner provides the memory.
type Counters struct {
	Arrived  []uint64 // of children 0 and 1: barriers that their subtrees have entered
	Reported *uint64  // barriers that this subtree has entered, as reported to the parent
	Released *uint64  // barriers that are complete
}

// Config describes a job to the Barrier of one of its nodes.
type Config struct {
	Self, Members int       // this node's place in the tree, and the number of nodes
	Local         []id.Rank // ranks of this node
}

// Step is what the owner must do after an event. Zero fields mean nothing.
type Step struct {
	Arrived uint64 // report to the parent that this subtree has entered so many barriers
	Release uint64 // release the local ranks from the barriers up to this one, and pass it to the children
}

// ClaimError reports a rank that claims to have entered a barrier that it cannot have reached.
type ClaimError struct {
	Rank              id.Rank
	Entered, Complete uint64 // barriers
}

func (e *ClaimError) Error() string {
	return fmt.Sprintf("it claims to have entered %d barriers, %d are complete", e.Entered, e.Complete)
}

// Barrier is the barriers of one job at one node. It is not safe for concurrent use.
type Barrier struct {
	config   Config
	counters Counters
	parent   int // -1 for the root
	children []int

	entered  map[id.Rank]uint64 // by local rank: barriers that it says it has entered
	ended    map[id.Rank]uint64 // ranks of the job that have ended: barriers that they had entered
	gathered uint64             // barriers that all local ranks have entered
	missing  bool               // Missing has reported
}

// New returns the Barrier of a node, with the counters of a new job or of an earlier node kernel.
// All local ranks had entered the barriers that were reported, which the parent may release at any
// time. Enter reports later ones.
func New(c Config, counters Counters) *Barrier {
	b := &Barrier{
		config: c, counters: counters, parent: -1, children: tree.Children(c.Self, c.Members),
		entered: make(map[id.Rank]uint64), ended: make(map[id.Rank]uint64),
	}
	if parent, ok := tree.Parent(c.Self); ok {
		b.parent = parent
	} else {
		*counters.Released = *counters.Reported // the root may have been killed between the two
	}
	for _, rank := range c.Local {
		b.entered[rank] = *counters.Reported
	}
	return b
}

// Parent returns the place of this node's parent in the tree, -1 for the root.
func (b *Barrier) Parent() int { return b.parent }

// Children returns the places of this node's children in the tree.
func (b *Barrier) Children() []int { return b.children }

// Reported returns the number of barriers that this subtree has entered, as the parent should know
// it.
func (b *Barrier) Reported() uint64 { return *b.counters.Reported }

// Released returns the number of complete barriers.
func (b *Barrier) Released() uint64 { return *b.counters.Released }

// Enter notes that a local rank says that it has entered so many barriers, and that its messages
// from before were sent.
func (b *Barrier) Enter(rank id.Rank, entered uint64) { b.entered[rank] = entered }

// Entered returns what a local rank has said last.
func (b *Barrier) Entered(rank id.Rank) uint64 { return b.entered[rank] }

// End notes that a rank of the job has ended after entering so many barriers. For a local rank, the
// number is bounded by the barriers that it can have entered.
func (b *Barrier) End(rank id.Rank, entered uint64) (bounded uint64) {
	if _, local := b.entered[rank]; local {
		entered = min(entered, *b.counters.Released+1)
	}
	b.ended[rank] = entered
	return entered
}

// Ended returns the ranks of the job that have ended, with the barriers that they had entered. The
// map must not be changed, and is valid until the next call of End.
func (b *Barrier) Ended() map[id.Rank]uint64 { return b.ended }

// Gather reports whether all local ranks have entered a barrier that they had not all entered when
// it was called last. Then the node must flush its messages. A rank can enter only one barrier at a
// time; the error is a *ClaimError.
func (b *Barrier) Gather() (flush bool, err error) {
	all := uint64(math.MaxUint64)
	complete := *b.counters.Released
	for _, rank := range b.config.Local {
		entered := b.entered[rank]
		if had, ended := b.ended[rank]; ended {
			entered = had
		} else if entered < complete || entered > complete+1 {
			return false, &ClaimError{Rank: rank, Entered: entered, Complete: complete}
		}
		all = min(all, entered)
	}
	flush = all > b.gathered
	b.gathered = max(b.gathered, all)
	return flush, nil
}

// Arrive notes a report of a child. A report of another node is ignored.
func (b *Barrier) Arrive(member int, number uint64) {
	if i := slices.Index(b.children, member); i >= 0 {
		b.counters.Arrived[i] = max(b.counters.Arrived[i], number)
	}
}

// arrived returns how many barriers this subtree has entered.
func (b *Barrier) arrived() uint64 {
	n := b.gathered
	for i := range b.children {
		n = min(n, b.counters.Arrived[i])
	}
	return n
}

// Ready reports whether this subtree has arrived at a barrier that was not reported yet. If the
// node's messages are quiesced too, the owner calls Advance.
func (b *Barrier) Ready() bool { return b.arrived() > *b.counters.Reported }

// Advance reports the arrival of this subtree, or completes the barrier at the root.
func (b *Barrier) Advance() Step {
	number := b.arrived()
	*b.counters.Reported = number
	if b.parent < 0 {
		return b.complete(number)
	}
	return Step{Arrived: number}
}

// Release notes a report that barriers are complete. Only the parent's counts.
func (b *Barrier) Release(member int, number uint64) Step {
	if b.parent < 0 || member != b.parent {
		return Step{}
	}
	return b.complete(number)
}

func (b *Barrier) complete(number uint64) Step {
	if number <= *b.counters.Released {
		return Step{}
	}
	*b.counters.Released = number
	return Step{Release: number}
}

// Missing returns, once, a rank that has ended and a local rank that waits for it in a barrier.
func (b *Barrier) Missing() (ended, waits id.Rank, found bool) {
	if b.missing {
		return 0, 0, false
	}
	for _, rank := range b.config.Local {
		for other, had := range b.ended {
			if b.entered[rank] > had && other != rank && (!found || other < ended) {
				ended, waits, found = other, rank, true
			}
		}
		if found {
			break
		}
	}
	b.missing = found
	return ended, waits, found
}
