package message

import (
	"errors"
	"time"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/collective"
)

// gather notes that a rank of this node has entered a barrier, or has ended. Once all have, it asks
// the other nodes to acknowledge the messages sent to them before. It may wait, like everything
// that sends messages.
func (j *Job) gather() {
	j.sending.Lock()
	defer j.sending.Unlock()
	j.mu.Lock()
	flush, err := j.barrier.Gather()
	var ask []int
	if flush {
		ask = j.flow.Flush()
	}
	j.mu.Unlock()
	var claim *collective.ClaimError
	if errors.As(err, &claim) {
		j.fault("rank %d on node%d: %w: %w", claim.Rank, j.engine.config.Self, wire.ErrCorrupt, claim)
		return
	}
	for _, member := range ask {
		j.sendMessages(member, j.question(member))
	}
	j.advance()
}

// advance reports that this node's subtree has arrived at another barrier, or completes the
// barrier, if either is due.
func (j *Job) advance() {
	j.mu.Lock()
	if ended, waits, found := j.barrier.Missing(); found && !j.closed {
		j.running.Go(func() { j.faultLater(ended, waits) })
	}
	var s collective.Step
	if j.barrier.Ready() && j.flow.Quiesced() {
		s = j.barrier.Advance()
	}
	j.mu.Unlock()
	j.carry(s)
}

// carry carries out a step of the barrier.
func (j *Job) carry(s collective.Step) {
	if s.Arrived > 0 {
		j.send(j.barrier.Parent(), j.newFrame(frame.Arrived, s.Arrived))
	}
	if s.Release > 0 {
		for _, r := range j.local {
			r.endpoint.Release(s.Release)
		}
		for _, child := range j.barrier.Children() {
			j.send(child, j.newFrame(frame.Released, s.Release))
		}
	}
}

// acknowledged handles a member's acknowledgement.
func (j *Job) acknowledged(member int, number uint64) {
	j.mu.Lock()
	j.flow.Acknowledge(member, number)
	j.mu.Unlock()
	j.advance()
}

// arrived handles a report that a child's subtree has arrived at barriers.
func (j *Job) arrived(member int, number uint64) {
	j.mu.Lock()
	j.barrier.Arrive(member, number)
	j.mu.Unlock()
	j.advance()
}

// released handles the parent's report that barriers are complete.
func (j *Job) released(member int, number uint64) {
	j.mu.Lock()
	s := j.barrier.Release(member, number)
	j.mu.Unlock()
	j.carry(s)
}

// missingGrace is how long the end of a rank may take to end its job while other ranks wait for it
// in a barrier.
const missingGrace = 2 * time.Second

// faultLater reports that one rank waits for another that has ended, unless the job ends first: the
// way in which the other rank ended is the better reason.
func (j *Job) faultLater(ended, waits id.Rank) {
	select {
	case <-time.After(missingGrace):
		j.fault("rank %d on node%d has ended, but rank %d on node%d waits for it in a barrier",
			ended, j.config.Nodes[ended], waits, j.engine.config.Self)
	case <-j.context.Done():
	}
}
