package serve

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/internal/printable"
)

// client is a connection of the command line tool.
type client struct {
	server    *Server
	conn      *control.Conn
	caller    permit.Caller
	launcher  launcher
	questions chan struct{} // has a value for each request in later; nil: it may have any number
	inlet     inlet         // for what a user sends

	// Guarded by Server.mu.
	jobs      []*job   // jobs whose client this is
	left      bool     // the connection has ended
	early     []func() // requests that wait in whenSettled; the first one may be being carried out
	earlySize int      // bytes that they take
}

// handle processes a frame from the client, if its user may ask for that.
func (c *client) handle(f *control.Frame) {
	s := c.server
	if c.caller.Token != 0 && !s.valid(c.caller.Token, time.Now()) { // the connection is about to end
		return
	}
	if c.caller.Role == permit.User && f.Call != 0 && c.conn.Drained(s.context) != nil { // a user must take answers before there are more
		return
	}
	if err := s.check(c.caller, f.Message()); err != nil {
		c.conn.Answer(f, nil, err)
		return
	}
	c.sign(f.Message())
	if c.caller.Role == permit.User { // it might go to a thousand nodes
		control.DropUnknown(f.Message())
	}
	switch m := f.Message().(type) {
	case *control.RunRequest:
		c.whenSettled(m, func() { c.run(f, m) })
	case *control.Attach:
		c.attach(f, m)
	case *control.FileChunk:
		c.fileChunk(m)
	case *control.Stdin:
		c.stdin(m)
	case *control.Resize:
		c.own(m.Job, func(j *job) { s.nodes[j.ranks[0].place.Node].send(m) })
	case *control.Ack:
		c.own(m.Job, func(j *job) { s.ack(j, m.Node, m.Seq) })
	case *control.Signal:
		s.signalAndKeep(m, func() { c.conn.Answer(f, &control.Done{}, nil) })
	case *control.ReadFiles:
		c.later(func() { c.readFiles(f, m) })
	case *control.FilesRead:
		c.own(m.Job, s.stopCollecting)
	case *control.Leave:
		c.own(m.Job, func(j *job) { s.clientLeaves(j, m.Why) })
	case *control.EndAllocation:
		c.own(m.Job, func(j *job) { s.endAllocation(j, m.Exit) })
	case *control.Withdraw:
		c.whenSettled(m, func() { s.withdraw(c.conn, m.Call) })
	case *control.Kill:
		c.conn.Answer(f, &control.Done{}, s.kill(m))
	case *control.ListNodes:
		c.conn.Answer(f, s.listNodes(), nil)
	case *control.ListJobs:
		jobs, err := c.listJobs(m)
		c.conn.Answer(f, jobs, err)
	case *control.RemoveOutput:
		c.later(func() {
			removed, err := s.removeOutput(m, c.caller)
			c.conn.Answer(f, removed, err)
		})
	case *control.DrainNodes:
		drained, err := s.drain(m)
		c.conn.Answer(f, drained, err)
	case *control.ResumeNodes:
		c.conn.Answer(f, &control.Done{}, s.resume(m))
	case *control.EvictNodes:
		evicted, err := s.evict(m)
		c.conn.Answer(f, evicted, err)
	case *control.ShrinkMachine:
		leaving, err := s.shrink(m)
		c.conn.Answer(f, leaving, err)
	case *control.GrowMachine:
		c.later(func() {
			added, err := s.grow(m)
			c.conn.Answer(f, added, err)
		})
	case *control.ApproveGuests:
		c.later(func() {
			added, err := s.approve(m)
			c.conn.Answer(f, added, err)
		})
	case *control.RebootNodes:
		c.later(func() {
			done, err := s.reboot(m)
			c.conn.Answer(f, done, err)
		})
	case *control.UpdateNodes:
		c.later(func() {
			begun, err := s.updateNodes(m)
			c.conn.Answer(f, begun, err)
		})
	case *control.ReadUpdate:
		c.conn.Answer(f, s.readUpdate(), nil)
	case *control.SwitchNodes:
		c.later(func() {
			done, err := s.switchNodes(m)
			c.conn.Answer(f, done, err)
		})
	case *control.Status:
		c.conn.Answer(f, s.status(c.caller), nil)
	case *control.Noise:
		c.later(func() {
			report, err := s.noise(m)
			c.conn.Answer(f, report, err)
		})
	case *control.ListExtensions:
		c.later(func() {
			list, err := s.listExtensions(m)
			s.veilExtensions(list, c.caller)
			c.conn.Answer(f, list, err)
		})
	case *control.ExtensionLog:
		c.later(func() {
			notes, err := s.extensionNotes(m)
			s.veilNotes(notes, c.caller)
			c.conn.Answer(f, notes, err)
		})
	case *control.InsertExtension:
		c.later(func() {
			list, err := s.insertExtension(m)
			c.conn.Answer(f, list, err)
		})
	case *control.ReadClock:
		c.later(func() { c.relay(f, m.Node, m, 0) })
	case *control.ReadStacks:
		c.later(func() { c.readStacks(f, m) })
	case *control.ReadEvents:
		c.later(func() { c.relay(f, m.Node, m, 0) })
	case *control.ReadKernelLog:
		c.later(func() { c.relay(f, m.Node, m, control.KernelLogWait) })
	case *control.TakeSamples:
		c.later(func() {
			samples, err := s.takeSamples(m)
			s.veilSamples(samples, c.caller)
			c.conn.Answer(f, samples, err)
		})
	case *control.SetDuties:
		c.later(func() { c.conn.Answer(f, &control.Done{}, s.setDuties(m)) })
	case *control.RestartKernel:
		c.later(func() { c.conn.Answer(f, &control.Done{}, s.restartKernel(m)) })
	case *control.RemoveExtension:
		c.later(func() { c.conn.Answer(f, &control.Done{}, s.removeExtensionFor(m, c.caller)) })
	case *control.ReadAudit:
		c.later(func() {
			audit, err := s.readAudit()
			c.conn.Answer(f, audit, err)
		})
	case *control.CreateToken:
		c.later(func() {
			token, err := c.createToken(m, time.Now())
			c.conn.Answer(f, token, err)
		})
	case *control.ListTokens:
		c.conn.Answer(f, s.listTokens(), nil)
	case *control.RevokeTokens:
		c.conn.Answer(f, &control.Done{}, s.revokeTokens(m, c.caller.Name))
	default:
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_BAD_REQUEST, "serve does not know what to do with %T from a client", m))
	}
}

// own does something to a job, with Server.mu held, if this connection is the job's client.
func (c *client) own(number uint32, do func(*job)) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if j := c.server.jobs[number]; j != nil && j.client == c.conn {
		do(j)
	}
}

// mostQuestions is how many requests of one connection of a user are carried out at a time, besides
// those that serve answers at once.
const mostQuestions = 16

// later carries out a request that takes time. The connection waits for a large one of a user.
func (c *client) later(do func()) {
	switch {
	case c.questions == nil:
		c.server.running.Go(do)
		return
	case c.inlet.large:
		do()
		return
	}
	c.questions <- struct{}{}
	c.server.running.Go(func() {
		defer func() { <-c.questions }()
		do()
	})
}

// requestSize is about what a request without content takes while it waits, in bytes.
const requestSize = 512

// whenSettled carries out a request as soon as serve knows the cores of the machine. Right after
// its start it does not. Until then requests wait, in order, and the connection is read on for the
// jobs that it has, unless the requests take more memory than the largest frame has, or one of a
// user is large.
func (c *client) whenSettled(m proto.Message, do func()) {
	s := c.server
	s.mu.Lock()
	if s.isSettled() && len(c.early) == 0 {
		s.mu.Unlock()
		do()
		return
	}
	c.early = append(c.early, do)
	c.earlySize += requestSize
	if request, ok := m.(*control.RunRequest); ok {
		c.earlySize += sizeOf(request)
	}
	first, full := len(c.early) == 1, c.earlySize > control.MaxFrame || c.inlet.large
	s.mu.Unlock()
	if first {
		s.running.Go(func() {
			if c.awaitSettled() {
				c.doEarly()
			}
		})
	}
	if full {
		c.awaitSettled()
	}
}

func (s *Server) isSettled() bool {
	select {
	case <-s.settled:
		return true
	default:
		return false
	}
}

// awaitSettled reports false if the connection or serve ends first.
func (c *client) awaitSettled() bool {
	select {
	case <-c.server.settled:
		return true
	case <-c.conn.Done():
	case <-c.server.context.Done():
	}
	return false
}

// doEarly carries out the requests that have waited in whenSettled.
func (c *client) doEarly() {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(c.early) > 0 {
		do := c.early[0]
		s.mu.Unlock()
		do()
		s.mu.Lock()
		c.early = c.early[1:]
	}
	c.early, c.earlySize = nil, 0
}

// relay forwards a client's question to a node, and the node's answer to the client. The node may
// wait for so long before it answers.
func (c *client) relay(f *control.Frame, node uint32, question proto.Message, wait time.Duration) {
	var answer proto.Message
	nodes, err := c.server.upNodes(int64(node))
	if err == nil {
		err = c.server.gather(nodes, wait+c.server.answerTimeout(), question, func(_ uint32, m proto.Message) { answer = m })
	}
	c.conn.Answer(f, answer, err)
}

// gone ends the jobs that need this client.
func (c *client) gone() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.server.context.Err() != nil {
		return // serve itself is ending
	}
	c.left = true
	lost := c.caller.Token != 0 && !errors.Is(c.conn.Err(), control.ErrClosed)
	for _, j := range c.jobs {
		switch {
		case j.client != c.conn:
		case lost:
			c.server.away(j)
		default:
			c.server.clientGone(j, isGone)
		}
	}
}

func (c *client) run(f *control.Frame, m *control.RunRequest) {
	s := c.server
	if m.Spec == nil {
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_BAD_REQUEST, "RunRequest without a job"))
		return
	}
	if len(m.Files) > control.FilesAhead {
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_BAD_REQUEST, "RunRequest with files of %d bytes, at most %d go along", len(m.Files), control.FilesAhead))
		return
	}
	m.Spec.Only, m.Spec.Without = distinct(m.Spec.Only), distinct(m.Spec.Without)
	if err := checkSpec(m.Spec); err != nil {
		c.conn.Answer(f, nil, err)
		return
	}
	m.Spec.Command = commandLine(m.Exec)
	asked := time.Now()
	if m.Spec.WaitMs != 0 { // this goroutine must stay free to see the end of the connection
		w := &waiting{spec: m.Spec, reach: reachOf(m.Spec), client: c.conn, call: f.Call, size: sizeOf(m), since: asked, withdrawn: make(chan struct{})}
		if err := s.join(w); err != nil {
			c.created(f, m, asked, nil, err)
			return
		}
		s.running.Go(func() {
			j, err := s.enqueued(w)
			c.created(f, m, asked, j, err)
		})
		return
	}
	j, err := s.admit(m.Spec, c.conn)
	c.created(f, m, asked, j, err)
}

// distinct returns numbers in order, each once.
func distinct(numbers []uint32) []uint32 {
	slices.Sort(numbers)
	return slices.Clone(slices.Compact(numbers))
}

// created launches the job that the client asked for at the time asked, or reports why there is no
// job.
func (c *client) created(f *control.Frame, m *control.RunRequest, asked time.Time, j *job, err error) {
	s := c.server
	if err != nil {
		c.conn.Answer(f, nil, err)
		return
	}
	s.mu.Lock()
	j.phases.asked(asked)
	c.follow(j)
	if c.left {
		s.clientGone(j, isGone)
	}
	s.mu.Unlock()
	if j.spec.Allocation {
		s.config.Log("job %d: an allocation of %s for %s", j.number, printable.Count(seats(j.places), "core"), j.spec.Command)
	} else if !s.quiet(j) {
		s.config.Log("job %d: %s of %s on %s", j.number, printable.Count(len(j.places), "rank"), j.spec.Command, printable.Count(len(j.members), "node"))
	}
	s.running.Go(func() { s.launch(j, m, f, c.conn) })
}

// follow notes that the connection is the client of a job. It follows any number of jobs in its
// life: those that have ended are dropped. The caller holds Server.mu.
func (c *client) follow(j *job) {
	j.launcher = c.launcher
	if len(c.jobs) > 2*len(c.server.jobs) {
		c.jobs = slices.DeleteFunc(c.jobs, func(old *job) bool { return c.server.jobs[old.number] != old })
	}
	c.jobs = append(c.jobs, j)
}

// attach makes the connection the client of a job that has lost its client, or replays a detached
// job's output.
func (c *client) attach(f *control.Frame, m *control.Attach) {
	if m.Output {
		c.later(func() { c.replay(f, m.Job) })
		return
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[m.Job]
	if j == nil {
		state, err := s.lastState(m.Job)
		c.conn.Answer(f, fitState(state), err)
		return
	}
	s.takeOver(j, c.caller)
	if j.client != nil && j.phase == control.JobPhase_JOB_PREPARED {
		// serve has not yet noticed the end of the old connection.
		s.clientGone(j, isGone)
	}
	if j.client != nil {
		c.conn.Answer(f, nil, control.Failf(control.Code_CODE_REFUSED, "job %d has a client", m.Job))
		return
	}
	j.client, j.moved, j.confirmed = c.conn, time.Now(), true
	clear(j.behind) // the Rewind below makes all nodes send again
	before := j.launcher
	c.follow(j)
	state := j.state()
	state.Phase = j.shown()
	c.conn.Answer(f, fitState(state), nil)
	if j.launcher != before && j.phase == control.JobPhase_JOB_RUNNING { // the next serve must look for this one
		s.save(j)
	}
	j.tellUnsaved()
	s.finishIfComplete(j) // if its client has not copied its files back
	j.killed = time.Now() // ends of ranks may come only now
	for _, member := range j.members {
		s.nodes[member.Node].send(&control.Rewind{Job: j.number})
	}
}

// replay answers with the output of a detached job. It sends no answer when serve ends: the
// connection closes instead.
func (c *client) replay(f *control.Frame, job uint32) {
	s := c.server
	err := s.replay(job, c.conn)
	if err == nil || s.context.Err() == nil {
		c.conn.Answer(f, &control.Done{}, err)
	}
}

// fileChunk passes a chunk of a job's files to the job's first node. When no node needs files, the
// last chunk means that the client knows of this. For an allocation it means that the client knows
// its number.
func (c *client) fileChunk(m *control.FileChunk) {
	s := c.server
	c.pace(m.Job)
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[m.Job]
	switch {
	case j == nil || j.client != c.conn || j.finishing:
	case j.spec.Allocation:
		j.confirmed = true
	case !j.present:
		s.nodes[j.members[0].Node].send(m)
	case m.Last && j.phase == control.JobPhase_JOB_PREPARED:
		select {
		case <-j.loaded:
		default:
			close(j.loaded)
		}
	}
}

// pace waits until the nodes of a job have taken what a user has sent them. A client of Margay
// sends only as much as nodes can hold. One that a user has written may send more, and without pace
// the nodes would lose their connections, and others their jobs.
func (c *client) pace(number uint32) {
	if c.caller.Role != permit.User {
		return
	}
	s := c.server
	var nodes []*control.Conn
	c.own(number, func(j *job) {
		for _, m := range j.members {
			if conn := s.nodes[m.Node].conn; conn != nil {
				nodes = append(nodes, conn)
			}
		}
	})
	for _, conn := range nodes {
		_ = conn.Drained(s.context)
	}
}

// stdin passes a piece of standard input to the ranks that read it. It ignores one that is larger,
// or names more nodes, than pieces of any client of Margay: it may be for thousands of ranks.
func (c *client) stdin(m *control.Stdin) {
	c.pace(m.Job)
	c.own(m.Job, func(j *job) {
		if len(m.Data) > control.StdinPiece || len(m.Only) > len(j.members) {
			return
		}
		for i, r := range j.ranks {
			if j.reads(i) && (len(m.Only) == 0 || slices.Contains(m.Only, r.place.Node)) {
				c.server.nodes[r.place.Node].send(&control.Stdin{Job: m.Job, Rank: uint32(i), Offset: m.Offset, Data: m.Data, Eof: m.Eof})
			}
		}
	})
}

func (s *Server) kill(m *control.Kill) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[m.Job]
	if j == nil {
		if _, err := s.lastState(m.Job); err != nil {
			return err
		}
		return control.Failf(control.Code_CODE_NOT_FOUND, "job %d has ended", m.Job)
	}
	if collecting := j.collecting; m.Force {
		s.fail(j, control.Failf(control.Code_CODE_KILLED, "job %d was killed by its user", m.Job))
		if collecting {
			s.stopCollecting(j)
		}
		return nil
	}
	if m.Rank >= int32(len(j.ranks)) || m.Rank < control.None {
		return control.Failf(control.Code_CODE_NOT_FOUND, "job %d has no rank %d", m.Job, m.Rank)
	}
	if m.Signal <= 0 || m.Signal > 64 {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "there is no signal %d", m.Signal)
	}
	if away := s.signal(j, int(m.Rank), unix.Signal(m.Signal)); len(away) > 0 {
		return control.Failf(control.Code_CODE_RESTARTED, "its ranks did not get the signal: the node is away, its node kernel may just be started again").At(away[0])
	}
	return nil
}

func (s *Server) listNodes() *control.Nodes {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &control.Nodes{Guests: s.guests}
	for n := range s.members() {
		state := &control.NodeState{
			Node: n.number, Health: n.health, Reason: n.reason, Retry: n.retry, Info: n.info, Boots: n.boots,
			SilentMs: time.Since(n.heard).Milliseconds(), Drain: n.drained(), Term: n.term,
			Power: n.seenPower(), Panic: n.firmware.panic,
		}
		if n.health == control.NodeHealth_NODE_UP || n.health == control.NodeHealth_NODE_LATE { // otherwise they are its last boot's
			state.Ill, state.Vitals, state.FreeMemory = n.fit.Ill(), n.vitals, n.free
		}
		if n.gone() {
			state.Remedy, state.Waits = n.remedy, n.waits
		}
		if n.stage != nil && (n.health == control.NodeHealth_NODE_BOOTING || n.health == control.NodeHealth_NODE_DEAD) {
			state.Stage, state.Percent = n.stage.Stage, n.stage.Percent
		}
		if n.health == control.NodeHealth_NODE_UP {
			state.UpMs = time.Since(n.since).Milliseconds()
		}
		if n.info != nil {
			for _, core := range n.info.Cores {
				u := s.using(n, core)
				state.Cores = append(state.Cores, &control.CoreUse{Core: core, Job: u.job, Ranks: u.ranks})
			}
		}
		list.Nodes = append(list.Nodes, state)
	}
	return list
}

// listJobs lists jobs as the caller may see them. A user gets one list after the other, over all
// connections, because a list takes much memory.
func (c *client) listJobs(m *control.ListJobs) (*control.Jobs, error) {
	if f := c.inlet.frames; f != nil {
		f.listing.Lock()
		defer f.listing.Unlock()
	}
	return c.server.listJobs(m, c.caller)
}

func (s *Server) listJobs(m *control.ListJobs, caller permit.Caller) (*control.Jobs, error) {
	list := new(control.Jobs)
	s.mu.Lock()
	for _, j := range s.jobs {
		if m.Job == 0 || m.Job == j.number {
			list.Jobs = append(list.Jobs, j.visible())
		}
	}
	for _, j := range s.ended {
		if m.All && m.Job == 0 || m.Job == j.number {
			list.Jobs = append(list.Jobs, j.summary())
		}
	}
	if m.Job == 0 {
		list.Waiting = s.waitingJobs(caller)
	}
	s.mu.Unlock()
	if m.All || m.Job != 0 {
		// It takes a while, and nothing else waits for it. The store also has the jobs above, as
		// last saved.
		above := make(map[uint32]bool)
		for _, j := range list.Jobs {
			above[j.Job] = true
		}
		err := s.store.each(m.Job, func(j *control.StoredJob) {
			if m.Job == 0 { // a long list has none of these
				j.Summary.RankStates, j.Summary.Unkept = nil, nil
			}
			if !above[j.Summary.Job] {
				list.Jobs = append(list.Jobs, j.Summary)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(list.Jobs, func(a, b *control.JobSummary) int { return int(a.Job) - int(b.Job) })
	for i, j := range list.Jobs {
		if !caller.Sees(j.Uid) {
			list.Jobs[i] = veiled(j)
		}
	}
	if m.Job != 0 && len(list.Jobs) == 0 {
		return nil, control.Failf(control.Code_CODE_NOT_FOUND, "there is no job %d", m.Job)
	}
	if m.Job != 0 {
		return fitJob(list), nil
	}
	for _, j := range list.Jobs {
		listed(j)
	}
	return list, nil
}

func (s *Server) status(caller permit.Caller) *control.MachineStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &control.MachineStatus{
		Machine: s.config.Machine, Substrate: s.config.Substrate, ServePid: int64(os.Getpid()), Nodes: uint32(len(s.roster.Nodes)),
		SinceNs: s.started.UnixNano(), ServeStarts: s.starts,
		Unwritten: s.history.unwritten(),
		Users:     s.config.Access.Users.String(), Administrators: s.config.Access.Administrators.String(), Role: caller.Role.String(),
		LimitCores: uint32(s.config.Access.Cores), LimitJobs: uint32(s.config.Access.Jobs), LimitOutput: uint32(s.config.Access.Output),
	}
	if s.config.Remote != nil {
		m.Listen = s.config.Remote.Addr().String()
	}
	for _, j := range s.jobs {
		if !j.announced {
			m.Jobs++
		}
	}
	for n := range s.members() {
		if n.drain != nil {
			m.Drained++
		}
		if n.health == control.NodeHealth_NODE_OFF {
			m.Off++
		}
		if n.up() {
			m.Up++
			m.Cores += uint32(len(n.info.Cores))
		}
	}
	for _, o := range s.offers() {
		m.FreeCores += uint32(len(o.cores))
	}
	return m
}
