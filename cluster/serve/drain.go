package serve

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// A node is in service, draining or drained:
//
//	in service -- drain, it has a job --> draining -- its last job ends --> drained
//	in service -- drain, it has none --> drained
//	draining, drained -- resume --> in service
//
// Only the order of the operator, node.drain, is kept and recorded; whether a node is draining or drained follows from its cores. A node
// that is not in service is given no jobs. Nothing else changes for it: neither its health nor its extensions nor the jobs that it has.

// maxReason bounds the reason of a drain, in bytes.
const maxReason = 256

// inService reports whether the node can be given jobs. The caller holds Server.mu.
func (n *node) inService() bool { return n.up() && n.drain == nil }

// drained returns why the node is out of service, for a list of nodes; nil: it is not. The caller holds Server.mu.
func (n *node) drained() *control.Drain {
	if n.drain == nil {
		return nil
	}
	d := proto.CloneOf(n.drain)
	d.State = control.DrainState_DRAIN_DRAINED
	if len(n.uses) > 0 {
		d.State = control.DrainState_DRAIN_DRAINING
	}
	return d
}

// drain takes nodes out of service. For those that are already, it changes the reason and who gave it, unless there is no new one; they
// are out of service since the first order.
func (s *Server) drain(m *control.DrainNodes) (*control.NodesDrained, error) {
	if len(m.Reason) > maxReason {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "the reason has %d bytes, %d at most", len(m.Reason), maxReason)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes, err := s.named(m.Nodes)
	if err != nil {
		return nil, err
	}
	answer := new(control.NodesDrained)
	var changed []uint32
	drains := make(map[uint32]*control.Drain)
	now := time.Now().UnixNano()
	for _, number := range nodes {
		n := s.nodes[number]
		if len(n.uses) > 0 {
			answer.Busy = append(answer.Busy, number)
		}
		if n.drain != nil && m.Reason == "" {
			continue
		}
		d := &control.Drain{Reason: printable.Line(m.Reason), User: printable.Line(m.User), SinceNs: now}
		if n.drain != nil {
			d.SinceNs = n.drain.SinceNs
		}
		drains[number] = d
		changed = append(changed, number)
	}
	if len(changed) == 0 {
		return answer, nil
	}
	if err := s.setDrains(drains); err != nil {
		return nil, err
	}
	s.config.Log("%s: drained by %s%s", nodeset.Condense(changed), printable.Line(m.User), because(printable.Line(m.Reason)))
	return answer, nil
}

// resume takes nodes into service again that are not.
func (s *Server) resume(m *control.ResumeNodes) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes, err := s.named(m.Nodes)
	if err != nil {
		return err
	}
	var in []uint32
	drains := make(map[uint32]*control.Drain)
	for _, number := range nodes {
		if s.nodes[number].drain == nil {
			in = append(in, number)
		}
		drains[number] = nil
	}
	if len(in) > 0 {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "%s %s not drained, so nothing is changed (margay nodes)", nodeset.Condense(in), agree(len(in), "is", "are"))
	}
	if err := s.setDrains(drains); err != nil {
		return err
	}
	s.config.Log("%s: in service again", nodeset.Condense(nodes))
	return nil
}

// named returns the nodes that a request names in order, each once. It refuses those that the machine does not have. The caller holds
// Server.mu.
func (s *Server) named(nodes []uint32) ([]uint32, error) {
	if len(nodes) == 0 {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "it names no node")
	}
	nodes = slices.Clone(nodes)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	for _, number := range nodes {
		if int64(number) >= int64(len(s.nodes)) {
			return nil, s.noNode(int64(number))
		}
	}
	return nodes, nil
}

// setDrains records for nodes why they are drained, nil for those that are not, and then has it take effect. The caller holds Server.mu.
func (s *Server) setDrains(drains map[uint32]*control.Drain) error {
	if err := s.store.saveDrains(drains); err != nil {
		return s.onDisk(err)
	}
	for number, d := range drains {
		s.nodes[number].drain = d
	}
	s.hinder(s.queue...)
	s.roomChanged()
	return nil
}

// restoreDrains takes up which nodes an earlier serve has left drained. The caller holds Server.mu.
func (s *Server) restoreDrains() error {
	drains, err := s.store.drains()
	for number, d := range drains {
		if int64(number) < int64(len(s.nodes)) {
			s.nodes[number].drain = d
		}
	}
	return err
}

// leave notes in the log which draining nodes have lost their last job, when j has left them. The caller holds Server.mu.
func (s *Server) leave(j *job) {
	for _, m := range j.members {
		if n := s.nodes[m.Node]; n.drain != nil && len(n.uses) == 0 {
			s.config.Log("node%d is drained: its last job, %d, has ended", n.number, j.number)
		}
	}
}

// because is a reason as the end of a sentence.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// outOfService says which nodes that a job may use are drained, as the end of a sentence; nothing when there are none. The caller holds
// Server.mu.
func (s *Server) outOfService(spec *control.JobSpec) (text string) {
	shape := shapeOf(spec)
	reasons := make(map[string][]uint32)
	var order []string
	for _, n := range s.nodes {
		if n.drain == nil || !shape.mayUse(n.number) || n.info != nil && n.info.Arch != spec.Arch {
			continue
		}
		if reasons[n.drain.Reason] == nil {
			order = append(order, n.drain.Reason)
		}
		reasons[n.drain.Reason] = append(reasons[n.drain.Reason], n.number)
	}
	for i, reason := range order {
		if i == shownReasons {
			return text + "; ..."
		}
		nodes := reasons[reason]
		text += fmt.Sprintf("; %s %s drained%s", nodeset.Condense(nodes), agree(len(nodes), "is", "are"), because(reason))
	}
	return text
}

// shownReasons bounds how many reasons of drained nodes an error names.
const shownReasons = 3

// hinder notes which of the given jobs of the queue do not fit as long as nodes are drained. That changes when nodes are drained, resumed
// or describe themselves, and not when a job gets cores or leaves them. The caller holds Server.mu.
func (s *Server) hinder(jobs ...*waiting) {
	drained := slices.ContainsFunc(s.nodes, func(n *node) bool { return n.drain != nil })
	for _, w := range jobs {
		w.hindered = false
		if drained {
			offers, known := s.whole(w.spec.Arch, func(n *node) bool { return n.drain == nil })
			w.hindered = known && allocate(offers, shapeOf(w.spec)) == nil
		}
	}
}

// whole lists the nodes of an architecture that count, as if no job had any of their cores. It is not known when some of those that count
// have never registered. The caller holds Server.mu.
func (s *Server) whole(arch string, counts func(*node) bool) (offers []offer, known bool) {
	known = true
	for _, n := range s.nodes {
		switch {
		case !counts(n):
		case n.info == nil:
			known = false
		case n.info.Arch == arch:
			offers = append(offers, offer{node: n.number, total: len(n.info.Cores), cores: n.info.Cores})
		}
	}
	return offers, known
}
