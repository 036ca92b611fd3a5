package message

import (
	"time"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
)

// join notes that some rank of the job uses messages. From then on all ranks must take part, except
// for those that have ended. here is set if that rank is on this node, so that the others must be
// notified.
func (j *Job) join(here bool) {
	j.mu.Lock()
	if j.inUse || j.closed {
		j.mu.Unlock()
		return
	}
	j.inUse = true
	news := j.news()
	j.running.Go(j.demand)
	j.mu.Unlock()
	if !here {
		news = news[1:] // the others know
	}
	for member := range j.config.Members {
		for _, b := range news {
			if member != j.self {
				j.send(member, b)
			}
		}
	}
}

// news returns the frames that report that the job uses messages, and which ranks of this node have
// ended. The caller holds Job.mu.
func (j *Job) news() [][]byte {
	if !j.inUse {
		return nil
	}
	frames := [][]byte{j.newFrame(frame.Joined)}
	for rank, entered := range j.barrier.Ended() {
		if j.place[rank] == j.self {
			frames = append(frames, j.newFrame(frame.Ended, uint64(rank), entered, j.bound(rank)))
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

// rankEnded handles the report that a rank elsewhere has ended. entered is the number of barriers
// that it had entered, and bound the number of the first barrier on the boards that lacks its part.
func (j *Job) rankEnded(number id.Rank, entered, bound uint64) {
	j.mu.Lock()
	j.barrier.End(number, entered)
	j.mu.Unlock()
	j.channels.Bound(bound)
	j.channels.FarEnded(number)
	j.rouseAll()
	j.advance()
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
