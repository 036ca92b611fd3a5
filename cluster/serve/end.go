package serve

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/internal/printable"
)

// ranksEnded notes the ends of ranks in a message. The first rank that fails determines the job's
// status, and ends the others. With KeepGoing, the lowest rank that fails determines it. All are
// recorded at once. The caller holds Server.mu.
func (s *Server) ranksEnded(j *job, m *control.Record) {
	news, failed := false, false
	for r := range records.Each(m) {
		if j.phase != control.JobPhase_JOB_RUNNING || j.ranks[r.Rank].exit != nil {
			continue
		}
		news, j.ends = true, true
		boundFault(r.Exit)
		if j.exited(int(r.Rank), r.Exit) {
			failed = true
			s.endOthers(j)
		}
		if failure := j.doubted[int(r.Rank)]; failure != nil && j.killing == 0 {
			s.fail(j, failure)
		}
	}
	switch {
	case !news:
		return
	case failed:
		s.saveRunning(j) // so that a later serve names the same rank
	default:
		s.recordSoon(j)
	}
	if j.ended() {
		for _, m := range j.members {
			s.finishOn(s.nodes[m.Node], j)
		}
	}
}

// Bounds of the place of a fault. A correct node stays below them.
const (
	faultFiles  = 64
	faultFrames = 64
	faultBuild  = 64 // bytes of a build id
)

// boundFault drops a place that takes more memory than one that a correct node reports.
func boundFault(exit *control.ExitStatus) {
	f := exit.GetFault()
	if f == nil {
		return
	}
	if len(f.Files) > faultFiles || max(len(f.Stack.GetFiles()), len(f.Stack.GetAddresses())) > faultFrames ||
		slices.ContainsFunc(f.Files, func(file *control.CodeFile) bool { return len(file.GetBuild()) > faultBuild }) {
		exit.Fault = nil
	}
}

// exited notes how a rank ended, and reports whether it is the first to fail. The caller holds
// Server.mu.
func (j *job) exited(number int, exit *control.ExitStatus) (first bool) {
	j.ranks[number].exit = exit
	if exit.Code == 0 && exit.Signal == 0 || j.failure != nil || j.limit.over {
		return false
	}
	first = j.first == control.None
	if first || j.spec.KeepGoing && number < j.first {
		j.first = number
	}
	return first
}

// finishOn asks a node to end the processes that a job's ranks have left behind, if they are all
// that keeps the job's output from being complete. The caller holds Server.mu.
func (s *Server) finishOn(n *node, j *job) {
	if j.ended() && !j.records.Ended(n.number) {
		n.send(&control.Finish{Job: j.number})
	}
}

// endOthers ends the remaining ranks after one has failed, unless the job should keep going. The
// caller holds Server.mu.
func (s *Server) endOthers(j *job) {
	if j.first != control.None && !j.spec.KeepGoing && len(j.ranks) > 1 {
		s.killRanks(j)
	}
}

// killRanks asks the ranks of a job to end, and forces them to after a while. The caller holds
// Server.mu.
func (s *Server) killRanks(j *job) {
	if j.spec.Allocation {
		s.finish(j)
		return
	}
	if j.killing != 0 {
		return
	}
	s.killWith(j, unix.SIGTERM)
	s.later(j, s.config.Timing.Kill, func() {
		if !j.ended() {
			s.killWith(j, unix.SIGKILL)
		}
	})
	s.awaitEnd(j)
}

func (s *Server) killWith(j *job, sig unix.Signal) {
	j.killing = sig
	for _, m := range j.members {
		s.killOn(s.nodes[m.Node], j)
	}
	if j.stopped() { // a stopped rank could not handle it
		s.signal(j, control.None, unix.SIGCONT)
	}
}

// killOn sends a node the last signal with which the job's ranks were asked to end; it may have
// been away then. The caller holds Server.mu.
func (s *Server) killOn(n *node, j *job) {
	if j.killing != 0 && !j.endedOn(n.number) {
		j.killed = time.Now()
		n.send(&control.Signal{Job: j.number, Rank: control.None, Signal: int32(j.killing)})
	}
}

// later calls do after a delay, with Server.mu held, unless the job or serve has ended by then.
func (s *Server) later(j *job, wait time.Duration, do func()) {
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.jobs[j.number] == j && s.context.Err() == nil {
			do()
		}
	})
}

// starting reports whether nodes have yet to start their ranks.
func (j *job) starting() bool { return j.phases.phase == control.Phase_PHASE_START }

// awaitEnd fails a job whose ranks do not end although they were killed. It waits longer as long as
// output that the consumer does not take holds up the ends of ranks, as long as nodes have yet to
// start theirs, and for nodes that may be back soon.
func (s *Server) awaitEnd(j *job) {
	s.later(j, 2*s.config.Timing.Kill+time.Second, func() {
		late := slices.ContainsFunc(j.members, func(m *control.Member) bool { return !j.endedOn(m.Node) && s.nodes[m.Node].late() })
		switch {
		case j.ended():
		case j.heldUp(), j.unsaved != nil, late, j.starting(), time.Since(j.killed) < s.config.Timing.Kill: // saveAgain bounds the second
			s.awaitEnd(j)
		default:
			s.fail(j, control.Failf(control.Code_CODE_TIMEOUT, "ranks of job %d do not end", j.number))
		}
	})
}

// ending reports whether a job is about to free its cores: its ranks were killed, or were recently
// asked to end.
func (j *job) ending() bool {
	return j.finishing || j.killing != 0 || time.Since(j.asked) < askedLately
}

// askedLately is how long serve assumes that ranks that were asked to end will do so.
const askedLately = 10 * time.Second

// finishIfComplete ends a job whose ranks have all ended and whose output has reached its consumer.
// That must be recorded before the nodes forget the job. The caller holds Server.mu.
func (s *Server) finishIfComplete(j *job) {
	if j.phase != control.JobPhase_JOB_RUNNING || !j.complete() {
		return
	}
	for i, r := range j.ranks {
		if r.exit == nil { // a fault of the node or of an earlier serve
			s.fail(j, control.Failf(control.Code_CODE_FAILED, "its output is complete, but how it ended was not reported").At(r.place.Node).Of(i))
			return
		}
	}
	collects := j.collects()
	if collects && j.collecting {
		return
	}
	if !collects {
		j.phase = control.JobPhase_JOB_ENDING
	}
	if s.saveRunning(j); j.unsaved != nil {
		j.phase = control.JobPhase_JOB_RUNNING
		return
	}
	if collects {
		s.collect(j)
		return
	}
	s.finish(j)
}

// awaitRecords ends a job whose ranks on a node have ended when the rest of their records does not
// arrive, so that the job does not wait forever. A slow consumer may take its time. saveAgain
// bounds the wait for a full disk. The caller holds Server.mu.
func (s *Server) awaitRecords(j *job) {
	patience := max(s.config.Timing.Records, s.config.Timing.deadAfter(s.pace())) // a silent node may be back
	if j.unsaved != nil || j.phase != control.JobPhase_JOB_RUNNING || !j.wantsRecords() || time.Since(j.moved) < patience {
		return
	}
	for _, m := range j.members {
		if j.waits(m.Node) {
			return
		}
	}
	for _, m := range j.members {
		if (j.ended() || j.over[m.Node] && !j.endedOn(m.Node)) && !j.records.Complete(m.Node) {
			s.fail(j, control.Failf(control.Code_CODE_TIMEOUT, "its ranks have ended, but the rest of what they wrote has not come for %v",
				patience).At(m.Node))
			return
		}
	}
}

// fail ends a job as a whole. Only the first reason counts, and none after the end was recorded,
// also by an earlier serve, whose successor has yet to ask the nodes. The caller holds Server.mu.
func (s *Server) fail(j *job, failure *control.Failure) {
	if j.failure != nil || j.finishing || j.phase == control.JobPhase_JOB_ENDING {
		return
	}
	s.config.Log("job %d: %v", j.number, failure)
	j.failure = failure
	close(j.failed)
	s.finish(j)
}

// quiet reports whether the log has a job only if it fails: an array may have 100,000 tasks, which
// are in the history.
func (s *Server) quiet(j *job) bool { return j.spec.Task != nil && s.history != nil }

// finish records why a job ends, asks all its nodes to forget it, frees its cores and then records
// its end. A node that is connected but does not answer may still have processes of the job, so it
// gets no other job until it has ended this one. The caller holds Server.mu.
func (s *Server) finish(j *job) {
	if j.finishing || s.collect(j) {
		return
	}
	if j.starting() { // the ranks have ended before all nodes have answered
		j.enter(control.Phase_PHASE_RUN)
	}
	j.enter(control.Phase_PHASE_END)
	j.finishing, j.torn = true, j.torn || j.phase == control.JobPhase_JOB_RUNNING && !j.complete() && !j.spec.Allocation
	s.endSteps(j)
	if j.phase != control.JobPhase_JOB_ENDING || j.unsaved != nil {
		j.phase = control.JobPhase_JOB_ENDING
		s.save(j) // if serve is killed now, its successor must not conclude that the nodes have lost the job
	}
	s.running.Go(func() {
		var forgetting sync.WaitGroup
		forgetting.Go(func() { s.forget(j) })
		early := s.announce(j)
		forgetting.Wait()
		var lacking error
		if !early {
			lacking = s.keep(j)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		j.tellLacking(lacking)
		s.remove(j)
		j.phase = control.JobPhase_JOB_DONE
		close(j.done)
		if s.save(j); j.unsaved != nil {
			s.ended[j.number] = j
		}
		j.phases.enter(control.Phase_PHASE_UNKNOWN)
		if j.spool != nil {
			j.spool.close()
		}
		if !s.quiet(j) || j.exitCode() != 0 {
			s.config.Log("job %d ended with status %d", j.number, j.exitCode())
		}
		if !early {
			j.tellClient()
		}
	})
}

// forget asks all nodes of a job to forget it, in turns. They receive it after all earlier
// requests, and step sends no further ones.
func (s *Server) forget(j *job) {
	s.mu.Lock()
	timeout := s.forgetTime()
	s.mu.Unlock()
	s.inTurns(j, timeout, nil, func(node uint32) *question {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ask(node, &control.Forget{Job: j.number})
	}, func(q *question, answer proto.Message, err error) {
		if err != nil {
			s.config.Log("job %d: end it on node%d: %v", j.number, q.node, err)
			s.insist(q.node, q.conn, j.number)
		} else if m, ok := answer.(*control.Forgotten); ok {
			s.forgotten(j, q.node, m.Unkept)
		}
	})
}

// announce writes the history record of an ended job, and then notifies the client while the nodes
// still forget the job. It returns false if only the nodes know some detail of the end, or if the
// job has no client. The job's cores look free, but no other job gets them before the nodes have
// forgotten this one.
func (s *Server) announce(j *job) bool {
	s.mu.Lock()
	early := j.client != nil && j.failure == nil && !j.torn && len(j.left) == len(j.members)
	s.mu.Unlock()
	if !early {
		return false
	}
	lacking := s.keep(j) // before a client can know that the job has ended
	s.mu.Lock()
	defer s.mu.Unlock()
	j.tellLacking(lacking)
	j.phases.enter(control.Phase_PHASE_UNKNOWN)
	j.announced = true
	j.tellClient()
	return true
}

// forgotten notes which files are lost with a job on a node.
func (s *Server) forgotten(j *job, node uint32, u *control.Unkept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !j.left[node] {
		j.lose(node, u)
	}
}

// lose is forgotten for a caller that holds Server.mu.
func (j *job) lose(node uint32, u *control.Unkept) {
	if u.GetFiles() == 0 {
		return
	}
	u.Node = node
	j.unkept = append(j.unkept, u)
	slices.SortFunc(j.unkept, func(a, b *control.Unkept) int { return int(a.Node) - int(b.Node) })
}

// maxWhy is how many bytes of a client's reason to give a job up are kept.
const maxWhy = 500

// isGone says of a client that it has ended, or has disconnected.
const isGone = "is gone"

// clientLeaves ends a job that its client gives up for a reason, which may be empty. The caller
// holds Server.mu.
func (s *Server) clientLeaves(j *job, why string) {
	gone := isGone
	if why != "" {
		gone = "gave up: " + printable.Short(why, maxWhy)
	}
	s.clientGone(j, gone)
}

// clientGone ends a job that has no client any more, unless the job can run without one. gone is
// the predicate of the reason, whose subject is the client. The caller holds Server.mu.
func (s *Server) clientGone(j *job, gone string) {
	j.client = nil
	switch {
	case j.phase == control.JobPhase_JOB_ENDING:
	case j.collecting, len(j.spec.Out) > 0 && j.complete():
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay run %s; it has not brought back all files", gone))
		s.finish(j)
	case j.spool != nil && j.phase == control.JobPhase_JOB_RUNNING:
	case j.complete(): // its end is being recorded
	case j.phase == control.JobPhase_JOB_PREPARED && gone == isGone:
		// Chunks of its files may be lost with the connection. If the client comes back, it asks
		// for the job again.
		s.fail(j, control.Failf(control.Code_CODE_RESTARTED, "the connection of its margay run was lost while the job was being launched"))
	case j.spec.Allocation:
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay alloc %s", gone))
	default:
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay run %s", gone))
	}
}
