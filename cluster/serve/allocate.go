package serve

import (
	"fmt"
	"slices"
	"strings"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/kernel/abi/slot"
)

// offer is what a node can give: its number, its count of application cores, and the free cores in
// ascending order.
type offer struct {
	node  uint32
	total int
	cores []uint32
}

// Free is a node with its count of application cores, and the free ones of these in ascending
// order.
type Free struct {
	Node  uint32
	Total int
	Cores []uint32
}

// Allocate returns the places of a job on nodes, which must be in ascending order, as a serve
// without extensions in slot place chooses them. It returns nil if there is not enough room, and an
// error for a job that fits no node.
func Allocate(spec *control.JobSpec, nodes []Free) ([]*control.Place, error) {
	s := shapeOf(spec)
	if err := s.check(); err != nil {
		return nil, err
	}
	offers := make([]offer, len(nodes))
	for i, n := range nodes {
		offers[i] = offer{node: n.Node, total: n.Total, cores: n.Cores}
	}
	return allocate(offers, s), nil
}

// shape describes how to lay a job out on nodes and cores.
type shape struct {
	ranks   int
	perNode int      // ranks on each node except the last; 0: as many as the node has free cores for
	perCore int      // ranks that share a core; 0: one, or as many as perNode needs
	each    int      // cores of each rank, none of them shared; 0: one, which may be shared
	nodes   int      // number of nodes over which ranks are spread as evenly as possible; 0: as few as possible
	only    []uint32 // nodes that may be used, in ascending order; none: all
	without []uint32 // nodes that may not be used, in ascending order
	whole   bool     // the ranks stand for cores, which nothing shares
}

func shapeOf(spec *control.JobSpec) shape {
	return shape{
		ranks: int(spec.Ranks), perNode: int(spec.PerNode), perCore: int(spec.PerCore), each: int(spec.CoresEach), nodes: int(spec.Nodes),
		only: spec.Only, without: spec.Without, whole: spec.Allocation,
	}
}

// mayUse reports whether the job may have ranks on a node.
func (s shape) mayUse(node uint32) bool {
	_, without := slices.BinarySearch(s.without, node)
	_, only := slices.BinarySearch(s.only, node)
	return !without && (only || len(s.only) == 0)
}

// check refuses a shape that fits no node.
func (s shape) check() error {
	switch {
	case s.ranks == 0:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "a job has at least one rank")
	case s.perCore > slot.MaxTasks:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "%d ranks cannot share a core, %d can", s.perCore, slot.MaxTasks)
	case s.each > 0 && s.perCore > 0:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "ranks that have cores of their own (-c) share none: --per-core and -c exclude each other")
	case s.nodes > s.ranks:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "%s cannot be on %s: each node needs one; a larger -n, or a smaller -N",
			printable.Count(s.ranks, "rank"), printable.Count(s.nodes, "node"))
	case s.nodes > 0 && s.perNode > 0 && (s.ranks+s.perNode-1)/s.perNode != s.nodes:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "%s, %d on a node, are on %s and not on %d: leave out -N, --ppn or -n",
			printable.Count(s.ranks, "rank"), s.perNode, printable.Count((s.ranks+s.perNode-1)/s.perNode, "node"), s.nodes)
	}
	return nil
}

// reachable refuses a job that may use none of the machine's nodes, or names others. The caller
// holds Server.mu.
func (s *Server) reachable(shape shape) error {
	for _, node := range slices.Concat(shape.only, shape.without) {
		if !s.roster.Has(node) {
			return control.Failf(control.Code_CODE_BAD_REQUEST, "%s", s.absentee(int64(node)))
		}
	}
	if slices.ContainsFunc(s.roster.Nodes, shape.mayUse) {
		return nil
	}
	flags := "-w and -x leave"
	if len(shape.only) == 0 {
		flags = "-x leaves"
	}
	return control.Failf(control.Code_CODE_BAD_REQUEST, "%s no node: the machine has %s", flags, nodeset.Condense(s.roster.Nodes))
}

// cores returns how many cores n ranks take on a node with this total; 0 if they cannot run there
// even when all its cores are free.
func (s shape) cores(total, n int) int {
	want := min(n, total)
	if s.each > 0 {
		want = n * s.each
		if want > total {
			return 0
		}
		return want
	}
	if s.perCore > 0 {
		want = (n + s.perCore - 1) / s.perCore
	}
	if want > total || n > want*slot.MaxTasks {
		return 0
	}
	return want
}

// on returns how many of the remaining ranks a node takes, and on how many cores.
func (s shape) on(o offer, left int) (ranks, cores int) {
	ranks = min(left, s.perNode)
	if s.perNode == 0 {
		ranks = min(left, len(o.cores)*max(1, s.perCore)/max(1, s.each))
	}
	if cores = s.cores(o.total, ranks); cores > len(o.cores) {
		return 0, 0
	}
	return ranks, cores
}

// part is what one offer gives to a job.
type part struct {
	offer
	ranks int
	taken int // cores, the lowest ones
}

// allocate places a job's ranks on the lowest free cores of the lowest nodes that can take their
// part of the job. Neighbouring ranks share a node, and a core if cores are shared. It returns nil
// if there is not enough room.
func allocate(offers []offer, s shape) []*control.Place { return s.places(s.parts(offers)) }

// parts divides a job among offers. Each takes its part in turn.
func (s shape) parts(offers []offer) (parts []part) {
	left := s.ranks
	large, small := s.shares()
	for _, o := range offers {
		if !s.mayUse(o.node) {
			continue
		}
		ranks, cores := s.on(o, left)
		if s.spreads() {
			ranks, cores = s.share(o, &large, &small)
		}
		if cores > 0 {
			parts = append(parts, part{o, ranks, cores})
			left -= ranks
		}
	}
	return parts
}

// places numbers the ranks of a job on its parts. It returns nil if the parts are not the whole
// job.
func (s shape) places(parts []part) []*control.Place {
	var places []*control.Place
	for _, p := range parts {
		for i := range p.ranks {
			own := p.cores[i*p.taken/p.ranks:][:max(1, s.each)]
			places = append(places, &control.Place{Rank: uint32(len(places)), Node: p.node, Core: own[0], More: own[1:]})
		}
	}
	if len(places) < s.ranks {
		return nil
	}
	return places
}

// spreads reports whether the ranks are spread over a number of nodes.
func (s shape) spreads() bool { return s.nodes > 0 && s.perNode == 0 }

// shares returns how many nodes get the larger share of spread ranks, and how many get the smaller
// one.
func (s shape) shares() (large, small int) {
	if !s.spreads() {
		return 0, 0
	}
	large = s.ranks % s.nodes
	return large, s.nodes - large
}

// share returns the ranks and cores that a node takes of a spread job, and subtracts the node's
// share from the remaining ones. The larger shares go first: a node that can take a larger share
// can also take a smaller one.
func (s shape) share(o offer, large, small *int) (ranks, cores int) {
	take := func(left *int, ranks int) (int, int) {
		need := (ranks + max(1, s.perCore) - 1) / max(1, s.perCore) * max(1, s.each)
		if *left == 0 || need > len(o.cores) {
			return 0, 0
		}
		*left--
		return ranks, need
	}
	if ranks, cores = take(large, s.ranks/s.nodes+1); cores > 0 {
		return ranks, cores
	}
	return take(small, s.ranks/s.nodes)
}

// lacks states what a job of this shape needs, and how much of that is available.
func (s shape) lacks(offers []offer) string {
	offers = slices.DeleteFunc(slices.Clone(offers), func(o offer) bool { return !s.mayUse(o.node) })
	if s.spreads() {
		most := (s.ranks + s.nodes - 1) / s.nodes
		free := freeOn(offers)
		if n := len(offers); n > 0 && n < s.nodes {
			free = fmt.Sprintf("only %s can be used: %s", printable.Count(n, "node"), free)
		}
		return fmt.Sprintf("%s, spread over %s, %s %s on each, but %s", printable.Count(s.ranks, "rank"), printable.Count(s.nodes, "node"), agree(s.ranks, "needs", "need"),
			printable.Count((most+max(1, s.perCore)-1)/max(1, s.perCore)*max(1, s.each), "free core"), free)
	}
	if s.each > 0 && s.perNode == 0 {
		return fmt.Sprintf("%s of %s%s not fit (the cores of a rank are on one node): %s",
			printable.Count(s.ranks, "rank"), printable.Count(s.each, "core"), agree(s.ranks, " does", " each do"), freeOn(offers))
	}
	if s.perNode == 0 {
		free, total := 0, 0
		for _, o := range offers {
			free += len(o.cores)
			total += o.total
		}
		text := fmt.Sprintf("%s %s %s, but %d of %d %s free", printable.Count(s.ranks, "rank"), agree(s.ranks, "needs", "need"),
			printable.Count((s.ranks+max(1, s.perCore)-1)/max(1, s.perCore), "application core"), free, total, agree(free, "is", "are"))
		switch {
		case s.whole:
		case free > 0 && s.perCore == slot.MaxTasks:
			text += fmt.Sprintf(": %s at most", printable.Count(free*slot.MaxTasks, "rank"))
		case free > 0 && s.perCore < slot.MaxTasks:
			text += fmt.Sprintf("; --ppn or --per-core N lets ranks share a core: at most %d ranks with --per-core %d", free*slot.MaxTasks, slot.MaxTasks)
		}
		return text
	}
	return s.lacksNodes(offers)
}

// lacksNodes is lacks for a job that needs a number of ranks on each node.
func (s shape) lacksNodes(offers []offer) string {
	if len(offers) == 0 {
		return fmt.Sprintf("%s, %d on a node: %s", printable.Count(s.ranks, "rank"), s.perNode, freeOn(nil))
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
	if cores == 0 && s.each > 0 {
		return fmt.Sprintf("a node of %s takes %s of %d cores each at most, not %d",
			printable.Count(largest.total, "application core"), printable.Count(largest.total/s.each, "rank"), s.each, s.perNode)
	}
	if cores == 0 {
		return fmt.Sprintf("a node of %s takes %s at most, %d on a core, not %d",
			printable.Count(largest.total, "application core"), printable.Count(largest.total*s.most(), "rank"), s.most(), s.perNode)
	}
	return fmt.Sprintf("%s, %d on a node, need %s with %s each, but %d of %d have that; a larger --ppn needs fewer nodes",
		printable.Count(s.ranks, "rank"), s.perNode, printable.Count((s.ranks+s.perNode-1)/s.perNode, "node"), printable.Count(cores, "free application core"), now, len(offers))
}

// freeOn lists the nodes that have free cores.
func freeOn(offers []offer) string {
	var parts []string
	for _, o := range offers {
		if len(parts) == shownJobs {
			parts = append(parts, "...")
			break
		}
		parts = append(parts, fmt.Sprintf("node%d has %d of %d free", o.node, len(o.cores), o.total))
	}
	if len(parts) == 0 {
		return "no such node is up and in service"
	}
	return strings.Join(parts, ", ")
}

// most returns how many ranks can share a core.
func (s shape) most() int {
	if s.perCore > 0 {
		return s.perCore
	}
	return slot.MaxTasks
}
