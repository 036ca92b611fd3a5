package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// holderTimeout bounds how long the holder may take to stop a node, to start it, or both. By
// default each of two actions on the power of a node may take 30 s.
const holderTimeout = 75 * time.Second

// powerOrder is an order of an operator that the holder carries out: to end nodes, to start them,
// or both.
type powerOrder struct {
	nodes  []uint32
	ends   bool // nodes that run end
	again  bool // and start again
	force  bool // nodes that have jobs, too
	whole  bool // nodes that the holder cannot start again are refused
	done   string
	wanted func() bool // whether it still counts, with Server.mu held; nil: it does
	ask    func(node uint32) proto.Message
}

// reboot makes the holder stop nodes and start them again. The holder reports these stops and
// starts like any others.
func (s *Server) reboot(m *control.RebootNodes) (*control.Done, error) {
	by := printable.Line(m.User)
	return s.carryOut(powerOrder{
		nodes: m.Nodes, ends: true, again: true, force: m.Force, whole: true, done: "rebooted",
		ask: func(node uint32) proto.Message {
			return &control.RebootNode{Node: node, Why: "ended by order of " + by}
		},
	}, by)
}

// switchNodes makes the holder start nodes, or stop them until such an order.
func (s *Server) switchNodes(m *control.SwitchNodes) (*control.Done, error) {
	by := printable.Line(m.User)
	way := "switched off"
	if m.On {
		way = "switched on"
	}
	return s.carryOut(powerOrder{
		nodes: m.Nodes, ends: !m.On, force: m.Force, done: way,
		ask: func(node uint32) proto.Message {
			return &control.SwitchNode{Node: node, On: m.On, Why: way + " by " + by}
		},
	}, by)
}

// switchedOff processes the holder's report that a node is off and is not started again. The caller
// holds Server.mu.
func (s *Server) switchedOff(n *node, reason string, waits bool) {
	n.deeds.Printf("node%d is off: %s", n.number, reason)
	remedy := fmt.Sprintf("margay node power on -m %s node%d starts it", s.config.Machine, n.number)
	if waits {
		remedy = "" // the reason has it
	}
	s.part(n, control.NodeHealth_NODE_OFF, reason, remedy)
	n.stage, n.waits = nil, waits
	s.hinder(s.queue...)
	s.roomChanged() // for jobs behind those that wait for the node
}

// order is carryOut for callers that have no notices to pass on.
func (s *Server) order(o powerOrder, by string) error {
	_, err := s.carryOut(o, by)
	return err
}

// carryOut makes the holder carry out an order, and returns its notices. Until the holder has
// answered, the old boot of a node that ends cannot register: it would get jobs right when it is
// being stopped.
func (s *Server) carryOut(o powerOrder, by string) (*control.Done, error) {
	nodes, asked, err := s.give(o, by)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.context, holderTimeout)
	defer cancel()
	done := new(control.Done)
	var errs []error
	for i, number := range nodes {
		m, err := asked[i].Answer(ctx)
		if answer, ok := m.(*control.Done); ok {
			done.Notices = append(done.Notices, answer.Notices...)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("node%d is not %s: %w", number, o.done, err))
		}
		if o.ends {
			s.mu.Lock()
			s.nodes[number].leaving = ""
			s.mu.Unlock()
		}
	}
	if len(errs) > 0 {
		return nil, control.Failf(control.Code_CODE_NODE_LOST, "%v", errors.Join(errs...))
	}
	return done, nil
}

// give passes an order to the holder, unless one of the nodes is refused.
func (s *Server) give(o powerOrder, by string) (nodes []uint32, asked []*control.Question, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if nodes, err = s.named(o.nodes); err != nil {
		return nil, nil, err
	}
	if o.wanted != nil && !o.wanted() {
		return nil, nil, errPast
	}
	if s.holder == nil {
		return nil, nil, noHolder
	}
	for _, number := range nodes {
		if err := s.refuses(o, s.nodes[number]); err != nil {
			return nil, nil, err
		}
	}
	for _, number := range nodes {
		n := s.nodes[number]
		if o.ends {
			n.leaving = n.boot
			n.disconnect()
		}
		asked = append(asked, s.holder.Ask(o.ask(number)))
	}
	s.config.Log("%s: %s by %s", nodeset.Condense(nodes), o.done, by)
	return nodes, asked, nil
}

// refuses returns an error if a node cannot get an order. The caller holds Server.mu.
func (s *Server) refuses(o powerOrder, n *node) error {
	if n.leaving != "" {
		return control.Failf(control.Code_CODE_REFUSED, "it is being rebooted or switched off already").At(n.number)
	}
	if o.again && n.health == control.NodeHealth_NODE_OFF {
		return control.Failf(control.Code_CODE_REFUSED, "it is %s", n.why()).At(n.number)
	}
	if o.whole && n.byHand != "" {
		return control.Failf(control.Code_CODE_REFUSED, "it can be rebooted by hand alone: %s", n.byHand).At(n.number)
	}
	if jobs := s.liveJobs(n); len(jobs) > 0 && o.ends && !o.force {
		return control.Failf(control.Code_CODE_REFUSED, "it has %s %s: drain it and wait, or end them with --force",
			agree(len(jobs), "job", "jobs"), numbers(jobs)).At(n.number)
	}
	return nil
}

// liveJobs returns the jobs that hold cores of a node, in order. It omits jobs that have ended as
// far as their client knows. The caller holds Server.mu.
func (s *Server) liveJobs(n *node) []uint32 {
	return slices.DeleteFunc(n.jobs(), func(job uint32) bool { j := s.jobs[job]; return j != nil && j.announced })
}
