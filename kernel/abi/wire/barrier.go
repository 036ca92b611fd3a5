package wire

import (
	"errors"
	"fmt"
	"math/bits"
)

// Outcome says how the ranks of a job, or some of them, have entered a barrier. The greatest of
// several holds for all of them.
type Outcome uint8

// The outcomes.
const (
	OutcomeQuiet     Outcome = 1 // all were quiet
	OutcomeLoud      Outcome = 2 // some rank was not quiet
	OutcomeAbandoned Outcome = 3 // a leader has stopped waiting
)

// MaxRounds bounds the rounds in which leaders exchange outcomes.
const MaxRounds = 32

// Rounds of notes in the exchange begin with 0, up and down the tree with these. NoteRounds bounds
// all.
const (
	RoundUp    = MaxRounds
	RoundDown  = 2 * MaxRounds
	NoteRounds = 3 * MaxRounds
)

// Leaders returns the lowest rank of each node, in ascending order.
func Leaders(size int, nodeOf func(rank uint32) uint32) (leaders []uint32) {
	seen := make(map[uint32]bool)
	for rank := range uint32(size) {
		if node := nodeOf(rank); !seen[node] {
			seen[node] = true
			leaders = append(leaders, rank)
		}
	}
	return leaders
}

// Exchange reports whether two places among the leaders exchange outcomes.
func Exchange(a, b, leaders int) bool {
	for step := 1; step < leaders; step *= 2 {
		if (a+step)%leaders == b || (b+step)%leaders == a {
			return true
		}
	}
	return false
}

// treeGroup is the number of leaders with one parent in the tree, and that one.
const treeGroup = 8

// Parent returns the parent in the tree of a place among the leaders other than 0: the first place
// of its group of 8; the first places of groups have a binomial tree. No two children of a parent
// have one round, which is less than MaxRounds.
func Parent(place int) (parent int, round uint8) {
	if in := place % treeGroup; in != 0 {
		return place - in, uint8(in)
	}
	return place & (place - 1), uint8(treeGroup + bits.TrailingZeros(uint(place/treeGroup)))
}

// Climb reports whether one of two places among the leaders is the parent of the other.
func Climb(a, b int) bool {
	child := max(a, b)
	if a == b {
		return false
	}
	parent, _ := Parent(child)
	return parent == min(a, b)
}

// Note is what a leader sends another in a round of a barrier. The arguments of its message are
//
//	0 u64: number of the barrier
//	1 u64: round in bits 0 to 7, Outcome in 8 to 15, Strewn in 16
type Note struct {
	Number  uint64
	Round   uint8 // less than NoteRounds
	Outcome Outcome
	Strewn  bool // all leaders that the sender knows about share their CPUs with ranks of other nodes
}

// noteStrewn is the bit of Strewn.
const noteStrewn = 1 << 16

// Args returns the arguments of the message.
func (n Note) Args() [2]uint64 {
	second := uint64(n.Round) | uint64(n.Outcome)<<8
	if n.Strewn {
		second |= noteStrewn
	}
	return [2]uint64{n.Number, second}
}

// ErrNote reports a message of HandlerBarrier that makes no sense.
var ErrNote = errors.New("note about a barrier makes no sense")

// ParseNote reads the arguments of a message of HandlerBarrier with so much payload. The sender may
// have written anything. The error wraps ErrNote.
func ParseNote(args [2]uint64, payload int) (Note, error) {
	n := Note{Number: args[0], Round: uint8(args[1]), Outcome: Outcome(args[1] >> 8), Strewn: args[1]&noteStrewn != 0}
	if args[1] >= 2*noteStrewn || payload != 0 || n.Number == 0 || n.Round >= NoteRounds || n.Outcome < OutcomeQuiet || n.Outcome > OutcomeAbandoned {
		return n, fmt.Errorf("%w: %#x, %#x, %d bytes of payload", ErrNote, args[0], args[1], payload)
	}
	return n, nil
}

// Untried is how many barriers at the beginning of a job on several nodes are not tried on the
// boards. Many jobs have only the first one. In the last one, the node kernels make the mirrored
// channels that leaders need.
const Untried = 2

// mostSkipped is how many barriers are not tried on the boards at most.
const mostSkipped = 15

// Turns decides which barriers of a job are tried on the boards: fewer after several with ranks
// that were not quiet. All ranks of a job have the same Turns.
type Turns struct {
	left int // barriers that are not tried
	next int // that will not be tried after the next one that is not quiet
}

// NewTurns returns the Turns of a job with so many nodes.
func NewTurns(nodes int) Turns {
	if nodes > 1 {
		return Turns{left: Untried}
	}
	return Turns{}
}

// Try reports whether the next barrier is tried on the boards.
func (t *Turns) Try() bool {
	if t.left > 0 {
		t.left--
		return false
	}
	return true
}

// Judge notes how a barrier has ended that was tried.
func (t *Turns) Judge(quiet bool) {
	if quiet {
		t.next = 0
		return
	}
	t.left, t.next = t.next, min(2*t.next+1, mostSkipped)
}
