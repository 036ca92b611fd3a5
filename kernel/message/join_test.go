package message

import (
	"slices"
	"testing"

	"margay/internal/check"
	"margay/internal/tree"
	"margay/kernel/abi/id"
)

// ended returns the ranks that a node knows to have ended, in order.
func (j *Job) endedRanks() (ranks []id.Rank) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for rank := range j.barrier.Ended() {
		ranks = append(ranks, rank)
	}
	slices.Sort(ranks)
	return ranks
}

// usesMessages reports whether a node knows that the job uses messages.
func (j *Job) usesMessages() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.inUse
}

// That a job uses messages, and which ranks have ended, goes along the job's tree: no node needs a
// connection to all others. A node kernel that was killed learns it again, and so do the nodes
// behind it.
func TestNewsAlongTree(t *testing.T) {
	const nodes = 7
	j := open(t, nodes, 1)
	know := func(ranks ...id.Rank) {
		t.Helper()
		for _, n := range j.nodes {
			check.Await(t, "news at each node", func() bool { return n.job.usesMessages() && slices.Equal(n.job.endedRanks(), ranks) })
		}
	}
	j.nodes[3].job.Ended(3) // before the job uses messages
	check.Await(t, "end of a rank", func() bool { return len(j.nodes[3].job.endedRanks()) == 1 })
	j.join(5)
	know(3)
	j.nodes[6].job.Ended(6)
	know(3, 6)
	for place, n := range j.nodes {
		n.port.mu.Lock()
		for from := range n.port.in {
			parent, _ := tree.Parent(int(from))
			above, _ := tree.Parent(place)
			if parent != place && above != int(from) {
				t.Errorf("node%d sends frames to node%d, which is not next to it", from, place)
			}
		}
		n.port.mu.Unlock()
	}
	j.lose(1, 0, true)
	j.nodes[4].job.Ended(4) // is reported to node 1, and not further
	check.Await(t, "end of a rank", func() bool { return slices.Contains(j.nodes[1].job.endedRanks(), 4) })
	j.restart(1)
	j.lose(1, 0, false)
	know(3, 4, 6)
	j.noFault()
}

// A node reports only the ranks behind it.
func TestForeignEnds(t *testing.T) {
	j := open(t, 7, 1)
	j.join(0)
	for _, c := range []struct {
		at, from int
		rank     id.Rank
	}{{1, 3, 4}, {1, 3, 1}, {1, 3, 0}, {1, 0, 3}, {0, 1, 2}, {0, 3, 3}, {0, 1, 7}} {
		n := j.nodes[c.at].job
		n.rankEnded(c.from, c.rank, 0, 0)
		if got := n.endedRanks(); len(got) > 0 {
			t.Errorf("node%d believes node%d that ranks %v have ended", c.at, c.from, got)
		}
	}
	j.nodes[0].job.rankEnded(1, 3, 0, 0)
	if got := j.nodes[0].job.endedRanks(); !slices.Equal(got, []id.Rank{3}) {
		t.Errorf("node0 knows the ends of %v", got)
	}
}
