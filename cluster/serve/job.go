package serve

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/internal/printable"
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
	first     int              // the rank that failed first, with KeepGoing the lowest that failed; control.None while none has
	failure   *control.Failure // why the job failed as a whole
	limit     limit            // of the time that it runs
	failed    chan struct{}    // closed when failure is set
	loading   map[uint32]bool  // nodes that do not have all files yet
	present   bool             // no node needs files: loaded is closed when the client knows that
	loaded    chan struct{}    // closed when loading is empty
	phases    phases
	records   *records.Relay
	told      told
	noted     map[uint32]bool // nodes whose records are recorded as complete
	ends      bool            // ranks have ended since it was recorded
	soon      bool            // it is recorded soon
	over      map[uint32]bool // nodes that say that all ranks on them have ended
	behind    map[uint32]bool // nodes that are to tell records again when the client has taken more
	moved     time.Time       // when a record came last, or an acknowledgement, or the connection to a node
	done      chan struct{}   // closed when nothing is left of the job on the nodes
	halt      unix.Signal     // SIGSTOP or SIGCONT: which of them all ranks were sent last; 0: neither
	killing   unix.Signal     // by which the ranks were told to end last; 0 while they were not
	killed    time.Time       // when a node was told that last
	asked     time.Time       // when somebody last sent all ranks a signal that ends programs
	finishing bool
	torn      bool              // it has ended before its output was complete
	unkept    []*control.Unkept // by node: files that are gone with it
	left      map[uint32]bool   // nodes whose last record has said which
	announced bool              // its client knows that it has ended, while nodes forget it
	unsaved   error             // why its state could not be recorded
	stood     time.Time         // since when it stands still for that; zero while it does not
	owed      map[uint32]int    // by node: bytes of output that have come since the node could last forget all

	collecting bool // its client reads the files that its ranks have written
	collected  bool // or needs no more of them
}

// rank is what serve knows of a rank.
type rank struct {
	place *control.Place
	exit  *control.ExitStatus // nil while it runs
}

func newJob(number uint32, spec *control.JobSpec, places []*control.Place) *job {
	j := &job{
		number: number, spec: spec, places: places, created: time.Now(), first: control.None,
		failed: make(chan struct{}), loaded: make(chan struct{}), done: make(chan struct{}), loading: make(map[uint32]bool),
		records: records.NewRelay(), told: newTold(), noted: make(map[uint32]bool), over: make(map[uint32]bool), moved: time.Now(), owed: make(map[uint32]int), behind: make(map[uint32]bool), left: make(map[uint32]bool),
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

// reads reports whether a rank has a standard input, and has not ended.
func (j *job) reads(rank int) bool {
	all, first := j.spec.Stdin == control.StdinMode_STDIN_ALL, j.spec.Stdin == control.StdinMode_STDIN_FIRST && rank == 0
	return (all || first) && j.ranks[rank].exit == nil
}

// complete reports whether all ranks have ended and all that the job has said is out of danger.
func (j *job) complete() bool {
	for _, m := range j.members {
		if !j.records.Complete(m.Node) {
			return false
		}
	}
	return true
}

// endedOn reports whether all ranks on a node have ended.
func (j *job) endedOn(node uint32) bool {
	for _, r := range j.ranks {
		if r.place.Node == node && r.exit == nil {
			return false
		}
	}
	return true
}

// heldUp reports whether ends of ranks may be behind output that the job's consumer does not take.
func (j *job) heldUp() bool {
	for _, m := range j.members {
		if !j.endedOn(m.Node) && j.waits(m.Node) {
			return true
		}
	}
	return false
}

// waits reports whether records of a node wait for the consumer, here or there.
func (j *job) waits(node uint32) bool { return j.records.Waits(node) || j.behind[node] }

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

// exitCode is the job's exit status as margay run gives it: that of the rank that failed first, or lowest, else that of the failure.
// Output that is missing, or an end that could not be recorded, counts more than how a rank has ended.
func (j *job) exitCode() int32 {
	spoilt := j.torn || j.failure != nil && j.failure.Code == control.Code_CODE_NO_ROOM
	if j.first != control.None && (!spoilt || j.failure != nil && j.failure.Code == control.Code_CODE_KILLED) {
		exit := j.ranks[j.first].exit
		if exit.Signal != 0 {
			return 128 + exit.Signal
		}
		return exit.Code
	}
	if j.failure == nil && j.limit.over {
		return exitTimeLimit
	}
	if j.failure == nil {
		return 0
	}
	switch j.failure.Code {
	case control.Code_CODE_NOT_FOUND:
		return 127
	case control.Code_CODE_NOT_EXECUTABLE:
		return 126
	case control.Code_CODE_KILLED:
		return 128 + int32(unix.SIGKILL)
	}
	return 125
}

// state is the job's state as its client is told.
func (j *job) state() *control.JobState {
	m := &control.JobState{Job: j.number, Phase: j.phase, ExitCode: j.exitCode(), FirstFailed: int32(j.first), Unkept: j.unkept, Collect: j.collecting && !j.collected}
	if j.failure != nil {
		m.Error = control.FromError(j.failure)
	} else if j.limit.over {
		m.Error = control.FromError(j.overLimit())
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
		m := j.state()
		m.Phase, m.Times = j.shown(), j.phases.list()
		_ = j.client.Send(fitState(m))
	}
}

// shown is the phase of the job as people see it. The caller holds Server.mu.
func (j *job) shown() control.JobPhase {
	if j.announced {
		return control.JobPhase_JOB_DONE
	}
	return j.phase
}

// enter begins the next phase of the job's launch, unless the job ends. The caller holds Server.mu.
func (j *job) enter(phase control.Phase) {
	if !j.finishing {
		j.phases.enter(phase)
	}
}

// hasRank reports whether a rank of the job is on a node.
func (j *job) hasRank(rank, node uint32) bool {
	return uint64(rank) < uint64(len(j.ranks)) && j.ranks[rank].place.Node == node
}

// blame makes an error that a node has reported one about that node, and about none of its ranks but those on it. When ranks may have run,
// no node can say that the launch was spoilt: the client would launch the job once more.
func (j *job) blame(node uint32, err error) *control.Failure {
	f := toFailure(err)
	if j.phase != control.JobPhase_JOB_PREPARED && (f.Code == control.Code_CODE_RESTARTED || f.Code == control.Code_CODE_LAUNCH_LOST) {
		f.Code = control.Code_CODE_FAILED
	}
	f.Node = int(node)
	if f.Rank < 0 || !j.hasRank(uint32(f.Rank), node) {
		f.Rank = control.None
	}
	return f
}

// aboutJob is what all messages about one job have.
type aboutJob interface{ GetJob() uint32 }

// fromJob takes what a node says about a job. About one that it has no part in it has nothing to say. The caller holds Server.mu.
func (s *Server) fromJob(n *node, f *control.Frame) {
	var j *job
	if m, ok := f.Message().(aboutJob); ok {
		if j = s.jobs[m.GetJob()]; j == nil || !j.on(n.number) {
			n.conn.Answer(f, nil, control.Failf(control.Code_CODE_NOT_FOUND, "node%d has no part in a job %d", n.number, m.GetJob()))
			return
		}
	}
	switch m := f.Message().(type) {
	case *control.Record:
		m.Node = n.number
		s.record(j, m)
	case *control.StdinTaken:
		if j.client != nil && j.hasRank(m.Rank, n.number) {
			_ = j.client.Send(m)
		}
	case *control.FileTaken:
		if j.client != nil && j.members[0].Node == n.number {
			_ = j.client.Send(m)
		}
	case *control.Loaded:
		s.nodeLoaded(j, n, m)
	case *control.JobFault:
		if m.Error != nil {
			s.fault(j, j.blame(n.number, m.Error.Err()))
		}
	default:
		n.conn.Answer(f, nil, control.Failf(control.Code_CODE_BAD_REQUEST, "serve does not know what to do with %T from a node", m))
	}
}

// fault ends a job with which a node cannot go on. While its ranks are ended, because one has failed or the time is over, messages to
// those that have ended mean nothing: the job ends with its ranks, or awaitEnd ends it. The caller holds Server.mu.
func (s *Server) fault(j *job, failure *control.Failure) {
	if j.killing != 0 {
		s.config.Log("job %d: %v, while its ranks are ended", j.number, failure)
		return
	}
	s.fail(j, failure)
}

func toFailure(err error) *control.Failure {
	m := control.FromError(err)
	return &control.Failure{Code: m.Code, Text: m.Text, Node: int(m.Node), Rank: int(m.Rank)}
}

// record takes a job's record: it notes the end of a rank and hands the record on. The caller holds Server.mu.
func (s *Server) record(j *job, m *control.Record) {
	if j.phase != control.JobPhase_JOB_RUNNING || !j.hasRank(m.Rank, m.Node) {
		return
	}
	j.moved = time.Now()
	if j.spool != nil && !j.spool.cut && m.Acked > j.records.Seen(m.Node) {
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "the file of its output lacks records %d to %d", j.records.Seen(m.Node)+1, m.Acked).At(m.Node))
		return
	}
	if j.client != nil && j.spool == nil && j.client.Queued() > clientQueue {
		j.behind[m.Node] = true
		return
	}
	passes, fresh := j.records.Take(m.Node, m.Seq, m.Acked, m.Last)
	if !passes {
		return
	}
	unkept := m.Unkept
	m.Unkept = nil // it is neither kept nor sent with the output
	if fresh {
		if err := j.told.take(m); err != nil {
			s.fail(j, control.Failf(control.Code_CODE_FAILED, "its output cannot be believed: %v", err).At(m.Node))
			return
		}
		j.owed[m.Node] += len(m.Data)
		if m.Last && unkept != nil && len(j.spec.Out) == 0 { // files that travel back are still there
			j.left[m.Node] = true
			j.lose(m.Node, unkept)
		}
		if m.Exit != nil && j.ranks[m.Rank].exit == nil {
			s.rankEnded(j, int(m.Rank), m.Exit)
		}
	}
	switch {
	case j.spool != nil:
		if fresh {
			if err := j.spool.write(m); err != nil {
				s.fail(j, control.Failf(control.Code_CODE_NO_ROOM, "keep its output: %v", s.onDisk(err)))
				return
			}
		}
		s.ack(j, m.Node, m.Seq)
	case j.client != nil:
		_ = j.client.Send(m) // it knows what it has seen
	}
}

// clientQueue is how many bytes may wait for a client before records stay with their nodes, far below what ends its connection.
const clientQueue = 16 << 20

// catchUpClient has nodes tell again the records that there was no room for, as many nodes at a time as there is now: each holds about
// a MiB. The caller holds Server.mu.
func (s *Server) catchUpClient(j *job) {
	if j.client == nil || len(j.behind) == 0 {
		return
	}
	room := clientQueue - j.client.Queued()
	for node := range j.behind {
		if room < clientQueue/2 {
			return
		}
		room -= 1 << 20
		delete(j.behind, node)
		j.moved = time.Now()
		s.nodes[node].send(&control.Rewind{Job: j.number})
	}
}

// inputAgain has the client of a job send again what the ranks on a node have not taken of their standard input: the node has registered, and
// what was on the way to it, or was sent while it was away, is lost. The caller holds Server.mu.
func (s *Server) inputAgain(j *job, node uint32) {
	for i, r := range j.ranks {
		if r.place.Node == node && j.reads(i) && j.client != nil {
			_ = j.client.Send(&control.Rewind{Job: j.number, Node: node})
			return
		}
	}
}

// ack tells a node that a job's records are out of its hands. The caller holds Server.mu.
func (s *Server) ack(j *job, node uint32, seq uint64) {
	if int(node) >= len(s.nodes) {
		return
	}
	j.moved = time.Now()
	seq = j.records.Ack(node, seq)
	if j.recorded() {
		s.release(j, node, seq)
	} else if !j.complete() { // else its end is recorded below
		s.recordSoon(j)
	}
	s.finishIfComplete(j)
}

// release tells a node that it may forget a job's records up to seq. The caller holds Server.mu.
func (s *Server) release(j *job, node uint32, seq uint64) {
	if seq == j.records.Seen(node) {
		j.owed[node] = 0
	}
	s.nodes[node].send(&control.Ack{Job: j.number, Seq: seq})
}

// rankEnded notes the end of a rank. The first that failed decides the job's status, and ends the others. When the job is to keep going,
// the lowest that failed decides. The caller holds Server.mu.
func (s *Server) rankEnded(j *job, number int, exit *control.ExitStatus) {
	j.ends = true
	if j.exited(number, exit) {
		s.endOthers(j)
		s.saveRunning(j) // a later serve names the same rank
	} else {
		s.recordSoon(j)
	}
	if j.ended() {
		for _, m := range j.members {
			s.finishOn(s.nodes[m.Node], j)
		}
	}
}

// exited notes how a rank ended, and reports whether it is the first that has failed. The caller holds Server.mu.
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

// finishOn has a node end what the ranks of a job have left behind, if that keeps the job's output from being complete when all
// of them have ended. The caller holds Server.mu.
func (s *Server) finishOn(n *node, j *job) {
	if j.ended() && !j.records.Ended(n.number) {
		n.send(&control.Finish{Job: j.number})
	}
}

// endOthers ends the ranks that are left when one has failed, unless the job is to keep going. The caller holds Server.mu.
func (s *Server) endOthers(j *job) {
	if j.first != control.None && !j.spec.KeepGoing && len(j.ranks) > 1 {
		s.killRanks(j)
	}
}

// killRanks asks the ranks of a job to end, and then makes them. The caller holds Server.mu.
func (s *Server) killRanks(j *job) {
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

// killOn tells a node what the ranks of a job were told last that are to end, also when it was away then. The caller holds Server.mu.
func (s *Server) killOn(n *node, j *job) {
	if j.killing != 0 && !j.endedOn(n.number) {
		j.killed = time.Now()
		n.send(&control.Signal{Job: j.number, Rank: control.None, Signal: int32(j.killing)})
	}
}

// later calls do after a while, with Server.mu held, if the job has not ended by then and serve has not, either.
func (s *Server) later(j *job, wait time.Duration, do func()) {
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.jobs[j.number] == j && s.context.Err() == nil {
			do()
		}
	})
}

// awaitEnd fails a job whose ranks do not end although they have been made to. It waits longer while output that its consumer does
// not take keeps the ends of ranks back, and for nodes that may be back before long.
func (s *Server) awaitEnd(j *job) {
	s.later(j, 2*s.config.Timing.Kill+time.Second, func() {
		late := slices.ContainsFunc(j.members, func(m *control.Member) bool { return !j.endedOn(m.Node) && s.nodes[m.Node].late() })
		switch {
		case j.ended():
		case j.heldUp(), j.unsaved != nil, late, time.Since(j.killed) < s.config.Timing.Kill: // saveAgain bounds the second
			s.awaitEnd(j)
		default:
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
	if rank != control.None {
		return away
	}
	if slices.Contains(endings, sig) {
		j.asked = time.Now()
	}
	if sig == unix.SIGSTOP || sig == unix.SIGCONT {
		j.halt = sig
		s.saveRunning(j)
		return nil // haltOn sends it to those that are away
	}
	if j.stopped() && slices.Contains(wakening, sig) {
		s.signal(j, rank, unix.SIGCONT)
	}
	return away
}

// wakening are the signals that continue a stopped job as well, as the kill of shells does: it could not end otherwise.
var wakening = []unix.Signal{unix.SIGHUP, unix.SIGTERM}

// stopped reports whether all ranks were stopped.
func (j *job) stopped() bool { return j.halt == unix.SIGSTOP }

// haltOn sends a node that has registered what it may have missed while it was away: that the ranks of a job stop, or continue. The
// caller holds Server.mu.
func (s *Server) haltOn(n *node, j *job) {
	if j.halt != 0 && !j.endedOn(n.number) {
		n.send(&control.Signal{Job: j.number, Rank: control.None, Signal: int32(j.halt)})
	}
}

// endings are the signals by which people end programs.
var endings = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGKILL, unix.SIGTERM}

// ending reports whether a job is about to free its cores: its ranks were made to end, or asked to not long ago.
func (j *job) ending() bool {
	return j.finishing || j.killing != 0 || time.Since(j.asked) < askedLately
}

// askedLately is how long ranks that were asked to end are believed to.
const askedLately = 10 * time.Second

// finishIfComplete ends a job whose ranks have all ended and whose output is with whoever wants it. That must be recorded before
// the nodes forget the job. The caller holds Server.mu.
func (s *Server) finishIfComplete(j *job) {
	if j.phase != control.JobPhase_JOB_RUNNING || !j.complete() {
		return
	}
	for i, r := range j.ranks {
		if r.exit == nil { // its node makes a mistake, or an earlier serve has
			s.fail(j, control.Failf(control.Code_CODE_FAILED, "its output is complete, but how it ended was not told").At(r.place.Node).Of(i))
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

// awaitRecords ends a job whose ranks on a node have ended when what they said does not come, so that it does not wait for ever. A
// consumer that does not take it may take its time, and how long a full disk may is for saveAgain. The caller holds Server.mu.
func (s *Server) awaitRecords(j *job) {
	if j.unsaved != nil || j.phase != control.JobPhase_JOB_RUNNING || !j.wantsRecords() || time.Since(j.moved) < s.config.Timing.Records {
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
				s.config.Timing.Records).At(m.Node))
			return
		}
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

// finish records why a job ends, has every node of it forget it, and then frees its cores and records its end. A node that is
// connected and does not answer may still have processes of it, so it is given no other job before it has ended this one. The caller
// holds Server.mu.
func (s *Server) finish(j *job) {
	if j.finishing || s.collect(j) {
		return
	}
	if j.phases.phase == control.Phase_PHASE_START { // the ranks have ended before all nodes have answered
		j.enter(control.Phase_PHASE_RUN)
	}
	j.enter(control.Phase_PHASE_END)
	j.finishing, j.torn = true, j.torn || j.phase == control.JobPhase_JOB_RUNNING && !j.complete()
	if j.phase != control.JobPhase_JOB_ENDING || j.unsaved != nil {
		j.phase = control.JobPhase_JOB_ENDING
		s.save(j) // a serve that is killed now does not find that the nodes have lost it
	}
	// It comes behind all that the nodes were asked before, and step asks nothing more.
	asked := s.askAll(j, &control.Forget{Job: j.number})
	s.running.Go(func() {
		early := s.announce(j)
		s.answers(asked, forgetTimeout, func(q *question, answer proto.Message, err error) {
			if err != nil {
				s.config.Log("job %d: end it on node%d: %v", j.number, q.node, err)
				s.insist(q.node, q.conn, j.number)
			} else if m, ok := answer.(*control.Forgotten); ok {
				s.forgotten(j, q.node, m.Unkept)
			}
		})
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
		s.config.Log("job %d ended with status %d", j.number, j.exitCode())
		if !early {
			j.tellClient()
		}
	})
}

// announce keeps the record of a job that has ended, and then tells its client, while its nodes still forget it. It reports false when there
// is something to say of the job that only its nodes know, or no client to tell. The job's cores are not given to another one before the
// nodes have forgotten it, but look free.
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

// forgotten notes which files are gone with a job on a node.
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

// clientGone ends a job whose client has gone away, unless it is to live without one. The caller holds Server.mu.
func (s *Server) clientGone(j *job) {
	j.client = nil
	switch {
	case j.phase == control.JobPhase_JOB_ENDING:
	case j.collecting, len(j.spec.Out) > 0 && j.complete():
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay run is gone, and has not brought back all files"))
		s.finish(j)
	case j.spool != nil && j.phase == control.JobPhase_JOB_RUNNING:
	case j.complete(): // its end is just being recorded
	case j.phase == control.JobPhase_JOB_PREPARED:
		// Pieces of its files may be lost with the connection. If the client comes back, it asks for the job anew.
		s.fail(j, control.Failf(control.Code_CODE_RESTARTED, "the connection of its margay run was lost while the job was being launched"))
	default:
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay run is gone"))
	}
}

// maxCommand is how many bytes of a command line people are shown.
const maxCommand = 200

// commandLine is what is executed, for people. A colon stands between programs.
func commandLine(exec *control.Exec) string {
	words := exec.GetArgv()
	for _, p := range exec.GetParts() {
		words = append(append(slices.Clip(words), []byte(":")), p.Argv...)
	}
	text := ""
	for i, arg := range words {
		if i > 0 {
			text += " "
		}
		if len(text)+len(arg) > maxCommand {
			text += "..."
			break
		}
		text += string(arg)
	}
	return printable.Line(text)
}
