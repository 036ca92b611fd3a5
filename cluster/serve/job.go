package serve

import (
	"time"

	"golang.org/x/sys/unix"

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

	client   *control.Conn // follows the job and receives its records; nil when there is none
	launcher launcher      // the process of the client, or of the last one
	spool    *spool        // gets the records instead when the job is detached

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
	missed    map[uint32][]*missed         // by node that is away: signals for ranks on it
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
	killed    time.Time       // when a node was last asked to end them, or for their ends
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
		unstarted: make(map[uint32][]*control.Signal), missed: make(map[uint32][]*missed),
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
// take, or cannot take because it is away: nodes send that output again when it is back.
func (j *job) heldUp() bool {
	if !j.wantsRecords() {
		return true
	}
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
	m := &control.JobState{Job: j.number, Phase: j.phase, ExitCode: j.exitCode(), FirstFailed: int32(j.first), Unkept: j.unkept, Collect: j.collecting && !j.collected, Halt: int32(j.halt)}
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

// starts notes that a node has yet to start its ranks. The caller holds Server.mu.
func (j *job) starts(node uint32) {
	if _, ok := j.unstarted[node]; !ok {
		j.unstarted[node] = nil
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
