package serve

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/records"
)

// restore loads the state that an earlier serve has left: member nodes, which get some time to
// register again, drained nodes, and running jobs, whose clients get some time to come back. It
// ends jobs that were still being launched, because their files are lost.
func (s *Server) restore() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, err := s.store.roster()
	if err != nil {
		return err
	}
	if s.extensions, err = s.store.extensions(); err != nil {
		return err
	}
	if err := s.restorePlacers(); err != nil {
		return err
	}
	if err := s.forgetLeft(last, s.roster); err != nil {
		return err
	}
	members, err := s.store.nodes()
	if err != nil {
		return err
	}
	if err := s.restoreDrains(); err != nil {
		return err
	}
	if s.update, err = s.store.update(); err != nil {
		return err
	}
	for _, m := range members {
		if n := s.member(m.Node); n != nil {
			control.Tame(m) // an earlier version of serve may have stored it untamed
			n.health, n.reason, n.info, n.boots = control.NodeHealth_NODE_LATE, "it has not registered since serve was started", m.Info, m.Boots
			n.firmware.panic = m.Panic
			s.absent[n.number] = true
		}
	}
	if len(s.absent) == 0 {
		close(s.heard)
	}
	var running []*control.StoredJob // restoring a job may record it, which needs a store that is not in use
	ends := make(map[uint32]int64)   // of jobs
	err = s.store.each(0, func(stored *control.StoredJob) {
		if stored.Summary.Phase != control.JobPhase_JOB_DONE {
			running = append(running, stored)
		} else {
			ends[stored.Summary.Job] = stored.Summary.EndNs
		}
	})
	s.remembered = slices.SortedFunc(maps.Keys(ends), func(a, b uint32) int { return cmp.Or(cmp.Compare(ends[a], ends[b]), cmp.Compare(a, b)) })
	if err == nil && len(s.remembered) > s.remember {
		err = s.store.forgetJobs(s.remembered[:len(s.remembered)-s.remember])
		for _, job := range s.remembered[:len(s.remembered)-s.remember] {
			s.dropOutput(job)
		}
		s.remembered = s.remembered[len(s.remembered)-s.remember:]
	}
	var over []*job
	for _, stored := range running {
		if j := s.restoreJob(stored); j.phase != control.JobPhase_JOB_RUNNING || j.failure != nil || j.complete() && len(j.spec.Out) == 0 {
			over = append(over, j)
		}
	}
	s.running.Go(func() { s.settle(over) })
	return err
}

// restoreJob restores one job. The caller holds Server.mu.
func (s *Server) restoreJob(stored *control.StoredJob) *job {
	j := newJob(stored.Summary.Job, stored.Spec, stored.Places)
	j.members = stored.Members
	j.created = time.Unix(0, stored.Summary.StartNs)
	j.phase = stored.Summary.Phase
	j.halt = unix.Signal(stored.Halt)
	j.launcher = launcher{stored.Launcher, stored.LauncherStart}
	j.confirmed = true // as far as is known
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
		s.nodes[p.Node].use(j, p)
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
		for _, p := range j.places { // no news of such a node will come
			if j.failure == nil && s.member(p.Node) == nil && !j.records.Complete(p.Node) {
				j.failure = control.Failf(control.Code_CODE_NODE_LOST, "it has left the machine").At(p.Node)
			}
		}
		if j.failure == nil && j.spec.Step != 0 && s.allocationOf(j) == 0 { // which was restored before
			j.failure = endedWith(j)
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
		spool, err := openSpool(s.config.Dir, j.number, func(m *control.Record) {
			seen[m.Node] = max(seen[m.Node], records.Newest(m))
			_ = j.told.take(m) // it was accepted before
			for r := range records.Each(m) {
				if r.Exit != nil && j.hasRank(r.Rank, r.Node) && j.ranks[r.Rank].exit == nil {
					j.exited(int(r.Rank), r.Exit) // there was no room to record that
				}
			}
		})
		if err != nil {
			if j.failure == nil { // otherwise it has ended for another reason
				j.failure = toFailure(err)
			}
			return j
		}
		// Records in the spool are safe, whether or not the node has received an acknowledgement.
		j.spool = spool
		s.outputs.watch(spool, j.number, j.spec)
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
		s.awaitClient(j, s.config.Timing.Orphan, "has not come back after a restart of serve")
	}
	return j
}

// accountedFor notes that the health of a node is known again. The caller holds Server.mu.
func (s *Server) accountedFor(node uint32) {
	if !s.absent[node] {
		return
	}
	delete(s.absent, node)
	if len(s.absent) == 0 {
		close(s.heard)
	}
}

// settle waits until the health of all nodes is known again, and ends the jobs that are over: jobs
// whose launch the restart interrupted, and jobs that had just ended.
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
