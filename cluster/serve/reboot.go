package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// rebootTimeout bounds how long the holder may take to stop a node and start it.
const rebootTimeout = 30 * time.Second

// reboot makes the holder stop nodes and start them again. Until the holder has answered, the old
// boot of a node cannot register: it would get jobs right when it is being stopped. The holder
// reports these stops and starts like any others.
func (s *Server) reboot(m *control.RebootNodes) error {
	by := printable.Line(m.User)
	nodes, asked, err := s.orderReboot(m, by)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.context, rebootTimeout)
	defer cancel()
	var errs []error
	for i, number := range nodes {
		if _, err := asked[i].Answer(ctx); err != nil {
			errs = append(errs, fmt.Errorf("node%d is not rebooted: %w", number, err))
		}
		s.mu.Lock()
		s.nodes[number].leaving = ""
		s.mu.Unlock()
	}
	if len(errs) > 0 {
		return control.Failf(control.Code_CODE_NODE_LOST, "%v", errors.Join(errs...))
	}
	return nil
}

// orderReboot asks the holder to reboot the nodes that m names, unless one of them is refused.
func (s *Server) orderReboot(m *control.RebootNodes, by string) (nodes []uint32, asked []*control.Question, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if nodes, err = s.named(m.Nodes); err != nil {
		return nil, nil, err
	}
	if s.holder == nil {
		return nil, nil, noHolder
	}
	for _, number := range nodes {
		n := s.nodes[number]
		if n.leaving != "" {
			return nil, nil, control.Failf(control.Code_CODE_REFUSED, "it is being rebooted already").At(number)
		}
		jobs := s.liveJobs(n)
		if len(jobs) > 0 && !m.Force {
			return nil, nil, control.Failf(control.Code_CODE_REFUSED, "it has %s %s: drain it and wait, or end them with --force",
				agree(len(jobs), "job", "jobs"), numbers(jobs)).At(number)
		}
	}
	for _, number := range nodes {
		n := s.nodes[number]
		n.leaving = n.boot
		n.disconnect()
		asked = append(asked, s.holder.Ask(&control.RebootNode{Node: number, Why: "ended by order of " + by}))
	}
	s.config.Log("%s: rebooted by %s", nodeset.Condense(nodes), by)
	return nodes, asked, nil
}

// liveJobs returns the jobs that hold cores of a node, in order. It omits jobs that have ended as
// far as their client knows. The caller holds Server.mu.
func (s *Server) liveJobs(n *node) []uint32 {
	return slices.DeleteFunc(n.jobs(), func(job uint32) bool { j := s.jobs[job]; return j != nil && j.announced })
}
