package serve

import (
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// job is a job that has not ended. Server.mu guards it.
type job struct {
	number  uint32
	spec    *control.JobSpec
	places  []*control.Place
	members []*control.Member
	phase   control.JobPhase
	created time.Time

	client *control.Conn // who follows the job and gets its records; nil when there is nobody
	spool  *spool        // gets the records instead when the job is detached

	ranks     []rank
	first     int               // the rank that failed first, control.None while none has
	failure   *control.Failure  // why the job failed as a whole
	failed    chan struct{}     // closed when failure is set
	loading   map[uint32]bool   // nodes that do not have all files yet
	loaded    chan struct{}     // closed when loading is empty
	seen      map[uint32]uint64 // by node: the newest record that has come
	acked     map[uint32]uint64 // by node: the newest record that is acknowledged
	done      chan struct{}     // closed when nothing is left of the job on the nodes
	killing   bool              // the ranks have been told to end
	finishing bool
}

// rank is what serve knows of a rank.
type rank struct {
	place *control.Place
	exit  *control.ExitStatus // nil while it runs
	last  uint64              // number of the record that told its end, 0 while that has not come to this serve
	safe  bool                // that record is acknowledged, and with it all that the rank has said
}

func newJob(number uint32, spec *control.JobSpec, places []*control.Place) *job {
	j := &job{
		number: number, spec: spec, places: places, created: time.Now(), first: control.None,
		failed: make(chan struct{}), loaded: make(chan struct{}), done: make(chan struct{}), loading: make(map[uint32]bool),
		seen: make(map[uint32]uint64), acked: make(map[uint32]uint64),
	}
	for _, p := range places {
		j.ranks = append(j.ranks, rank{place: p})
	}
	return j
}

// on reports whether the job has ranks on a node.
func (j *job) on(node uint32) bool {
	for _, p := range j.places {
		if p.Node == node {
			return true
		}
	}
	return false
}

// endedOn reports whether all ranks on a node have ended and their output is out of danger.
func (j *job) endedOn(node uint32) bool {
	for _, r := range j.ranks {
		if r.place.Node == node && !r.safe {
			return false
		}
	}
	return j.acked[node] >= j.seen[node]
}

// complete reports whether all ranks have ended and their output is out of danger.
func (j *job) complete() bool {
	for _, m := range j.members {
		if !j.endedOn(m.Node) {
			return false
		}
	}
	return true
}

// ended reports whether all ranks have ended.
func (j *job) ended() bool {
	for _, r := range j.ranks {
		if r.exit == nil {
			return false
		}
	}
	return true
}

// wantsRecords reports whether there is somebody to take the job's records.
func (j *job) wantsRecords() bool { return j.client != nil || j.spool != nil }

// exitCode is the job's exit status as margay run gives it: that of the rank that failed first, else that of the failure.
func (j *job) exitCode() int32 {
	if j.first != control.None {
		exit := j.ranks[j.first].exit
		if exit.Signal != 0 {
			return 128 + exit.Signal
		}
		return exit.Code
	}
	if j.failure == nil {
		return 0
	}
	switch j.failure.Code {
	case control.Code_CODE_NOT_FOUND:
		return 127
	case control.Code_CODE_NOT_EXECUTABLE:
		return 126
	}
	return 125
}

// state is the job's state as its client is told.
func (j *job) state() *control.JobState {
	m := &control.JobState{Job: j.number, Phase: j.phase, ExitCode: j.exitCode(), FirstFailed: int32(j.first)}
	if j.failure != nil {
		m.Error = control.FromError(j.failure)
	}
	for i, r := range j.ranks {
		m.Ranks = append(m.Ranks, &control.RankState{
			Rank: uint32(i), Node: r.place.Node, Core: r.place.Core, Ended: r.exit != nil, Exit: r.exit,
		})
	}
	return m
}

// tellClient sends the job's state to its client. The caller holds Server.mu.
func (j *job) tellClient() {
	if j.client != nil {
		_ = j.client.Send(j.state())
	}
}

// fromJob takes what a node says about a job. The caller holds Server.mu.
func (s *Server) fromJob(n *node, f *control.Frame) {
	switch m := f.Message().(type) {
	case *control.Record:
		if j := s.jobs[m.Job]; j != nil && j.on(n.number) {
			m.Node = n.number
			s.record(j, m)
		}
	case *control.StdinTaken:
		if j := s.jobs[m.Job]; j != nil && j.client != nil {
			_ = j.client.Send(m)
		}
	case *control.FileTaken:
		if j := s.jobs[m.Job]; j != nil && j.client != nil {
			_ = j.client.Send(m)
		}
	case *control.Loaded:
		if j := s.jobs[m.Job]; j != nil {
			s.nodeLoaded(j, n, m)
		}
	case *control.JobFault:
		if j := s.jobs[m.Job]; j != nil && m.Error != nil {
			s.fail(j, toFailure(m.Error.Err()))
		}
	default:
		n.conn.Answer(f, nil, control.Failf(control.Code_CODE_BAD_REQUEST, "serve does not know what to do with %T from a node", m))
	}
}

func toFailure(err error) *control.Failure {
	m := control.FromError(err)
	return &control.Failure{Code: m.Code, Text: m.Text, Node: int(m.Node), Rank: int(m.Rank)}
}

// record takes a job's record: it notes the end of a rank and hands the record on. The caller holds Server.mu.
func (s *Server) record(j *job, m *control.Record) {
	if int(m.Rank) >= len(j.ranks) || j.ranks[m.Rank].place.Node != m.Node {
		return
	}
	if j.spool != nil && m.Seq > j.seen[m.Node]+1 {
		return // one before it was lost with a connection; both will be told again
	}
	if m.Stream == control.Stream_STREAM_EXIT && m.Exit != nil {
		j.ranks[m.Rank].last = m.Seq
		if j.ranks[m.Rank].exit == nil {
			s.rankEnded(j, int(m.Rank), m.Exit)
		}
	}
	fresh := m.Seq > j.seen[m.Node]
	j.seen[m.Node] = max(j.seen[m.Node], m.Seq)
	switch {
	case j.spool != nil:
		if fresh {
			if err := j.spool.write(m); err != nil {
				s.config.Log("job %d: %v", j.number, err)
			}
		}
		s.ack(j, m.Node, m.Seq)
	case j.client != nil:
		_ = j.client.Send(m) // it knows what it has seen
	}
}

// ack tells a node that a job's records are out of its hands. The caller holds Server.mu.
func (s *Server) ack(j *job, node uint32, seq uint64) {
	if int(node) >= len(s.nodes) {
		return
	}
	j.acked[node] = max(j.acked[node], seq)
	saved := true
	for i := range j.ranks {
		if r := &j.ranks[i]; r.place.Node == node && !r.safe && r.last != 0 && r.last <= j.acked[node] {
			r.safe, saved = true, false
		}
	}
	if !saved {
		s.save(j) // before the node lets go of it
	}
	s.nodes[node].send(&control.Ack{Job: j.number, Seq: seq})
	s.finishIfComplete(j)
}

// rankEnded notes the end of a rank. The first that failed decides the job's status, and ends the others unless the job is to
// keep going. The caller holds Server.mu.
func (s *Server) rankEnded(j *job, number int, exit *control.ExitStatus) {
	j.ranks[number].exit = exit
	if (exit.Code != 0 || exit.Signal != 0) && j.first == control.None && j.failure == nil {
		j.first = number
		s.endOthers(j)
	}
	s.save(j)
}

// endOthers ends the ranks that are left when one has failed, unless the job is to keep going. The caller holds Server.mu.
func (s *Server) endOthers(j *job) {
	if j.first != control.None && !j.spec.KeepGoing && len(j.ranks) > 1 {
		s.killRanks(j)
	}
}

// killRanks asks the ranks of a job to end, and then makes them. The caller holds Server.mu.
func (s *Server) killRanks(j *job) {
	if j.killing {
		return
	}
	j.killing = true
	s.signal(j, control.None, unix.SIGTERM)
	time.AfterFunc(s.config.Timing.Kill, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.jobs[j.number] == j && !j.ended() {
			s.signal(j, control.None, unix.SIGKILL)
		}
	})
	time.AfterFunc(2*s.config.Timing.Kill+time.Second, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.jobs[j.number] == j && !j.ended() {
			s.fail(j, control.Failf(control.Code_CODE_TIMEOUT, "ranks of job %d do not end", j.number))
		}
	})
}

// signal sends a signal to one rank of a job, or to all. It returns the nodes that are away, whose ranks do not get it. The caller
// holds Server.mu.
func (s *Server) signal(j *job, rank int, sig unix.Signal) (away []uint32) {
	told := make(map[uint32]bool)
	for i, r := range j.ranks {
		if (rank == control.None || rank == i) && r.exit == nil && !told[r.place.Node] {
			told[r.place.Node] = rank == control.None
			n := s.nodes[r.place.Node]
			if n.conn == nil {
				away = append(away, n.number)
			}
			n.send(&control.Signal{Job: j.number, Rank: int32(rank), Signal: int32(sig)})
		}
	}
	return away
}

// finishIfComplete ends a job whose ranks have all ended and whose output is with whoever wants it. The caller holds Server.mu.
func (s *Server) finishIfComplete(j *job) {
	if j.phase == control.JobPhase_JOB_RUNNING && j.complete() {
		s.finish(j)
	}
}

// fail ends a job as a whole. The first reason counts. The caller holds Server.mu.
func (s *Server) fail(j *job, failure *control.Failure) {
	if j.failure != nil || j.finishing {
		return
	}
	s.config.Log("job %d: %v", j.number, failure)
	j.failure = failure
	close(j.failed)
	s.finish(j)
}

// finish has every node of a job forget it, and then frees its cores and records its end. The caller holds Server.mu.
func (s *Server) finish(j *job) {
	if j.finishing {
		return
	}
	j.finishing = true
	j.phase = control.JobPhase_JOB_ENDING
	s.running.Go(func() {
		s.onAll(j, forgetTimeout, &control.Forget{Job: j.number}, func(node uint32, err error) {
			s.config.Log("job %d: end it on node%d: %v", j.number, node, err)
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range j.places {
			delete(s.nodes[p.Node].uses, p.Core)
		}
		j.phase = control.JobPhase_JOB_DONE
		delete(s.jobs, j.number)
		close(j.done)
		s.save(j)
		if j.spool != nil {
			j.spool.close()
		}
		s.config.Log("job %d ended with status %d", j.number, j.exitCode())
		j.tellClient()
	})
}

// save records a job. The caller holds Server.mu.
func (s *Server) save(j *job) {
	if err := s.store.saveJob(j); err != nil {
		s.config.Log("%v", err)
	}
}

// clientGone ends a job whose client has gone away, unless it is to live without one. The caller holds Server.mu.
func (s *Server) clientGone(j *job) {
	j.client = nil
	switch {
	case j.finishing:
	case j.spool != nil && j.phase == control.JobPhase_JOB_RUNNING:
	case j.ended():
		s.finish(j)
	default:
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay run is gone"))
	}
}

// command is the job's command line, for people.
func (j *job) command() string {
	text := ""
	for i, arg := range j.spec.Argv {
		if i > 0 {
			text += " "
		}
		if len(text)+len(arg) > 200 {
			return text + "..."
		}
		text += arg
	}
	return text
}
