package serve

import (
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// restore takes up what an earlier serve has left: the nodes that were members, which have some time to be heard again, those that
// were drained, and the jobs that were running, whose clients have some time to come back. A job that was still being launched is ended, since
// its files are lost.
func (s *Server) restore() error {
	members, err := s.store.nodes()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.extensions, err = s.store.extensions(); err != nil {
		return err
	}
	if err := s.restoreDrains(); err != nil {
		return err
	}
	for _, m := range members {
		if int(m.Node) < len(s.nodes) {
			control.Tame(m) // it may be of a serve that did not
			n := s.nodes[m.Node]
			n.health, n.reason, n.info, n.boots = control.NodeHealth_NODE_LATE, "it has not been heard since serve was started", m.Info, m.Boots
			s.absent[n.number] = true
		}
	}
	if len(s.absent) == 0 {
		close(s.heard)
	}
	var running []*control.StoredJob // restoring one may record it, for which the store must not be in use
	err = s.store.each(0, func(stored *control.StoredJob) {
		if stored.Summary.Phase != control.JobPhase_JOB_DONE {
			running = append(running, stored)
		}
	})
	var over []*job
	for _, stored := range running {
		if j := s.restoreJob(stored); j.phase != control.JobPhase_JOB_RUNNING || j.failure != nil || j.complete() && len(j.spec.Out) == 0 {
			over = append(over, j)
		}
	}
	s.running.Go(func() { s.settle(over) })
	return err
}

// restoreJob takes up one job. The caller holds Server.mu.
func (s *Server) restoreJob(stored *control.StoredJob) *job {
	j := newJob(stored.Summary.Job, stored.Spec, stored.Places)
	j.members = stored.Members
	j.created = time.Unix(0, stored.Summary.StartNs)
	j.phase = stored.Summary.Phase
	j.halt = unix.Signal(stored.Halt)
	for i, r := range stored.State.Ranks {
		if i < len(j.ranks) {
			j.ranks[i].exit = r.Exit
		}
	}
	if first := int(stored.State.FirstFailed); first >= 0 && first < len(j.ranks) && j.ranks[first].exit != nil {
		j.first = first
	}
	for _, node := range stored.Complete {
		j.records.RestoreComplete(node)
		j.noted[node] = true
	}
	for _, p := range j.places {
		s.nodes[p.Node].use(j.number, p)
	}
	s.jobs[j.number] = j
	switch j.phase {
	case control.JobPhase_JOB_PREPARED:
		j.failure = control.Failf(control.Code_CODE_RESTARTED, "serve was started again while the job was being launched")
		return j
	case control.JobPhase_JOB_RUNNING:
		if stored.State.Error != nil && !stored.Over { // its client was reading its files
			j.failure, j.collected = toFailure(stored.State.Error.Err()), true
		}
	case control.JobPhase_JOB_ENDING:
		s.restoreLimit(j, stored)
		if stored.State.Error != nil {
			j.failure = toFailure(stored.State.Error.Err())
			j.torn = stored.Summary.Missing != ""
		}
	}
	if j.spec.Detach {
		seen := make(map[uint32]uint64)
		spool, err := openSpool(s.config.Dir, j.number, func(r *control.Record) {
			seen[r.Node] = max(seen[r.Node], r.Seq)
			_ = j.told.take(r) // it was believed before
			if r.Exit != nil && j.hasRank(r.Rank, r.Node) && j.ranks[r.Rank].exit == nil {
				j.exited(int(r.Rank), r.Exit) // there was no room to note that
			}
		})
		if err != nil {
			if j.failure == nil { // else it has ended for another reason
				j.failure = toFailure(err)
			}
			return j
		}
		// What is in the spool is out of danger, whether its node has heard that or not.
		j.spool = spool
		for node, seq := range seen {
			j.records.Restore(node, seq)
		}
	}
	if j.phase == control.JobPhase_JOB_ENDING || j.failure != nil {
		return j
	}
	s.config.Log("job %d goes on", j.number)
	s.restoreLimit(j, stored)
	s.endOthers(j)
	if j.spool == nil {
		s.later(j, s.config.Timing.Orphan, func() {
			if j.client == nil {
				s.clientGone(j)
			}
		})
	}
	return j
}

// accountedFor notes that it is known again how a node fares. The caller holds Server.mu.
func (s *Server) accountedFor(node uint32) {
	if !s.absent[node] {
		return
	}
	delete(s.absent, node)
	if len(s.absent) == 0 {
		close(s.heard)
	}
}

// settle waits until it is known again how the nodes fare, and ends the jobs that are over: those whose launch the restart has
// spoilt, and those that had just ended.
func (s *Server) settle(over []*job) {
	select {
	case <-s.heard:
	case <-s.context.Done():
		return
	}
	s.mu.Lock()
	for _, j := range over {
		s.finish(j)
	}
	s.mu.Unlock()
	for _, j := range over {
		select {
		case <-j.done:
		case <-s.context.Done():
			return
		}
	}
	close(s.settled)
}
