package message

import (
	"slices"
	"time"

	"margay/internal/tree"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
)

// The nodes of a job learn that it uses messages, and which ranks have ended, along the job's tree
// (package tree): a node passes news on. If each node reported to all others, each would need a
// connection to each.

// neighbours returns the members next to this node in the job's tree.
func (j *Job) neighbours() []int {
	members := slices.Clone(j.barrier.Children())
	if parent := j.barrier.Parent(); parent >= 0 {
		members = append(members, parent)
	}
	return members
}

// towards returns the member next to this node on the way to another one.
func (j *Job) towards(member int) int {
	for at := member; at > j.self; {
		parent, _ := tree.Parent(at)
		if parent == j.self {
			return at
		}
		at = parent
	}
	return j.barrier.Parent()
}

// join notes that some rank of the job uses messages. From then on all ranks must take part, except
// for those that have ended. from is the member that has said so; it is this node if the rank is
// here.
func (j *Job) join(from int) {
	j.mu.Lock()
	if j.inUse || j.closed {
		j.mu.Unlock()
		return
	}
	j.inUse = true
	j.running.Go(j.demand)
	news := make(map[int][][]byte)
	for _, member := range j.neighbours() {
		news[member] = j.news(member)
		if member == from {
			news[member] = news[member][1:] // it knows that the job uses messages
		}
	}
	j.mu.Unlock()
	for member, frames := range news {
		for _, b := range frames {
			j.send(member, b)
		}
	}
}

// news returns the frames that report to a neighbour that the job uses messages, and which ranks on
// this side of it have ended. The caller holds Job.mu.
func (j *Job) news(member int) [][]byte {
	if !j.inUse {
		return nil
	}
	frames := [][]byte{j.newFrame(frame.Joined)}
	for rank, entered := range j.barrier.Ended() {
		if j.place[rank] == j.self {
			frames = append(frames, j.newFrame(frame.Ended, uint64(rank), entered, j.bound(rank)))
		} else if j.towards(j.place[rank]) != member {
			frames = append(frames, j.newFrame(frame.Ended, uint64(rank), entered, j.bounds[rank]))
		}
	}
	return frames
}

// bound returns the number of the first barrier on the boards that lacks the part of a rank of this
// node that has ended; 0 if the rank had no part, because it was not the leader.
func (j *Job) bound(rank id.Rank) uint64 {
	if len(j.config.Members) > 1 && rank == j.config.Local[0] {
		return j.channels.Decided() + 1
	}
	return 0
}

// rankEnded handles the report of a neighbour that a rank elsewhere has ended, and passes it on if
// it is new. entered is the number of barriers that the rank had entered, and bound the number of
// the first barrier on the boards that lacks its part. A node reports only ranks on its side.
func (j *Job) rankEnded(from int, number id.Rank, entered, bound uint64) {
	if int(number) >= len(j.place) || j.place[number] == j.self || j.towards(j.place[number]) != from {
		return
	}
	j.mu.Lock()
	before, known := j.barrier.Ended()[number]
	fresh := j.inUse && (!known || before != entered || j.bounds[number] != bound)
	j.barrier.End(number, entered)
	j.bounds[number] = bound
	j.mu.Unlock()
	j.channels.Bound(bound)
	j.channels.FarEnded(number)
	j.rouseAll()
	j.advance()
	if fresh {
		j.spread(from, number, entered, bound)
	}
}

// spread reports to the neighbours that a rank has ended, except to the one that has reported it.
func (j *Job) spread(from int, number id.Rank, entered, bound uint64) {
	for _, member := range j.neighbours() {
		if member != from {
			j.send(member, j.newFrame(frame.Ended, uint64(number), entered, bound))
		}
	}
}

// demand reports a fault if a rank of this node does not take part in time.
func (j *Job) demand() {
	timeout := j.config.InitTimeout
	if timeout == 0 {
		timeout = DefaultInitTimeout
	}
	halts := func() uint64 { return 0 }
	if j.config.Halts != nil {
		halts = j.config.Halts
	}
	for before := ^uint64(0); before != halts() || before%2 == 1; {
		before = halts()
		select {
		case <-time.After(timeout):
		case <-j.context.Done():
			return
		}
	}
	for _, r := range j.local {
		if !r.takesPart() {
			j.fault("rank %d on node%d has not joined the job's messages within %v of the first rank (it never called margay_init or margay.Init)",
				r.number, j.engine.config.Self, timeout)
		}
	}
}
