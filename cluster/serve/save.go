package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// save records a job. While that fails, the job's nodes keep the records of its state, because
// serve does not release them. The caller holds Server.mu.
func (s *Server) save(j *job) {
	before, forget := j.unsaved, s.outdatedBy(j)
	j.unsaved = nil // the recorded state must not contain an earlier error
	if j.unsaved = s.onDisk(s.store.saveJob(j, forget)); j.unsaved != nil && before == nil {
		s.config.Log("job %d cannot be recorded: %v", j.number, j.unsaved)
	}
	for _, m := range j.members {
		j.noted[m.Node] = j.noted[m.Node] || j.unsaved == nil && j.records.Complete(m.Node)
	}
	j.ends = j.ends && j.unsaved != nil
	if j.unsaved == nil && j.phase == control.JobPhase_JOB_DONE {
		s.remembers(j.number, forget)
	}
}

// saveRunning is save for a job that continues even if it cannot be recorded. It notifies the job's
// client of the error. The caller holds Server.mu.
func (s *Server) saveRunning(j *job) {
	before := j.unsaved
	if s.save(j); before == nil {
		j.tellUnsaved()
	}
}

// recorded reports whether the job's record is up to date in everything that must be recorded
// before its nodes forget it. The caller holds Server.mu.
func (j *job) recorded() bool {
	if j.ends || j.unsaved != nil {
		return false
	}
	for _, m := range j.members {
		if j.records.Complete(m.Node) && !j.noted[m.Node] {
			return false
		}
	}
	return true
}

// recordPause is how long the end of a rank waits for others, so that they are recorded together:
// each record contains the whole job.
const recordPause = 20 * time.Millisecond

// recordSoon records a running job, and then releases the records that its nodes may forget. The
// caller holds Server.mu.
func (s *Server) recordSoon(j *job) {
	if j.soon {
		return
	}
	j.soon = true
	s.later(j, recordPause, func() {
		if j.soon = false; j.finishing {
			return
		}
		if s.saveRunning(j); j.unsaved == nil {
			s.releaseAll(j)
		}
		s.finishIfComplete(j)
	})
}

// releaseAll releases the acknowledged records of a job on its nodes. The caller holds Server.mu.
func (s *Server) releaseAll(j *job) {
	for _, m := range j.members {
		if acked := j.records.Acked(m.Node); acked > j.released[m.Node] {
			s.release(j, m.Node, acked)
		}
	}
}

// tellUnsaved notifies the client of a job that its state cannot be recorded. The caller holds
// Server.mu.
func (j *job) tellUnsaved() {
	if j.unsaved != nil && j.client != nil {
		text := fmt.Sprintf("job %d waits until it can be recorded: %v", j.number, j.unsaved)
		_ = j.client.Send(&control.LogLine{Job: j.number, Level: "warn", Text: text, TimeNs: time.Now().UnixNano()})
	}
}

// muchOwed is how much output of a node, in bytes, may have arrived when ranks block because the
// node cannot forget it. The node keeps up to twice as much.
const muchOwed = 512 << 10

// standsStill reports whether a job whose state cannot be recorded has nothing else to do, or may
// have nothing else to do: its ranks have ended, were asked to end, or may be blocked because their
// node keeps so much of their output. The caller holds Server.mu.
func (j *job) standsStill() bool {
	for _, bytes := range j.owed {
		if bytes > muchOwed {
			return true
		}
	}
	return j.ended() || j.killing != 0
}

// saveAgain retries the jobs that could not be recorded. A job that stands still because of that
// ends after a while. The caller holds Server.mu.
func (s *Server) saveAgain() {
	for _, j := range s.jobs {
		if j.unsaved == nil || j.finishing {
			continue
		}
		switch s.save(j); {
		case j.unsaved == nil:
			j.stood = time.Time{}
			s.releaseAll(j)
			s.finishIfComplete(j)
		case j.standsStill() && j.stood.IsZero():
			j.stood = time.Now()
		case j.standsStill() && time.Since(j.stood) >= s.config.Timing.Room:
			s.fail(j, control.Failf(control.Code_CODE_NO_ROOM, "its state could not be recorded for %v: %v", s.config.Timing.Room, j.unsaved))
		}
	}
	if len(s.ended) > 0 && s.history.keepAgain() != nil { // a restart would not write the history of a job that is recorded as ended
		return
	}
	for number, j := range s.ended {
		if s.save(j); j.unsaved == nil {
			delete(s.ended, number)
		}
	}
}

// onDisk adds to an error about lack of space how to free some. It returns other errors, and nil,
// unchanged.
func (s *Server) onDisk(err error) error {
	cause := err
	if where := new(fs.PathError); errors.As(err, &where) {
		cause = where // it names the file, which is enough
	}
	for _, full := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EFBIG} {
		if errors.Is(err, full) {
			return fmt.Errorf("the machine's disk is full: %w; make room in the file system of %s: margay logs --remove removes kept output", cause, s.config.Dir)
		}
	}
	return err
}
