package serve

import (
	"fmt"

	"margay/cluster/control"
	"margay/kernel/abi/slot"
)

// offer is what a node has to give: its number, how many application cores it has, and the free ones in ascending order.
type offer struct {
	node  uint32
	total int
	cores []uint32
}

// shape says how a job wants to lie on nodes and cores.
type shape struct {
	ranks   int
	perNode int // ranks on each node but the last; 0: as many as it has free cores for
	perCore int // ranks that share a core; 0: one, or as many as perNode needs
}

func shapeOf(spec *control.JobSpec) shape {
	return shape{ranks: int(spec.Ranks), perNode: int(spec.PerNode), perCore: int(spec.PerCore)}
}

// check refuses a shape that no node can have.
func (s shape) check() error {
	switch {
	case s.ranks == 0:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "a job has at least one rank")
	case s.perCore > slot.MaxTasks:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "%d ranks cannot share a core, %d can", s.perCore, slot.MaxTasks)
	}
	return nil
}

// cores returns how many cores of a node with so many n ranks take; 0 when they cannot run there, however free it is.
func (s shape) cores(total, n int) int {
	want := min(n, total)
	if s.perCore > 0 {
		want = (n + s.perCore - 1) / s.perCore
	}
	if want > total || n > want*slot.MaxTasks {
		return 0
	}
	return want
}

// on returns how many of the left ranks a node takes, and on how many cores.
func (s shape) on(o offer, left int) (ranks, cores int) {
	ranks = min(left, s.perNode)
	if s.perNode == 0 {
		ranks = min(left, len(o.cores)*max(1, s.perCore))
	}
	if cores = s.cores(o.total, ranks); cores > len(o.cores) {
		return 0, 0
	}
	return ranks, cores
}

// allocate places a job's ranks on the lowest free cores of the lowest nodes that can take their part of it. Neighbours are on
// the same node, and share a core when they share. It returns nil when there is too little room.
func allocate(offers []offer, s shape) []*control.Place {
	var places []*control.Place
	for _, o := range offers {
		ranks, cores := s.on(o, s.ranks-len(places))
		if cores == 0 {
			continue
		}
		for i := range ranks {
			places = append(places, &control.Place{Rank: uint32(len(places)), Node: o.node, Core: o.cores[i*cores/ranks]})
		}
	}
	if len(places) < s.ranks {
		return nil
	}
	return places
}

// lacks says what a job of this shape needs and what of that there is.
func (s shape) lacks(offers []offer) string {
	if s.perNode == 0 {
		free, total := 0, 0
		for _, o := range offers {
			free += len(o.cores)
			total += o.total
		}
		need := "need"
		if s.ranks == 1 {
			need = "needs"
		}
		text := fmt.Sprintf("%s %s %s, but %d of %d are free", count(s.ranks, "rank"), need,
			count((s.ranks+max(1, s.perCore)-1)/max(1, s.perCore), "application core"), free, total)
		switch {
		case free > 0 && s.perCore == slot.MaxTasks:
			text += fmt.Sprintf(": %s at most", count(free*slot.MaxTasks, "rank"))
		case free > 0 && s.perCore < slot.MaxTasks:
			text += fmt.Sprintf("; --ppn or --per-core N lets ranks share a core: at most %d ranks with --per-core %d", free*slot.MaxTasks, slot.MaxTasks)
		}
		return text
	}
	largest, now := offer{}, 0
	for _, o := range offers {
		if o.total > largest.total {
			largest = o
		}
		if _, cores := s.on(o, s.perNode); cores > 0 {
			now++
		}
	}
	cores := s.cores(largest.total, s.perNode)
	if cores == 0 {
		return fmt.Sprintf("a node of %s takes %s at most, %d on a core, not %d",
			count(largest.total, "application core"), count(largest.total*s.most(), "rank"), s.most(), s.perNode)
	}
	return fmt.Sprintf("%s, %d on a node, need %s with %s each, but %d of %d have that; a larger --ppn needs fewer nodes",
		count(s.ranks, "rank"), s.perNode, count((s.ranks+s.perNode-1)/s.perNode, "node"), count(cores, "free application core"), now, len(offers))
}

// count writes how many of something there are.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// most returns how many ranks can share a core.
func (s shape) most() int {
	if s.perCore > 0 {
		return s.perCore
	}
	return slot.MaxTasks
}
