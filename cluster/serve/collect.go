package serve

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// readFilesTimeout bounds how long a node may take to read a chunk of a job's files. The node's own
// bounds are shorter.
const readFilesTimeout = 35 * time.Second

// collect lets the client of a job read the files that the ranks have written, before the nodes
// forget the job. It returns false if there is nothing to wait for: the client wants no files, is
// gone or has them already, or no rank has run. The client may take its time, as it may for output.
// The job ends if the client disconnects or the job is killed again. If the job has failed, collect
// kills its ranks at once rather than when the client reads their node, because reading the other
// nodes may take long. After a restart serve does not collect such a job, but knows that it has
// failed. The caller holds Server.mu.
func (s *Server) collect(j *job) bool {
	if !j.collects() {
		return false
	}
	if j.collecting {
		return true
	}
	j.collecting = true
	if j.failure != nil {
		s.saveRunning(j)
		s.killWith(j, unix.SIGKILL)
	}
	j.tellClient()
	return true
}

// collects reports whether the client of an ending job should read the files that its ranks have
// written. The caller holds Server.mu.
func (j *job) collects() bool {
	spoilt := j.failure != nil && j.phases.phase == control.Phase_PHASE_START
	return len(j.spec.Out) > 0 && j.client != nil && !j.collected && j.phase == control.JobPhase_JOB_RUNNING && !spoilt
}

// stopCollecting ends a job whose files are being read. The caller holds Server.mu.
func (s *Server) stopCollecting(j *job) {
	if j.collecting {
		j.collected = true
		s.finish(j)
	}
}

// readFiles asks a node for a chunk of a job's files, for the job's client.
func (c *client) readFiles(f *control.Frame, m *control.ReadFiles) {
	s := c.server
	s.mu.Lock()
	j := s.jobs[m.Job]
	if j == nil || j.client != c.conn && j.client != nil || j.finishing || !j.on(m.Node) {
		s.mu.Unlock()
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_NOT_FOUND, "job %d has no files on node%d that this client may read", m.Job, m.Node))
		return
	}
	if j.client == nil || !j.collecting { // a node ends the ranks before it reads their files
		s.mu.Unlock()
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_RESTARTED, "the files of job %d cannot be read yet", m.Job))
		return
	}
	if n := s.nodes[m.Node]; n.gone() { // retrying is pointless
		s.mu.Unlock()
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_FAILED, "%s", n.why()).At(m.Node))
		return
	}
	q := s.ask(m.Node, &control.ReadFiles{Job: m.Job, Node: m.Node, Offset: m.Offset, Paths: slices.Clone(j.spec.Out)})
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.context, readFilesTimeout)
	defer cancel()
	piece, err := q.answer(ctx)
	c.conn.Answer(f, piece, err)
}
