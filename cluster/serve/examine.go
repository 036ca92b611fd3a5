package serve

import (
	"time"

	"margay/cluster/control"
	"margay/cluster/fitness"
)

// examine decides from a node's heartbeat whether the node is well enough to be given jobs. What
// the node has is its own claim: a node that lies harms jobs in many other ways. The caller holds
// Server.mu.
func (s *Server) examine(n *node, m *control.Vitals) {
	n.vitals = m
	v := fitness.Vitals{Memory: n.free, Space: -1, ClockError: -1}
	if m != nil {
		v.Space, v.Clock, v.ClockError = m.Space, time.Duration(m.ClockNs), time.Duration(m.ClockErrorNs)
	}
	was := n.fit.Ill()
	if !n.fit.Read(time.Now(), s.config.Fitness, v, len(n.uses) == 0) {
		return
	}
	if ill := n.fit.Ill(); ill != "" {
		n.deeds.Printf("node%d gets no jobs until it is well: %s", n.number, ill)
	} else {
		n.deeds.Printf("node%d is well again: %s", n.number, was)
	}
	s.hinder(s.queue...)
	s.roomChanged()
}
