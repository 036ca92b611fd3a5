package wire

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Sizes and places on a board, in bytes.
const (
	boardRank = 128 // for each local rank

	offBarrier = 0  // two u64
	offOutcome = 16 // u64; of the leader alone
	offAsleep  = 64
)

// Parts of a rank's word for a barrier.
const (
	barrierLoud  = 1 // the rank is not quiet
	barrierEnded = 2
	barrierShift = 2 // of the number
)

// BoardSize is the size of the board of a job with so many ranks on the node, in bytes.
func BoardSize(local int) int { return (boardRank*local + 4095) &^ 4095 }

// Board is the memory that the ranks of a job on one node share. It is safe for concurrent use.
type Board struct {
	mem   []byte
	local int
}

// OpenBoard takes BoardSize bytes of shared memory, zeroes when they are new.
func OpenBoard(mem []byte, local int) (*Board, error) {
	if local < 1 || len(mem) != BoardSize(local) {
		return nil, fmt.Errorf("wire: board of %d bytes for %d ranks", len(mem), local)
	}
	return &Board{mem, local}, nil
}

// Local returns the number of local ranks.
func (b *Board) Local() int { return b.local }

// Asleep is the word by which a local rank says that it sleeps, or is about to.
func (b *Board) Asleep(rank int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b.mem[boardRank*rank+offAsleep]))
}

// Claim takes the announcement of a rank that it sleeps back, and reports whether there was one:
// the caller then wakes it.
func (b *Board) Claim(rank int) bool {
	w := b.Asleep(rank)
	return w.Load() != 0 && w.Swap(0) != 0
}

// word is the word of a local rank for the barrier of that number.
func (b *Board) word(rank int, number uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.mem[boardRank*rank+offBarrier+8*int(number&1)]))
}

// Enter says that a local rank enters a barrier. Barriers count from 1.
func (b *Board) Enter(rank int, number uint64, quiet bool) {
	w := number << barrierShift
	if !quiet {
		w |= barrierLoud
	}
	b.word(rank, number).Swap(w)
}

// Arrived returns how many ranks have entered a barrier: the local ranks 0 to n-1, where those
// before first are known to have.
func (b *Board) Arrived(first int, number uint64) (n int) {
	for n = first; n < b.local; n++ {
		if b.word(n, number).Load()>>barrierShift < number {
			break
		}
	}
	return n
}

// Quiet reports whether all ranks entered a barrier quietly. All ranks get the same answer once all
// have entered, and the same that they would get later: a rank that is at a later barrier has left
// this one. If a rank had not been quiet, it would still wait for all others.
func (b *Board) Quiet(number uint64) bool {
	quiet := true
	for rank := range b.local {
		w := b.word(rank, number).Load()
		if w>>barrierShift > number {
			return true
		}
		quiet = quiet && w&barrierLoud == 0
	}
	return quiet
}

// outcome is the word of the leader's outcome.
func (b *Board) outcome() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b.mem[offOutcome])) }

// Decide publishes the outcome about a barrier. Only the leader decides, when its part in the
// barrier is done.
func (b *Board) Decide(number uint64, v Outcome) { b.outcome().Swap(number<<barrierShift | uint64(v)) }

// Outcome returns the outcome about a barrier, 0 while there is none. A outcome about a later one
// says that all ranks have left this one: all were quiet.
func (b *Board) Outcome(number uint64) Outcome {
	switch w := b.outcome().Load(); {
	case w>>barrierShift < number:
		return 0
	case w>>barrierShift > number:
		return OutcomeQuiet
	default:
		return Outcome(w & (1<<barrierShift - 1))
	}
}

// Decided returns the number of the last barrier about which there is an outcome. It may be any
// number.
func (b *Board) Decided() uint64 { return b.outcome().Load() >> barrierShift }

// End enters the next barrier for a rank that has ended: not quietly, so that the others come to
// the node kernel. The word of the last barrier that the rank has entered stays. The words may be
// anything.
func (b *Board) End(rank int) {
	even, odd := b.word(rank, 0).Load(), b.word(rank, 1).Load()
	if (even|odd)&barrierEnded != 0 {
		return
	}
	next := max(even>>barrierShift, odd>>barrierShift) + 1
	b.word(rank, next).Swap(next<<barrierShift | barrierLoud | barrierEnded)
}
