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

// job is a job that has not ended. Server.mu guards it.
type job struct {
	number  uint32
	spec    *control.JobSpec
	places  []*control.Place
	spare   []*control.Place // cores of other nodes, held until its ranks run
	members []*control.Member
	at      map[uint32]bool // nodes of places: each message of a node looks there
	phase   control.JobPhase
	created time.Time

	client *control.Conn // follows the job and receives its records; nil when there is none
	spool  *spool        // gets the records instead when the job is detached

	ranks     []rank
	first     int                          // the rank that failed first, with KeepGoing the lowest that failed; control.None while none has
	failure   *control.Failure             // why the job failed as a whole
	limit     limit                        // on the job's run time
	losses    int                          // how often it has had to wait for its client
	confirmed bool                         // an allocation whose client knows its number
	failed    chan struct{}                // closed when failure is set
	loading   map[uint32]bool              // nodes that do not have all files yet
	present   bool                         // no node needs files: loaded is closed when the client knows that
	loaded    chan struct{}                // closed when loading is empty
	unstarted map[uint32][]*control.Signal // by node that has yet to start its ranks: signals for them
	phases    phases
	records   *records.Relay
	told      told
	noted     map[uint32]bool // nodes whose records are recorded as complete
	ends      bool            // ranks have ended since it was recorded
	soon      bool            // it is recorded soon
	over      map[uint32]bool // nodes that say that all ranks on them have ended
	behind    map[uint32]bool // nodes that must send records again when the client has taken more
	moved     time.Time       // when the last record, acknowledgement or connection of a node came in
	done      chan struct{}   // closed when no node has anything left of the job
	halt      unix.Signal     // SIGSTOP or SIGCONT, the last of them that all ranks were sent; 0: neither
	killing   unix.Signal     // the last signal sent to end the ranks; 0 if none was
	killed    time.Time       // when a node was last asked to end them
	asked     time.Time       // when all ranks were last sent a signal that ends programs, on request
	finishing bool
	torn      bool              // it has ended before its output was complete
	unkept    []*control.Unkept // by node: files that are lost with the job
	left      map[uint32]bool   // nodes whose last record has listed these files
	announced bool              // its client knows that it has ended, while nodes forget it
	unsaved   error             // why its state could not be recorded
	stood     time.Time         // since when the job stands still because of that; zero if it does not
	released  map[uint32]uint64 // by node: the newest record that it may forget, as sent over its connection
	owed      map[uint32]int    // by node: bytes of output received since the node could last forget all output

	doubted map[int]*control.Failure // by rank: the fault in sending to it after its end, which its record has yet to confirm

	collecting bool // its client reads the files that its ranks have written
	collected  bool // the client does not need the remaining ones
}

// rank is what serve knows of a rank.
type rank struct {
	place *control.Place
	exit  *control.ExitStatus // nil while it runs
}

func newJob(number uint32, spec *control.JobSpec, places []*control.Place) *job {
	j := &job{
		number: number, spec: spec, places: places, at: make(map[uint32]bool), created: time.Now(), first: control.None,
		failed: make(chan struct{}), loaded: make(chan struct{}), done: make(chan struct{}), loading: make(map[uint32]bool),
		records: records.NewRelay(), told: newTold(), noted: make(map[uint32]bool), over: make(map[uint32]bool), moved: time.Now(), owed: make(map[uint32]int), released: make(map[uint32]uint64), behind: make(map[uint32]bool), left: make(map[uint32]bool),
		unstarted: make(map[uint32][]*control.Signal),
	}
	if spec.Hold {
		j.halt = unix.SIGSTOP
	}
	j.present = spec.Allocation
	for _, p := range places {
		j.ranks = append(j.ranks, rank{place: p})
		j.at[p.Node] = true
	}
	return j
}

// on reports whether the job has ranks on a node.
func (j *job) on(node uint32) bool { return !j.spec.Allocation && j.has(node) }

// has reports whether the job has cores of a node.
func (j *job) has(node uint32) bool { return j.at[node] }

// nodes returns the nodes that the job has cores of, in order.
func (j *job) nodes() (nodes []uint32) {
	for _, p := range j.places {
		if n := len(nodes); n == 0 || nodes[n-1] != p.Node {
			nodes = append(nodes, p.Node)
		}
	}
	return nodes
}

// reads reports whether a rank has a standard input, and has not ended.
func (j *job) reads(rank int) bool {
	all, first := j.spec.Stdin == control.StdinMode_STDIN_ALL, j.spec.Stdin == control.StdinMode_STDIN_FIRST && rank == 0
	return (all || first) && j.ranks[rank].exit == nil
}

// complete reports whether all ranks have ended and all output of the job is safe.
func (j *job) complete() bool {
	if j.spec.Allocation {
		return j.ended()
	}
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

// heldUp reports whether ends of ranks may be queued behind output that the job's consumer does not
// take.
func (j *job) heldUp() bool {
	for _, m := range j.members {
		if !j.endedOn(m.Node) && j.waits(m.Node) {
			return true
		}
	}
	return false
}

// waits reports whether records of a node wait for the consumer, here or on the node.
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

// wantsRecords reports whether the job's records have a consumer.
func (j *job) wantsRecords() bool { return j.client != nil || j.spool != nil }

// exitCode is the job's exit status as margay run returns it: the status of the rank that failed
// first, or of the lowest that failed, or else of the failure. Missing output, or an end that could
// not be recorded, takes precedence over how a rank has ended.
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

// state is the job's state as reported to its client.
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

// shown is the phase of the job as shown to users. The caller holds Server.mu.
func (j *job) shown() control.JobPhase {
	if j.announced {
		return control.JobPhase_JOB_DONE
	}
	return j.phase
}

// enter begins the next phase of the job's launch, unless the job is ending. The caller holds
// Server.mu.
func (j *job) enter(phase control.Phase) {
	if !j.finishing {
		j.phases.enter(phase)
	}
}

// hasRank reports whether a rank of the job is on a node.
func (j *job) hasRank(rank, node uint32) bool {
	return uint64(rank) < uint64(len(j.ranks)) && j.ranks[rank].place.Node == node
}

// blame attributes an error that a node has reported to this node, and to a rank only if the rank
// is on it. Once ranks may have run, no node can claim that the launch failed: the client would
// launch the job again.
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

// aboutJob is implemented by all messages about one job.
type aboutJob interface{ GetJob() uint32 }

// fromJob processes a node's message about a job. It ignores messages about jobs in which the node
// has no part. The caller holds Server.mu.
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
			s.fault(j, m, j.blame(n.number, m.Error.Err()))
		}
	default:
		n.conn.Answer(f, nil, control.Failf(control.Code_CODE_BAD_REQUEST, "serve does not know what to do with %T from a node", m))
	}
}

// fault ends a job that a node cannot continue. While the job's ranks are being ended, because one
// has failed or the time limit has passed, messages to ended ranks mean nothing: the job ends with
// its ranks, or awaitEnd ends it. If the fault is a message to a rank whose record is still under
// way, this record decides: a rank that failed has ended the job. The caller holds Server.mu.
func (s *Server) fault(j *job, m *control.JobFault, failure *control.Failure) {
	switch {
	case j.killing != 0:
		s.config.Log("job %d: %v, while its ranks are ended", j.number, failure)
	case m.Ended != 0 && uint64(m.Ended) <= uint64(len(j.ranks)) && j.ranks[m.Ended-1].exit == nil:
		if j.doubted == nil {
			j.doubted = make(map[int]*control.Failure)
		}
		j.doubted[int(m.Ended-1)] = failure
	default:
		s.fail(j, failure)
	}
}

func toFailure(err error) *control.Failure {
	m := control.FromError(err)
	return &control.Failure{Code: m.Code, Text: m.Text, Node: int(m.Node), Rank: int(m.Rank)}
}

// record processes the records of a message: it notes ends of ranks and passes the message on. The
// caller holds Server.mu.
func (s *Server) record(j *job, m *control.Record) {
	if j.phase != control.JobPhase_JOB_RUNNING {
		return
	}
	if len(m.More) >= len(j.ranks) {
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its output cannot be believed: a message brings %d ends", 1+len(m.More)).At(m.Node))
		return
	}
	for r := range records.Each(m) {
		if !j.hasRank(r.Rank, r.Node) {
			return
		}
	}
	j.moved = time.Now()
	if j.spool != nil && j.spool.cut == "" && m.Acked > j.records.Seen(m.Node) {
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "the file of its output lacks records %d to %d", j.records.Seen(m.Node)+1, m.Acked).At(m.Node))
		return
	}
	if j.client != nil && j.spool == nil && j.client.Queued() > clientQueue {
		j.behind[m.Node] = true
		return
	}
	unkept := m.Unkept
	m.Unkept = nil // it is neither kept nor sent with the output
	passes, fresh := j.records.Take(m)
	if !passes {
		return
	}
	if fresh != nil {
		if err := j.told.take(fresh); err != nil {
			s.fail(j, control.Failf(control.Code_CODE_FAILED, "its output cannot be believed: %v", err).At(m.Node))
			return
		}
		j.owed[m.Node] += len(fresh.Data)
		if m.Last && unkept != nil && len(j.spec.Out) == 0 { // files that travel back still exist
			j.left[m.Node] = true
			j.lose(m.Node, unkept)
		}
		if fresh.Exit != nil {
			s.ranksEnded(j, fresh)
		}
	}
	switch {
	case j.spool != nil:
		if fresh != nil {
			if err := j.spool.write(fresh); err != nil {
				s.fail(j, control.Failf(control.Code_CODE_NO_ROOM, "keep its output: %v", s.onDisk(err)))
				return
			}
		}
		s.ack(j, m.Node, records.Newest(m))
	case j.client != nil:
		_ = j.client.Send(m) // the client knows what it has seen
	}
}

// clientQueue is how many bytes may be queued for a client before records stay with their nodes. It
// is far below the amount that ends the connection.
const clientQueue = 16 << 20

// catchUpClient asks nodes to resend the records that the client's queue had no room for. It asks
// as many nodes at a time as the queue has room for: each node holds about a MiB. The caller holds
// Server.mu.
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

// inputAgain asks the client of a job to resend the standard input that the ranks on a node have
// not taken: the node has registered again, and input in flight or sent while it was away is lost.
// The caller holds Server.mu.
func (s *Server) inputAgain(j *job, node uint32) {
	for i, r := range j.ranks {
		if r.place.Node == node && j.reads(i) && j.client != nil {
			_ = j.client.Send(&control.Rewind{Job: j.number, Node: node})
			return
		}
	}
}

// ack acknowledges a job's records to a node: they are safe elsewhere. The caller holds Server.mu.
func (s *Server) ack(j *job, node uint32, seq uint64) {
	if int64(node) >= int64(len(s.nodes)) {
		return
	}
	j.moved = time.Now()
	seq = j.records.Ack(node, seq)
	if j.recorded() {
		s.release(j, node, seq)
	} else if !j.complete() { // otherwise its end is recorded below
		s.recordSoon(j)
	}
	s.finishIfComplete(j)
}

// release allows a node to forget a job's records up to seq. The caller holds Server.mu.
func (s *Server) release(j *job, node uint32, seq uint64) {
	if seq == j.records.Seen(node) {
		j.owed[node] = 0
	}
	if n := s.nodes[node]; n.conn != nil {
		j.released[node] = max(j.released[node], seq)
		n.send(&control.Ack{Job: j.number, Seq: seq})
	}
}

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

// laterAwake is later, but time in which serve is stopped or has no CPU counts for little: the
// delay passes in steps.
func (s *Server) laterAwake(j *job, wait time.Duration, do func()) {
	const steps = 8
	left := steps
	var step func()
	step = func() {
		if left--; left < 0 {
			do()
			return
		}
		s.later(j, wait/steps, step)
	}
	step()
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

// clientGone ends a job whose client has disconnected, or has given it up for a reason, unless the
// job can run without one. The caller holds Server.mu.
func (s *Server) clientGone(j *job, why string) {
	j.client = nil
	gone := "is gone"
	if why != "" {
		gone = "gave up: " + printable.Short(why, maxWhy)
	}
	switch {
	case j.phase == control.JobPhase_JOB_ENDING:
	case j.collecting, len(j.spec.Out) > 0 && j.complete():
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay run %s; it has not brought back all files", gone))
		s.finish(j)
	case j.spool != nil && j.phase == control.JobPhase_JOB_RUNNING:
	case j.complete(): // its end is being recorded
	case j.phase == control.JobPhase_JOB_PREPARED && why == "":
		// Chunks of its files may be lost with the connection. If the client comes back, it asks
		// for the job again.
		s.fail(j, control.Failf(control.Code_CODE_RESTARTED, "the connection of its margay run was lost while the job was being launched"))
	case j.spec.Allocation:
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay alloc %s", gone))
	default:
		s.fail(j, control.Failf(control.Code_CODE_FAILED, "its margay run %s", gone))
	}
}

// maxCommand is how many bytes of a command line are shown to users.
const maxCommand = 200

// commandLine formats the programs of a job for users, separated by colons. A request may have a
// million words, so it stops where the text is cut.
func commandLine(exec *control.Exec) string {
	text, between := "", ""
	add := func(words ...[]byte) (fits bool) {
		for _, word := range words {
			text, between = text+between, " "
			if len(text)+len(word) > maxCommand {
				text += "..."
				return false
			}
			text += string(word)
		}
		return true
	}
	fits := add(exec.GetArgv()...)
	for _, p := range exec.GetParts() {
		if fits = fits && add([]byte(":")) && add(p.Argv...); !fits {
			break
		}
	}
	return printable.Line(text)
}
