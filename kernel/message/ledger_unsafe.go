package message

import (
	"unsafe"

	"margay/nimble/memory"
)

// ledger is what must be remembered of a job's messages when the node kernel is started again: how many have gone where and
// come from where. It is in memory that the job's init keeps. Whoever restarts finds it, and by comparing numbers with the
// other nodes finds out whether a message was lost.
type ledger struct {
	memory   *memory.Memory
	sent     []uint64   // by member: messages sent to that node
	received []uint64   // by member: messages received from it
	spent    []uint64   // by lane: bytes of messages sent to that rank from here
	taken    [][]uint64 // by lane of a local rank and member: bytes of messages for it that have been taken
	arrived  []uint64   // of children 0 and 1: barriers that their subtrees have entered
	told     *uint64    // barriers that the parent has been told of
	released *uint64    // barriers that are complete
	joined   []uint64   // by local rank: 1 when it uses messages
	waiting  []uint64   // by local rank: messages received that wait for room, in memory of the node kernel alone
	asking   []uint64   // by local rank: 1 + the number of the request that is being answered, 0 while there is none

	// Messages that are being forwarded, of which memory of the node kernel alone knows where from and where to.
	forwarding *uint64
}

// ledgerSize returns the bytes of a ledger.
func ledgerSize(members, ranks, local int) int {
	return 8 * (2*members + lanes*ranks + lanes*local*members + 5 + 3*local)
}

// newLedger lays a ledger out in memory of ledgerSize bytes, zeroes for a new job.
func newLedger(m *memory.Memory, members, ranks, local int) *ledger {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&m.Bytes()[0])), len(m.Bytes())/8)
	next := func(n int) []uint64 {
		part := words[:n:n]
		words = words[n:]
		return part
	}
	l := &ledger{memory: m, sent: next(members), received: next(members), spent: next(lanes * ranks)}
	for range lanes * local {
		l.taken = append(l.taken, next(members))
	}
	l.arrived = next(2)
	l.told, l.released = &next(1)[0], &next(1)[0]
	l.joined, l.waiting, l.asking = next(local), next(local), next(local)
	l.forwarding = &next(1)[0]
	return l
}

// takenOf is the part of taken for messages to a rank of this node that were forwarded so often.
func (l *ledger) takenOf(index int, hops uint8) []uint64 { return l.taken[index*lanes+int(hops)] }
