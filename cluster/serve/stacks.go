package serve

import (
	"context"
	"time"

	"margay/cluster/control"
)

// stacksTimeout bounds how long a node may take to read stacks. The node's own bounds are shorter.
const stacksTimeout = 20 * time.Second

// readStacks asks a node where the ranks of a job are, for a client.
func (c *client) readStacks(f *control.Frame, m *control.ReadStacks) {
	s := c.server
	s.mu.Lock()
	j := s.jobs[m.Job]
	switch {
	case j == nil || j.phase != control.JobPhase_JOB_RUNNING:
		s.mu.Unlock()
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_NOT_FOUND, "job %d is not running (margay ps)", m.Job))
		return
	case !j.on(m.Node):
		s.mu.Unlock()
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_NOT_FOUND, "job %d has no ranks on node%d", m.Job, m.Node))
		return
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.context, stacksTimeout)
	defer cancel()
	answer, err := s.call(ctx, m.Node, m)
	c.conn.Answer(f, answer, err)
}
