package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/cluster/roster"
	"margay/internal/printable"
)

// queue holds the jobs that wait for cores, in order of arrival. A job gets cores only when no
// earlier job waits for a node that it may use: small jobs do not starve large ones. A job that
// does not fit while nodes are drained, or have left, may wait for long, and so may a job whose
// user has as much as users may have. Others do not wait for such a job; it keeps its place. The
// store does not have waiting jobs: after a restart of serve the clients submit them again, and
// lose their places.
type queue []*waiting

// waiting is a job in the queue. Server.mu guards it.
type waiting struct {
	spec   *control.JobSpec
	reach  reach // of spec
	client *control.Conn
	call   uint64 // of its request
	size   int    // of the request, in bytes
	since  time.Time
	why    string // what the job waits for; empty: not known, as for tasks of arrays

	withdrawn chan struct{} // closed when its client does not want it any more
	gone      bool          // withdrawn is closed

	ahead int // jobs that it waits for, as of Server.counted

	hindered bool // it does not fit on the nodes that are in service, even when they are free
	limited  bool // its user has as much as users may have
}

// maxWaiting is how many waiting jobs a list shows. The jobs behind them have the same reason.
const maxWaiting = 1000

// waitingJobs returns the waiting jobs as lines of margay ps, one for successive tasks of an array.
// The caller holds Server.mu.
func (s *Server) waitingJobs(caller permit.Caller) (list []*control.WaitingJob) {
	for _, w := range s.queue[:min(len(s.queue), maxWaiting)] {
		task := w.spec.Task
		if n := len(list); n > 0 && task.GetArray() != 0 && list[n-1].Array == task.Array {
			list[n-1].Tasks++
			continue
		}
		why := w.why
		if why == "" {
			why = s.waitsFor(w)
		}
		list = append(list, &control.WaitingJob{
			User: w.spec.User, Command: w.spec.Command, Ranks: w.spec.Ranks, SinceNs: w.since.UnixNano(), Why: shortened(why),
			Array: task.GetArray(),
		})
		if last := list[len(list)-1]; !caller.Sees(w.spec.Uid) {
			last.Command, last.Hidden = "", true
		}
		if task != nil {
			list[len(list)-1].Tasks = 1
		}
	}
	return list
}

// before returns how many jobs in the queue a new job would have to wait for: they may use a node
// that it may use, too, not counting drained nodes.
func (q queue) before(spec *control.JobSpec) (n int) {
	r := reachOf(spec)
	for _, w := range q {
		if w.precedes(r) {
			n++
		}
	}
	return n
}

// waitsBehind returns how many jobs a job has to wait for: w, or with nil, a new one. The caller
// holds Server.mu.
func (s *Server) waitsBehind(w *waiting, spec *control.JobSpec) int {
	if w == nil {
		return s.queue.before(spec)
	}
	return s.ahead(w)
}

// ahead returns how many jobs ahead of w wait for nodes that w may use. All of the queue ask
// whenever there is room, so they are counted together, once after each change. The caller holds
// Server.mu.
func (s *Server) ahead(w *waiting) int {
	if !s.counted {
		s.queue.count()
		s.counted = true
	}
	return w.ahead
}

// count sets waiting.ahead of all jobs. Usually many of them may use the same nodes.
func (q queue) count() {
	var kinds []reach
	jobs := make(map[reach]int)
	for _, w := range q {
		w.ahead = 0
		for _, kind := range kinds {
			if meet(&kind, &w.reach) {
				w.ahead += jobs[kind]
			}
		}
		if w.hindered || w.limited {
			continue
		}
		if jobs[w.reach]++; jobs[w.reach] == 1 {
			kinds = append(kinds, w.reach)
		}
	}
}

// precedes reports whether a job that is further back in the queue, or not in it, waits for w.
func (w *waiting) precedes(r reach) bool { return !w.hindered && !w.limited && meet(&w.reach, &r) }

// reach is where a job may run.
type reach struct {
	arch string
	step uint32
	only bool                            // it names its nodes
	may  [(roster.Most + 63) / 64]uint64 // a bit for each node that it may use
}

func reachOf(spec *control.JobSpec) reach {
	shape := shapeOf(spec)
	r := reach{arch: spec.Arch, step: spec.Step, only: len(shape.only) > 0}
	for node := range uint32(roster.Most) {
		if shape.mayUse(node) {
			r.may[node/64] |= 1 << (node % 64)
		}
	}
	return r
}

// meet reports whether there is a node that both may use. Jobs that name none have all in common.
func meet(a, b *reach) bool {
	if a.arch != b.arch || a.step != b.step {
		return false
	}
	for i := range a.may {
		if a.may[i]&b.may[i] != 0 {
			return true
		}
	}
	return !a.only && !b.only
}

// errBehind is why a task of an array waits behind other jobs. It does not say which: all tasks of
// an array try whenever there is room.
var errBehind = control.Failf(control.Code_CODE_NO_ROOM, "other jobs came first")

// enqueued creates a job that has joined the queue, as soon as its turn has come and there are
// enough cores. It reports to the client what the job waits for, whenever that changes, but not of
// each task of an array.
func (s *Server) enqueued(w *waiting) (*job, error) {
	spec, client := w.spec, w.client
	defer s.quit(w)
	var late <-chan time.Time
	if spec.WaitMs > 0 {
		timer := time.NewTimer(time.Duration(spec.WaitMs) * time.Millisecond)
		defer timer.Stop()
		late = timer.C
	}
	told := ""
	for {
		s.mu.Lock()
		room := s.room
		j, err := s.createQueued(w)
		why := ""
		switch {
		case spec.Task != nil:
		case err == errForgetting:
			why = told
		case err != nil:
			why = s.waitsFor(w)
		}
		w.why = why
		s.mu.Unlock()
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) {
			return j, err
		}
		if why != told {
			told = why
			_ = client.Send(&control.LogLine{Level: "info", Text: why, TimeNs: time.Now().UnixNano()})
		}
		select {
		case <-room:
		case <-w.withdrawn:
			return nil, control.Failf(control.Code_CODE_KILLED, "it was withdrawn from the queue")
		case <-late:
			return nil, control.Failf(control.Code_CODE_NO_ROOM, "it has waited for %v: %v", time.Duration(spec.WaitMs)*time.Millisecond, err)
		case <-client.Done():
			return nil, control.ErrClosed
		case <-s.context.Done():
			return nil, context.Cause(s.context)
		}
	}
}

// createQueued creates a job of the queue if its turn has come. The caller holds Server.mu.
func (s *Server) createQueued(w *waiting) (*job, error) {
	if w.spec.Task != nil && s.ahead(w) > 0 {
		return nil, errBehind
	}
	return s.createAs(w, w.spec, w.client)
}

// withdraw has the queued jobs of a client leave the queue, or the one of a call.
func (s *Server) withdraw(client *control.Conn, call uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.queue {
		if w.client == client && !w.gone && (call == 0 || w.call == call) {
			w.gone = true
			close(w.withdrawn)
		}
	}
}

// join appends a job to the queue, unless the job would wait forever: it would not fit on the whole
// machine.
func (s *Server) join(w *waiting) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	shape := shapeOf(w.spec)
	if err := shape.check(); err != nil {
		return err
	}
	if err := cmp.Or(s.reachable(shape), s.checkStep(w.spec)); err != nil {
		return err
	}
	whole, known := s.whole(w.spec, func(*node) bool { return true })
	if places := allocate(whole, shape); known && places != nil && !fits(whole, w.spec) {
		return control.Failf(control.Code_CODE_NO_ROOM, "it would wait for ever: %v, when the whole machine is free", noSpares(w.spec, len(spares(whole, shape, places, int(w.spec.Spares)))))
	} else if known && places == nil {
		if len(whole) == 0 {
			return s.noRoom(w.spec)
		}
		return control.Failf(control.Code_CODE_NO_ROOM, "it would wait for ever: %s, when the whole machine is free", shape.lacks(whole))
	}
	if err := s.queueLimit(w); err != nil {
		return err
	}
	s.queue, s.counted = append(s.queue, w), false
	s.hinder(w)
	return nil
}

// quit removes a job from the queue.
func (s *Server) quit(w *waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue, s.counted = slices.DeleteFunc(s.queue, func(other *waiting) bool { return other == w }), false
	s.roomChanged()
}

// waitsFor describes what a queued job waits for; empty if it fits now, and only its turn has not
// come. The caller holds Server.mu.
func (s *Server) waitsFor(w *waiting) string {
	if w.limited {
		return fmt.Sprintf("waiting until its user has less: %s may have %s at a time", w.spec.User, s.config.limits())
	}
	if n := s.ahead(w); n > 0 {
		return fmt.Sprintf("waiting for cores, behind %s that came first", printable.Count(n, "job"))
	}
	offers := s.offersFor(w.spec)
	if fits(offers, w.spec) {
		return ""
	}
	text := "waiting for cores: " + shapeOf(w.spec).lacks(offers)
	if holders := s.holders(w.spec); len(holders) > 0 {
		text += fmt.Sprintf("; %s %s the others", agree(len(holders), "job", "jobs")+" "+numbers(holders), agree(len(holders), "has", "have"))
	}
	return text + s.outOfService(w.spec)
}

// agree chooses the singular or plural of a word by a number.
func agree(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}
