package serve

import (
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/internal/printable"
)

// exitTimeLimit is the status of a job that has reached its time limit, the same as in timeout(1).
const exitTimeLimit = 124

// limit is how long a job may run. It starts when the job's nodes are asked to start its ranks, and
// counts wall time, including the time while serve is down.
type limit struct {
	end     time.Time   // zero: none
	warning unix.Signal // sent to the ranks before the end; 0: none
	before  time.Duration
	warned  bool
	over    bool // the time has passed, which is why the ranks end
}

// checkLimit refuses a limit that cannot be kept.
func checkLimit(spec *control.JobSpec) error {
	switch {
	case spec.LimitMs < 0 || spec.LimitMs > int64(maxLimit/time.Millisecond):
		return control.Failf(control.Code_CODE_BAD_REQUEST, "a time limit of %d ms: it is from 0, for none, to %v", spec.LimitMs, maxLimit)
	case spec.Warning < 0 || spec.Warning > 64:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "there is no signal %d", spec.Warning)
	case spec.Warning != 0 && (spec.WarningMs < 0 || spec.WarningMs >= spec.LimitMs):
		return control.Failf(control.Code_CODE_BAD_REQUEST, "a warning %v before a time limit of %v would come before the ranks run",
			time.Duration(spec.WarningMs)*time.Millisecond, time.Duration(spec.LimitMs)*time.Millisecond)
	}
	return nil
}

// maxLimit is far below the overflow of times.
const maxLimit = 10 * 365 * 24 * time.Hour

// limitOf returns the limit of a job that begins to run now.
func limitOf(spec *control.JobSpec, now time.Time) (l limit) {
	if spec.LimitMs > 0 {
		l.end = now.Add(time.Duration(spec.LimitMs) * time.Millisecond)
		l.warning, l.before = unix.Signal(spec.Warning), time.Duration(spec.WarningMs)*time.Millisecond
	}
	return l
}

// due is the action that a limit requires.
type due int

const (
	dueNothing due = iota
	dueWarning     // send the warning
	dueEnd         // end the ranks
)

// next returns the action that is due now, or else the time until the next one. The time is 0 if no
// further action will follow.
func (l *limit) next(now time.Time) (due, time.Duration) {
	left := l.end.Sub(now)
	switch {
	case l.end.IsZero() || l.over:
		return dueNothing, 0
	case left <= 0:
		return dueEnd, 0
	case l.warning == 0 || l.warned:
		return dueNothing, left
	case left <= l.before:
		return dueWarning, 0
	}
	return dueNothing, left - l.before
}

// keepLimit performs the action that the limit of a job requires now, and schedules the next one.
// The caller holds Server.mu.
func (s *Server) keepLimit(j *job) {
	if j.finishing || j.ended() {
		return
	}
	what, wait := j.limit.next(time.Now())
	switch what {
	case dueWarning:
		j.limit.warned = true
		s.config.Log("job %d: %v before its time limit, its ranks are sent %s", j.number, j.limit.before, printable.Signal(j.limit.warning))
		for _, node := range s.signal(j, control.None, j.limit.warning) {
			s.config.Log("job %d: node%d is away and does not get it", j.number, node)
		}
		s.saveRunning(j)
		_, wait = j.limit.next(time.Now())
	case dueEnd:
		s.overtime(j)
		return
	}
	if wait > 0 {
		s.later(j, wait, func() { s.keepLimit(j) })
	}
}

// overtime ends the ranks of a job that has reached its time limit. A job that is ending for
// another reason keeps that reason. The caller holds Server.mu.
func (s *Server) overtime(j *job) {
	if j.killing != 0 || j.failure != nil {
		return
	}
	j.limit.over = true
	s.config.Log("%v", j.overLimit())
	s.saveRunning(j)
	s.killRanks(j)
}

// overLimit is the failure of a job that has reached its time limit.
func (j *job) overLimit() *control.Failure {
	return control.Failf(control.Code_CODE_TIME_LIMIT, "job %d was ended at its time limit of %v (--time)", j.number, time.Duration(j.spec.LimitMs)*time.Millisecond)
}

// restoreLimit restores the limit of a running job. A limit that has passed while serve was down is
// enforced a moment later: ranks may have ended before it, and their nodes are about to report
// that. The caller holds Server.mu.
func (s *Server) restoreLimit(j *job, stored *control.StoredJob) {
	if stored.LimitNs == 0 {
		return
	}
	j.limit = limitOf(j.spec, time.Now())
	j.limit.end, j.limit.warned, j.limit.over = time.Unix(0, stored.LimitNs), stored.Warned, stored.Over
	if j.phase != control.JobPhase_JOB_RUNNING {
		return
	}
	if j.limit.over {
		s.killRanks(j)
		return
	}
	if time.Until(j.limit.end) > s.config.Timing.Late {
		s.keepLimit(j)
		return
	}
	s.later(j, s.config.Timing.Late, func() { s.keepLimit(j) })
}
