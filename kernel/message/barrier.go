package message

import (
	"fmt"
	"math"
	"time"

	"margay/internal/tree"
	"margay/kernel/abi/id"
)

// parent returns the place of this node's parent in the job's tree, -1 for the root.
func (j *Job) parent() int {
	parent, ok := tree.Parent(j.self)
	if !ok {
		return -1
	}
	return parent
}

// children returns the places of this node's children in the job's tree.
func (j *Job) children() []int {
	return tree.Children(j.self, len(j.config.Members))
}

// childArrived notes that the subtree of a child has entered so many barriers.
func (j *Job) childArrived(member int, number uint64) {
	j.mu.Lock()
	for i, child := range j.children() {
		if child == member {
			j.ledger.arrived[i] = max(j.ledger.arrived[i], number)
		}
	}
	j.mu.Unlock()
	j.barrier()
}

// settle notes that a rank of this node has entered a barrier. Once all have, it asks the other nodes to say when they have the
// messages that were sent to them before. It may wait, like everybody who sends messages.
func (j *Job) settle() {
	j.sending.Lock()
	defer j.sending.Unlock()
	j.mu.Lock()
	entered, err := j.enteredHere()
	var late []int
	if err == nil && entered > j.entered {
		j.entered = entered
		copy(j.owed, j.ledger.sent)
		late = j.late()
	}
	j.mu.Unlock()
	if err != nil {
		j.fault("%v", err)
		return
	}
	for _, member := range late {
		if member != j.self {
			j.sendMessages(member, j.question(member))
		}
	}
	j.barrier()
}

// enteredHere returns how many barriers all ranks of this node have entered. The caller holds Job.mu.
func (j *Job) enteredHere() (uint64, error) {
	all := uint64(math.MaxUint64)
	for _, r := range j.local {
		entered, err := r.entered(*j.ledger.released)
		if err != nil {
			return 0, fmt.Errorf("rank %d on node%d: %w", r.number, j.engine.config.Self, err)
		}
		all = min(all, entered)
	}
	return all, nil
}

// late returns the members that may not yet have messages which were sent before the barrier, or be forwarding some. The caller
// holds Job.mu.
func (j *Job) late() (members []int) {
	for member, owed := range j.owed {
		came := j.came[member]
		if member == j.self {
			came = j.settled(member)
		}
		if owed > came {
			members = append(members, member)
		}
	}
	return members
}

// haveCome notes how many messages of this node's ranks a member has settled.
func (j *Job) haveCome(member int, number uint64) {
	j.mu.Lock()
	j.came[member] = max(j.came[member], number)
	j.mu.Unlock()
	j.barrier()
}

// barrier finds out whether this node's subtree is through with another barrier, and tells the parent, or everybody.
func (j *Job) barrier() {
	j.mu.Lock()
	j.missing()
	arrived := j.entered
	for i := range j.children() {
		arrived = min(arrived, j.ledger.arrived[i])
	}
	news := arrived > *j.ledger.told && len(j.late()) == 0
	if news {
		*j.ledger.told = arrived
	}
	j.mu.Unlock()
	switch {
	case !news:
	case j.parent() < 0:
		j.complete(arrived)
	default:
		j.send(j.parent(), j.newFrame(kindArrived, arrived))
	}
}

// missingGrace is how long the end of a rank has to end its job, when others wait for it in a barrier.
const missingGrace = 2 * time.Second

// missing faults the job when a rank waits in a barrier for one that has ended; unless the job ends because of how that rank has
// ended, which is the better reason. The caller holds Job.mu.
func (j *Job) missing() {
	for other, had := range j.ended {
		for _, r := range j.local {
			if r.seen > had && other != r.number && !j.isMissing && !j.closed {
				j.isMissing = true
				j.running.Go(func() { j.faultLater(other, r.number) })
			}
		}
	}
}

// faultLater faults the job because one rank waits for another, unless it ends before.
func (j *Job) faultLater(ended, waits id.Rank) {
	select {
	case <-time.After(missingGrace):
		j.fault("rank %d on node%d has ended, but rank %d on node%d waits for it in a barrier",
			ended, j.config.Nodes[ended], waits, j.engine.config.Self)
	case <-j.context.Done():
	}
}

// complete lets the ranks of this node's subtree out of the barriers up to number.
func (j *Job) complete(number uint64) {
	j.mu.Lock()
	news := number > *j.ledger.released
	*j.ledger.released = max(*j.ledger.released, number)
	j.mu.Unlock()
	if !news {
		return
	}
	for _, r := range j.local {
		r.release(number)
	}
	for _, child := range j.children() {
		j.send(child, j.newFrame(kindReleased, number))
	}
}

// rankEnded notes that a rank elsewhere has ended after entering so many barriers.
func (j *Job) rankEnded(number id.Rank, entered uint64) {
	j.mu.Lock()
	j.ended[number] = entered
	j.mu.Unlock()
	j.barrier()
}
