package message

import (
	"unsafe"

	"margay/kernel/collective"
	"margay/kernel/flow"
	"margay/nimble/memory"
)

// counters is the state of a job's messages that outlives the node kernel, in memory that the job's
// init keeps. The next node kernel continues with it. It finds lost messages by comparing its
// numbers with the numbers of the other nodes.
type counters struct {
	memory  *memory.Memory
	flow    flow.Counters
	barrier collective.Counters

	// By local rank.
	joined  []uint64 // 1 if it uses messages
	waiting []uint64 // messages received that wait for room, in memory of the node kernel alone
	asking  []uint64 // see call.Config
}

// countersSize returns the size of the counters in bytes.
func countersSize(members, ranks, local int) int {
	return 8 * (2*members + flow.Hops*ranks + flow.Hops*local*members + 5 + 3*local)
}

// newCounters lays counters out in memory of countersSize bytes, zeroes for a new job.
func newCounters(m *memory.Memory, members, ranks, local int) *counters {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&m.Bytes()[0])), len(m.Bytes())/8)
	next := func(n int) []uint64 {
		part := words[:n:n]
		words = words[n:]
		return part
	}
	c := &counters{memory: m}
	c.flow.Sent, c.flow.Received, c.flow.Spent = next(members), next(members), next(flow.Hops*ranks)
	for range flow.Hops * local {
		c.flow.Taken = append(c.flow.Taken, next(members))
	}
	c.barrier.Arrived, c.barrier.Reported, c.barrier.Released = next(2), &next(1)[0], &next(1)[0]
	c.joined, c.waiting, c.asking = next(local), next(local), next(local)
	c.flow.Forwarding = &next(1)[0]
	return c
}
