package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/roster"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// A machine grows and shrinks while serve runs:
//
//	grow:    client -- GrowMachine --> serve -- GrowMachine --> holder: records the roster
//	         holder -- Roster --> serve: expects the nodes --> holder starts them
//	shrink:  client -- ShrinkMachine --> serve: drains the nodes, which are to leave
//	         a node has no job: serve -- RemoveNode --> holder: records the roster, ends the node
//	         holder -- Roster --> serve: forgets the node
//
// The holder alone decides which nodes the machine has; serve takes that from its file at its
// start, and from each Roster. An order to leave is part of a node's drain, so it survives serve. A
// number can belong to one node after the other; the roster's term distinguishes them.

const (
	growTimeout   = 30 * time.Second // for the holder to add nodes
	removeTimeout = time.Minute      // for the holder to end a node
	retirePause   = 2 * time.Second  // before a node that the holder could not end is tried again
)

// members returns the nodes of the machine, by number. The caller holds Server.mu.
func (s *Server) members() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		for _, number := range s.roster.Nodes {
			if !yield(s.nodes[number]) {
				return
			}
		}
	}
}

// member returns the node of a number, nil if the machine has none. The caller holds Server.mu.
func (s *Server) member(number uint32) *node {
	if !s.roster.Has(number) {
		return nil
	}
	return s.nodes[number]
}

// adopt takes the machine's nodes from its holder: it forgets nodes that have left, and expects new
// ones.
func (s *Server) adopt(m *control.Roster) error {
	r := roster.Roster{Nodes: m.Nodes, Terms: m.Terms}
	if err := r.Check(); err != nil {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(r.Nodes, s.roster.Nodes) && slices.Equal(r.Terms, s.roster.Terms) {
		return nil
	}
	if err := s.forgetLeft(s.roster, r); err != nil {
		return s.onDisk(err)
	}
	for n := range s.members() {
		if r.Term(n.number) != n.term || !r.Has(n.number) {
			s.drop(n)
		}
	}
	s.seat(r)
	s.hinder(s.queue...)
	s.roomChanged()
	return nil
}

// seat makes r the machine's roster. Nodes that r shares with the last one stay as they are. The
// caller holds Server.mu.
func (s *Server) seat(r roster.Roster) {
	s.roster = r
	for number := range uint32(len(r.Terms)) {
		if int(number) == len(s.nodes) {
			s.nodes = append(s.nodes, newNode(number, r.Terms[number], s.config.Log))
		} else if n := s.nodes[number]; n.term != r.Terms[number] {
			n.closeLogs()
			s.nodes[number] = newNode(number, r.Terms[number], s.config.Log)
		}
		s.nodes[number].pace = max(s.nodes[number].pace, s.pace())
	}
}

// forgetLeft removes from the store what concerns nodes that are in one roster and not in the next
// one, and records the next one. The caller holds Server.mu.
func (s *Server) forgetLeft(last, next roster.Roster) error {
	var left []uint32
	var changed []*control.MachineExtension
	for _, number := range last.Nodes {
		if !next.Has(number) || next.Term(number) != last.Term(number) {
			left = append(left, number)
			changed = append(changed, s.leaveExtensions(number)...)
		}
	}
	if len(left) == 0 && slices.Equal(next.Nodes, last.Nodes) {
		return nil
	}
	for _, x := range changed {
		wanted := isWanted(x, next.Nodes)
		if !wanted {
			s.extensions = slices.DeleteFunc(s.extensions, func(other *control.MachineExtension) bool { return other == x })
		}
		if err := s.store.saveExtension(x, wanted); err != nil {
			return err
		}
	}
	return s.store.saveRoster(next, left)
}

// drop forgets a node that has left the machine. The caller holds Server.mu.
func (s *Server) drop(n *node) {
	n.turn(control.NodeHealth_NODE_DEAD, "it has left the machine")
	n.remedy, n.drain, n.info, n.retiring = "", nil, nil, false
	n.disconnect()
	if n.fresh != nil {
		go n.fresh.Close() // it waits for its writer
	}
	s.accountedFor(n.number)
	s.lose(n) // it has jobs only if its order to leave was taken back too late
	n.uses = make(map[uint32]use)
	s.config.Log("node%d has left the machine", n.number)
}

// grow makes the holder add nodes to the machine.
func (s *Server) grow(m *control.GrowMachine) (*control.NodesAdded, error) {
	return s.addNodes(m, m.User)
}

// addNodes has an order of a user to add nodes carried out by the holder.
func (s *Server) addNodes(order proto.Message, user string) (*control.NodesAdded, error) {
	s.mu.Lock()
	holder := s.holder
	s.mu.Unlock()
	if holder == nil {
		return nil, noHolder
	}
	ctx, cancel := context.WithTimeout(s.context, growTimeout)
	defer cancel()
	added, err := askFor[*control.NodesAdded](ctx, holder, order)
	if said := (*control.Failure)(nil); err != nil && !errors.As(err, &said) {
		return nil, control.Failf(control.Code_CODE_RESTARTED, "the machine's holder has not answered: %v", err)
	}
	if err == nil {
		s.config.Log("%s: added by %s", nodeset.Condense(added.Nodes), printable.Line(user))
	}
	return added, err
}

// approve makes the holder add nodes for machines that it names.
func (s *Server) approve(m *control.ApproveGuests) (*control.NodesAdded, error) {
	if len(m.Macs) == 0 || len(m.Macs) > roster.Most {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "%d machines are named, not 1 to %d", len(m.Macs), roster.Most)
	}
	return s.addNodes(m, m.User)
}

// noHolder refuses what only the holder can do while it is not connected, as after a start of
// serve.
var noHolder = control.Failf(control.Code_CODE_RESTARTED, "the machine's holder is not connected, and it starts the nodes; try again")

// shrink takes nodes out of service, for good: they leave when they have no job.
func (s *Server) shrink(m *control.ShrinkMachine) (*control.NodesLeaving, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes, err := s.leavers(m)
	if err != nil {
		return nil, err
	}
	by := printable.Line(m.User)
	drains := make(map[uint32]*control.Drain)
	answer := &control.NodesLeaving{Nodes: nodes}
	for _, number := range nodes {
		n := s.nodes[number]
		answer.Terms = append(answer.Terms, n.term)
		if len(s.liveJobs(n)) > 0 && !m.Now {
			answer.Busy = append(answer.Busy, number)
		}
		d := &control.Drain{User: by, SinceNs: time.Now().UnixNano(), Leave: true}
		if n.drain != nil {
			d.Reason, d.SinceNs = n.drain.Reason, n.drain.SinceNs
		}
		drains[number] = d
	}
	if err := s.setDrains(drains); err != nil {
		return nil, err
	}
	s.config.Log("%s: taken out of the machine by %s", nodeset.Condense(nodes), by)
	if m.Now {
		s.endJobsOn(nodes, "it was taken out of the machine by "+by)
	}
	s.retire()
	return answer, nil
}

// leavers returns the nodes that an order takes out of the machine. The caller holds Server.mu.
func (s *Server) leavers(m *control.ShrinkMachine) ([]uint32, error) {
	nodes, err := s.named(m.Nodes)
	if err != nil {
		return nil, err
	}
	for n := range s.members() {
		if !n.leaves() && !slices.Contains(nodes, n.number) {
			return nodes, nil
		}
	}
	return nil, control.Failf(control.Code_CODE_REFUSED, "at least one node stays in machine %s; margay machine down -m %[1]s ends all of it", s.config.Machine)
}

// leaves reports whether the node is to leave the machine. The caller holds Server.mu.
func (n *node) leaves() bool { return n.drain != nil && n.drain.Leave }

// retire makes the holder end the nodes that are to leave and have no job. The caller holds
// Server.mu.
func (s *Server) retire() {
	if s.holder == nil {
		return
	}
	for n := range s.members() {
		if n.leaves() && len(n.uses) == 0 && !n.retiring && time.Since(n.kept) >= retirePause {
			n.retiring = true
			asked := s.holder.Ask(&control.RemoveNode{Node: n.number, Term: n.term})
			s.running.Go(func() { s.retired(n, asked) })
		}
	}
}

// retired waits until the holder has ended a node, and tries again later if it could not.
func (s *Server) retired(n *node, asked *control.Question) {
	ctx, cancel := context.WithTimeout(s.context, removeTimeout)
	defer cancel()
	_, err := asked.Answer(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member(n.number) != n || s.context.Err() != nil {
		return
	}
	n.retiring, n.kept = false, time.Now()
	n.deeds.Printf("node%d cannot leave the machine yet: %v", n.number, cmp.Or(err, errors.New("the holder still has it")))
}

// evict takes nodes out of service and ends their jobs.
func (s *Server) evict(m *control.EvictNodes) (*control.NodesEvicted, error) {
	drained, err := s.drain(&control.DrainNodes{Nodes: m.Nodes, Reason: m.Reason, User: m.User})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.endJobsOn(drained.Busy, "evicted by "+printable.Line(m.User)+because(printable.Line(m.Reason)))
	if len(jobs) > 0 {
		s.config.Log("jobs %s: evicted from %s", numbers(jobs), nodeset.Condense(drained.Busy))
	}
	return &control.NodesEvicted{Jobs: jobs}, nil
}

// endJobsOn ends the jobs that have a part on one of the nodes, and returns them in order. The
// caller holds Server.mu.
func (s *Server) endJobsOn(nodes []uint32, why string) (ended []uint32) {
	for _, number := range nodes {
		n := s.member(number)
		if n == nil {
			continue // it has left just now
		}
		ended = append(ended, s.loseJobs(n, why)...)
	}
	slices.Sort(ended)
	return slices.Compact(ended)
}

// absentee explains why a machine has no node of a number. The caller holds Server.mu.
func (s *Server) absentee(number int64) string {
	if number >= 0 && s.roster.Term(uint32(number)) > 0 {
		return fmt.Sprintf("node%d has left the machine: its nodes are %v (margay nodes)", number, s.roster)
	}
	return fmt.Sprintf("the machine has no node%d: its nodes are %v (margay nodes)", number, s.roster)
}
