package serve

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/update"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// A node is in service, draining or drained:
//
//	in service -- drain, it has a job --> draining -- its last job ends --> drained
//	in service -- drain, it has none --> drained
//	draining, drained -- resume --> in service
//
// A drained node that is ordered to leave the machine does so (member.go).
//
// Only the operator's order, node.drain, is kept and recorded; whether a node is draining or
// drained follows from its cores. A node that is not in service gets no new jobs. Its health, its
// extensions and its running jobs do not change.

// maxReason bounds the reason of a drain, in bytes.
const maxReason = 256

// inService reports whether the node can be given jobs. The caller holds Server.mu.
func (n *node) inService() bool { return n.up() && !n.out() }

// out reports whether the node gets no jobs until an operator changes that, or it is well again: it
// is drained, switched off, or ill. The caller holds Server.mu.
func (n *node) out() bool {
	return n.drain != nil || n.health == control.NodeHealth_NODE_OFF || n.fit.Ill() != ""
}

// drained returns why the node is out of service, for a list of nodes; nil if it is in service. The
// caller holds Server.mu.
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

// drain takes nodes out of service. For nodes that are already out of service it changes the reason
// and the author of the order, unless the request has no reason; such nodes count as out of service
// since the first order. The reason of an update does not stay.
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
		if n.drain != nil && m.Reason == "" && !s.drainedByUpdate(number) {
			continue
		}
		d := &control.Drain{Reason: printable.Line(m.Reason), User: printable.Line(m.User), SinceNs: now}
		if n.drain != nil {
			d.SinceNs, d.Leave = n.drain.SinceNs, n.drain.Leave
		}
		drains[number] = d
		changed = append(changed, number)
	}
	if len(changed) == 0 {
		return answer, nil
	}
	if err := s.changeUpdate(update.Drained(s.update, nodes), drains); err != nil {
		return nil, err
	}
	s.config.Log("%s: drained by %s%s", nodeset.Condense(changed), printable.Line(m.User), because(printable.Line(m.Reason)))
	return answer, nil
}

// resume returns drained nodes to service. An update that drains one of them stops.
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
		n := s.nodes[number]
		if n.drain == nil {
			in = append(in, number)
		}
		if n.retiring {
			return control.Failf(control.Code_CODE_REFUSED, "it is just being ended, because it leaves the machine").At(number)
		}
		if u := s.updateOf(number); u != nil && update.Held(u.Stage) {
			return control.Failf(control.Code_CODE_REFUSED, "it is being updated to image %s", s.update.Image).At(number)
		}
		drains[number] = nil
	}
	if len(in) > 0 {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "%s %s not drained, so nothing is changed (margay nodes)", nodeset.Condense(in), agree(len(in), "is", "are"))
	}
	if err := s.changeUpdate(update.Resumed(s.update, nodes, printable.Line(m.User), time.Now()), drains); err != nil {
		return err
	}
	s.config.Log("%s: in service again", nodeset.Condense(nodes))
	return nil
}

// named returns the nodes in a request, in order and without duplicates. It refuses nodes that the
// machine does not have. The caller holds Server.mu.
func (s *Server) named(nodes []uint32) ([]uint32, error) {
	if len(nodes) == 0 {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "it names no node")
	}
	nodes = slices.Clone(nodes)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	for _, number := range nodes {
		if s.member(number) == nil {
			return nil, s.noNode(int64(number))
		}
	}
	return nodes, nil
}

// setDrains records why nodes are drained, nil for nodes that are not, and then applies the change.
// The caller holds Server.mu.
func (s *Server) setDrains(drains map[uint32]*control.Drain) error {
	if err := s.store.saveDrains(drains); err != nil {
		return s.onDisk(err)
	}
	s.drainsChanged(drains)
	return nil
}

// drainsChanged applies a change of drains that has been recorded. The caller holds Server.mu.
func (s *Server) drainsChanged(drains map[uint32]*control.Drain) {
	for number, d := range drains {
		s.nodes[number].drain = d
	}
	s.hinder(s.queue...)
	s.roomChanged()
}

// restoreDrains restores the drained nodes of an earlier serve. The caller holds Server.mu.
func (s *Server) restoreDrains() error {
	drains, err := s.store.drains()
	for number, d := range drains {
		if n := s.member(number); n != nil {
			n.drain = d
		}
	}
	return err
}

// leave logs which draining nodes have lost their last job now that j has left them. The caller
// holds Server.mu.
func (s *Server) leave(j *job) {
	for _, node := range j.nodes() {
		if n := s.nodes[node]; n.drain != nil && len(n.uses) == 0 {
			s.config.Log("node%d is drained: its last job, %d, has ended", n.number, j.number)
		}
	}
}

// because formats a reason as the end of a sentence.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// outOfService names the drained, ill and switched off nodes that a job may use, as the end of a
// sentence; it is empty if there are none. The caller holds Server.mu.
func (s *Server) outOfService(spec *control.JobSpec) (text string) {
	shape := shapeOf(spec)
	reasons := make(map[string][]uint32)
	var order []string
	for n := range s.members() {
		if !n.out() || !shape.mayUse(n.number) || n.info != nil && n.info.Arch != spec.Arch {
			continue
		}
		reason := "ill: " + n.fit.Ill()
		switch {
		case n.health == control.NodeHealth_NODE_OFF:
			reason = n.reason
		case n.drain != nil:
			reason = "drained" + because(n.drain.Reason)
		}
		if reasons[reason] == nil {
			order = append(order, reason)
		}
		reasons[reason] = append(reasons[reason], n.number)
	}
	for i, reason := range order {
		if i == shownReasons {
			return text + "; ..."
		}
		nodes := reasons[reason]
		text += fmt.Sprintf("; %s %s %s", nodeset.Condense(nodes), agree(len(nodes), "is", "are"), reason)
	}
	return text
}

// shownReasons bounds how many drain reasons an error names.
const shownReasons = 3

// hinder marks the given queued jobs that do not fit as long as nodes are drained, off or ill, or
// as long as the machine is smaller than it was. The result changes when a node is drained, is
// resumed, is switched off or on, becomes ill or well, describes itself, comes or leaves, but not
// when a job gets or frees cores. The caller holds Server.mu.
func (s *Server) hinder(jobs ...*waiting) {
	for _, w := range jobs {
		offers, known := s.whole(w.spec, func(n *node) bool { return !n.out() })
		if hindered := known && !fits(offers, w.spec); hindered != w.hindered {
			w.hindered, s.counted = hindered, false
		}
	}
}

// whole lists the nodes of a job's architecture that satisfy counts, as if all their cores were
// free; for a step, its allocation. The list is not known if one of the nodes that satisfy counts
// has never registered. The caller holds Server.mu.
func (s *Server) whole(spec *control.JobSpec, counts func(*node) bool) (offers []offer, known bool) {
	if spec.Step != 0 {
		return s.stepOffers(spec.Step, func(*node, uint32) bool { return true }), true
	}
	known = true
	for n := range s.members() {
		switch {
		case !counts(n):
		case n.info == nil:
			known = false
		case n.info.Arch == spec.Arch:
			offers = append(offers, offer{node: n.number, total: len(n.info.Cores), cores: n.info.Cores})
		}
	}
	return offers, known
}
