package serve

import (
	"slices"
	"time"

	"margay/cluster/control"
	"margay/internal/printable"
)

// A launch can hold spare nodes. When a node is lost before the ranks run, the client launches the
// job again, and the machine may be full by then. A job with spares has cores of more nodes than it
// needs, until its ranks run. If its launch loses a node, serve keeps the cores that are left for
// the next request with the same launch, for holdTime at most.

// holdTime is longer than a client waits before it launches again.
const holdTime = 10 * time.Second

// seatOf is a core of a node.
type seatOf struct {
	node *node
	core uint32
}

// held are the cores that serve keeps for the next try of a launch. They stay in use by the job of
// the last one.
type held struct {
	job   uint32
	seats []seatOf
	timer *time.Timer
}

// spares chooses n nodes that can each take the place of any node of a job: with as many free cores
// as the job has on one node at most. It returns fewer if there are fewer.
func spares(offers []offer, s shape, places []*control.Place, n int) (spare []*control.Place) {
	if n == 0 {
		return nil
	}
	has := make(map[uint32]map[uint32]bool) // cores, by node
	most := 0
	for _, p := range places {
		if has[p.Node] == nil {
			has[p.Node] = make(map[uint32]bool)
		}
		for _, core := range coresOf(p) {
			has[p.Node][core] = true
		}
		most = max(most, len(has[p.Node]))
	}
	for _, o := range offers {
		if len(spare) < n && has[o.node] == nil && s.mayUse(o.node) && len(o.cores) >= most {
			spare = append(spare, &control.Place{Node: o.node, Core: o.cores[0], More: o.cores[1:most]})
		}
	}
	return spare
}

// coresOf returns all cores of a place.
func coresOf(p *control.Place) []uint32 { return append([]uint32{p.Core}, p.More...) }

// fits reports whether the offers have room for a job and its spares.
func fits(offers []offer, spec *control.JobSpec) bool {
	places := allocate(offers, shapeOf(spec))
	return places != nil && len(spares(offers, shapeOf(spec), places, int(spec.Spares))) == int(spec.Spares)
}

// noSpares refuses a job because there are too few spare nodes.
func noSpares(spec *control.JobSpec, found int) error {
	return control.Failf(control.Code_CODE_NO_ROOM, "%s %s, but --spares %d needs as many other nodes with enough free cores, and there %s %d",
		printable.Count(int(spec.Ranks), "rank"), agree(int(spec.Ranks), "fits", "fit"), spec.Spares, agree(found, "is", "are"), found)
}

// keepForRetry keeps the cores of a job whose launch has lost a node, and frees cores on nodes that
// cannot be given jobs. It reports whether it keeps any. The caller holds Server.mu.
func (s *Server) keepForRetry(j *job) bool {
	if j.spec.Launch == "" || j.failure == nil || j.failure.Code != control.Code_CODE_LAUNCH_LOST {
		return false
	}
	h := &held{job: j.number}
	for _, p := range slices.Concat(j.places, j.spare) {
		for _, core := range coresOf(p) {
			switch n := s.nodes[p.Node]; {
			case n.uses[core].job != j.number:
			case n.inService():
				h.seats = append(h.seats, seatOf{n, core})
			default:
				delete(n.uses, core)
			}
		}
	}
	s.giveBack(j.spec.Launch)
	s.held[j.spec.Launch] = h
	h.timer = time.AfterFunc(holdTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[j.spec.Launch] == h {
			s.giveBack(j.spec.Launch)
			s.roomChanged()
		}
	})
	return true
}

// giveBack frees the cores that serve keeps for a launch, and reports whether there were any. The
// caller holds Server.mu.
func (s *Server) giveBack(launch string) bool {
	h := s.held[launch]
	if launch == "" || h == nil {
		return false
	}
	h.timer.Stop()
	delete(s.held, launch)
	for _, seat := range h.seats {
		if seat.node.uses[seat.core].job == h.job {
			delete(seat.node.uses, seat.core)
		}
	}
	return true
}

// free frees places of a job, for its allocation if it is a step. The caller holds Server.mu.
func (s *Server) free(j *job, places []*control.Place) {
	allocation := s.allocationOf(j)
	for _, p := range places {
		for _, core := range coresOf(p) {
			switch n := s.nodes[p.Node]; {
			case n.uses[core].job != j.number:
			case allocation != 0:
				n.uses[core] = use{job: allocation}
			default:
				delete(n.uses, core)
			}
		}
	}
}

// freeSpares frees the spares of a job, whose ranks run now. The caller holds Server.mu.
func (s *Server) freeSpares(j *job) {
	if len(j.spare) > 0 {
		s.free(j, j.spare)
		j.spare = nil
		s.roomChanged()
	}
}
