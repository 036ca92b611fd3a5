package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// Bounds on requests to nodes and clients. The requests that launch a job have Timing.Each more for
// each of its nodes.
const (
	prepareTimeout = 30 * time.Second
	startTimeout   = 30 * time.Second
	forgetTimeout  = 10 * time.Second
	clientTimeout  = 30 * time.Second // for the client's confirmation that it knows the job
)

// forgetTime returns how long a node may take to end a job. It grows as the silence does after
// which a node is dead: on a machine of many nodes, an answer takes longer. The caller holds
// Server.mu.
func (s *Server) forgetTime() time.Duration { return s.pace() * forgetTimeout }

// admit creates a job. If there is no room for it, but late nodes or ending jobs would make room,
// it waits for them, and reports that to the client if it takes a while.
func (s *Server) admit(spec *control.JobSpec, client *control.Conn) (*job, error) {
	s.mu.Lock()
	most := s.config.Timing.deadAfter(s.pace()) + s.forgetTime()
	s.mu.Unlock()
	patience, silent := time.NewTimer(most), time.NewTimer(s.config.Timing.Late)
	defer patience.Stop()
	defer silent.Stop()
	for {
		s.mu.Lock()
		room, expected := s.room, s.expected(spec)
		s.mu.Unlock()
		j, err := s.create(spec, client)
		if err != errForgetting && (expected == "" || !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM})) {
			return j, err
		}
		select {
		case <-room:
		case <-silent.C:
			_ = client.Send(&control.LogLine{Level: "info", Text: "waiting for " + cmp.Or(expected, "nodes to forget a job that has ended"), TimeNs: time.Now().UnixNano()})
		case <-patience.C:
			return s.create(spec, client)
		case <-client.Done():
			return nil, control.ErrClosed
		case <-s.context.Done():
			return nil, context.Cause(s.context)
		}
	}
}

// expected names the nodes or jobs that will soon make room for a job; it is empty if there are
// none. The caller holds Server.mu.
func (s *Server) expected(spec *control.JobSpec) string {
	var offers []offer
	var late, ending []uint32
	for n := range s.members() {
		if n.info == nil || n.info.Arch != spec.Arch || n.out() && spec.Step == 0 || !n.late() && !n.up() {
			continue
		}
		o := offer{node: n.number, total: len(n.info.Cores)}
		for _, core := range n.info.Cores {
			use := n.uses[core]
			switch j := s.jobs[use.job]; {
			case use.job == spec.Step:
			case j != nil && j.ending() && s.allocationOf(j) == spec.Step:
				ending = append(ending, use.job)
			default:
				continue
			}
			o.cores = append(o.cores, core)
		}
		if n.late() {
			late = append(late, n.number)
		}
		offers = append(offers, o)
	}
	if len(late)+len(ending) == 0 || !fits(offers, spec) {
		return ""
	}
	var waits []string
	if len(late) > 0 {
		waits = append(waits, fmt.Sprintf("%s, which %s late", nodeset.Condense(late), agree(len(late), "is", "are")))
	}
	if slices.Sort(ending); len(ending) > 0 {
		ending = slices.Compact(ending)
		waits = append(waits, fmt.Sprintf("the end of %s %s", agree(len(ending), "job", "jobs"), nodeset.Ranges(ending)))
	}
	return strings.Join(waits, ", and ")
}

// roomChanged wakes up jobs that wait for room. The caller holds Server.mu.
func (s *Server) roomChanged() {
	close(s.room)
	s.room = make(chan struct{})
}

// create allocates cores for a job and enters it into the table.
func (s *Server) create(spec *control.JobSpec, client *control.Conn) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.createAs(nil, spec, client)
}

// createAs is create for a job that waits in the queue, or, with nil, for any other job. The caller
// holds Server.mu.
func (s *Server) createAs(w *waiting, spec *control.JobSpec, client *control.Conn) (*job, error) {
	if err := cmp.Or(shapeOf(spec).check(), s.reachable(shapeOf(spec)), checkLimit(spec), s.checkStep(spec)); err != nil {
		return nil, err
	}
	if err := s.withinLimits(w, spec, nil); err != nil {
		return nil, err
	}
	before, kept := s.waitsBehind(w, spec), s.giveBack(spec.Launch)
	if kept {
		defer s.roomChanged() // the job may leave some of it, or all
	}
	if !kept && before > 0 {
		return nil, control.Failf(control.Code_CODE_NO_ROOM, "%s came first and %s for cores that this one may use; --wait queues it behind %s",
			printable.Count(before, "job"), agree(before, "waits", "wait"), agree(before, "it", "them"))
	}
	phases := measure(time.Now())
	offers := s.offersFor(spec)
	places := s.choose(spec, offers)
	if places == nil {
		w.limit(s, false)
		return nil, s.noRoom(spec)
	}
	spare := spares(offers, shapeOf(spec), places, int(spec.Spares))
	if len(spare) < int(spec.Spares) {
		return nil, noSpares(spec, len(spare))
	}
	if err := s.withinLimits(w, spec, slices.Concat(places, spare)); err != nil {
		return nil, err
	}
	if s.forgetting(slices.Concat(places, spare), spec.Step) {
		return nil, errForgetting
	}
	phases.enter(control.Phase_PHASE_RECORD)
	number, err := s.store.nextJob()
	if err != nil {
		return nil, s.onDisk(err)
	}
	if spec.Task != nil && spec.Task.Array == 0 {
		spec.Task.Array = number
	}
	j := newJob(number, spec, places)
	j.spare = spare
	j.client, j.phases = client, phases
	j.phase = control.JobPhase_JOB_PREPARED
	last := -1
	for _, p := range places {
		n := s.nodes[p.Node]
		n.use(j, p)
		if int(p.Node) != last && !spec.Allocation {
			j.members = append(j.members, &control.Member{Node: p.Node, Address: n.info.Address})
			j.loading[p.Node] = true
			last = int(p.Node)
		}
	}
	for _, p := range spare {
		for _, core := range coresOf(p) {
			s.nodes[p.Node].uses[core] = use{job: number}
		}
	}
	s.jobs[number] = j
	if err := s.enter(j); err != nil {
		s.remove(j)
		return nil, err
	}
	return j, nil
}

// enter records a new job, and creates its spool if it is detached. The caller holds Server.mu.
func (s *Server) enter(j *job) (err error) {
	if j.spec.Detach {
		if j.spool, err = createSpool(s.config.Dir, j.number); err != nil {
			return s.onDisk(err)
		}
		s.outputs.watch(j.spool, j.number, j.spec)
	}
	if s.save(j); j.unsaved != nil && j.spool != nil {
		j.spool.close()
		_ = os.Remove(spoolPath(s.config.Dir, j.number)) // it is empty
		s.outputs.removed(j.number)
	}
	return j.unsaved
}

// remove deletes a job from the table and frees its cores. The caller holds Server.mu.
func (s *Server) remove(j *job) {
	if !s.keepForRetry(j) {
		s.free(j, j.places)
		s.free(j, j.spare)
	}
	delete(s.jobs, j.number)
	s.forgetFiles(j)
	s.leave(j)
	s.roomChanged()
}

// offers lists the free cores of the nodes that are in service. The caller holds Server.mu.
func (s *Server) offers() []offer {
	var offers []offer
	for n := range s.members() {
		if !n.inService() {
			continue
		}
		o := offer{node: n.number, total: len(n.info.Cores)}
		for _, core := range n.info.Cores {
			if s.using(n, core).job == 0 {
				o.cores = append(o.cores, core)
			}
		}
		offers = append(offers, o)
	}
	return offers
}

// using returns the user of a core. If the client knows that this job has ended, it is the job's
// allocation, or nothing. The caller holds Server.mu.
func (s *Server) using(n *node, core uint32) use {
	u := n.uses[core]
	if j := s.jobs[u.job]; j != nil && j.announced {
		return use{job: s.allocationOf(j)}
	}
	return u
}

// errForgetting is why a job waits for a moment: it gets the cores of a job that has ended as far
// as its client knows, so that placement does not depend on how fast nodes forget a job.
var errForgetting = control.Failf(control.Code_CODE_NO_ROOM, "the nodes still forget a job that has ended")

// forgetting reports whether nodes still have to forget a job that previously had one of the
// places. A step gets them from its allocation; otherwise that is 0. The caller holds Server.mu.
func (s *Server) forgetting(places []*control.Place, allocation uint32) bool {
	for _, p := range places {
		for _, core := range coresOf(p) {
			if s.nodes[p.Node].uses[core].job != allocation {
				return true
			}
		}
	}
	return false
}

// offersFor lists the free cores that a job may get: of nodes in service that have its
// architecture, or of its allocation. The caller holds Server.mu.
func (s *Server) offersFor(spec *control.JobSpec) []offer {
	if spec.Step != 0 {
		return s.stepOffers(spec.Step, func(n *node, core uint32) bool { return n.up() && s.using(n, core).job == spec.Step })
	}
	return slices.DeleteFunc(s.offers(), func(o offer) bool { return s.nodes[o.node].info.Arch != spec.Arch })
}

// noRoom reports why a job does not fit, and what does. The caller holds Server.mu.
func (s *Server) noRoom(spec *control.JobSpec) error {
	up, arches := s.arches()
	if up > 0 && !slices.Contains(arches, spec.Arch) {
		return control.Failf(control.Code_CODE_NOT_EXECUTABLE, "%s is for %s, but the nodes of machine %s are %s",
			spec.Path, spec.Arch, s.config.Machine, strings.Join(arches, " and "))
	}
	text := shapeOf(spec).lacks(s.offersFor(spec))
	if spec.Step != 0 {
		return s.noRoomForStep(spec, text)
	}
	if holders := s.holders(spec); len(holders) == 1 {
		text += fmt.Sprintf("; job %d has the others, and jobs do not share cores", holders[0])
	} else if len(holders) > 1 {
		text += fmt.Sprintf("; jobs %s have the others, and jobs do not share cores", numbers(holders))
	}
	return control.Failf(control.Code_CODE_NO_ROOM, "%s%s (%d of %d nodes are up; see margay nodes)", text, s.outOfService(spec), up, len(s.roster.Nodes))
}

// holders lists the jobs that hold cores of nodes in service that a job may use, in order. It omits
// jobs that have ended as far as their client knows: their cores count as free. The caller holds
// Server.mu.
func (s *Server) holders(spec *control.JobSpec) (jobs []uint32) {
	shape := shapeOf(spec)
	for n := range s.members() {
		if (n.inService() || spec.Step != 0) && shape.mayUse(n.number) {
			jobs = append(jobs, n.jobs()...)
		}
	}
	for i, job := range jobs { // to others, a step is a part of its allocation
		if j := s.jobs[job]; j != nil && spec.Step == 0 && s.allocationOf(j) != 0 {
			jobs[i] = j.spec.Step
		}
	}
	jobs = slices.DeleteFunc(jobs, func(job uint32) bool {
		j := s.jobs[job]
		return j != nil && (j.announced || spec.Step != 0 && j.spec.Step != spec.Step)
	})
	slices.Sort(jobs)
	return slices.Compact(jobs)
}

// shownJobs bounds how many jobs an error names.
const shownJobs = 10

// numbers formats a list of jobs.
func numbers(jobs []uint32) string {
	var words []string
	for _, job := range jobs[:min(len(jobs), shownJobs)] {
		words = append(words, strconv.FormatUint(uint64(job), 10))
	}
	if len(jobs) > shownJobs {
		words = append(words, "...")
	}
	return strings.Join(words, ", ")
}

// arches returns how many nodes are up, and their architectures. The caller holds Server.mu.
func (s *Server) arches() (up int, arches []string) {
	for n := range s.members() {
		if n.up() {
			up++
			arches = append(arches, n.info.Arch)
		}
	}
	slices.Sort(arches)
	return up, slices.Compact(arches)
}

// launch takes a job from its creation to running. Any failure ends the job; the client learns the
// reason from the job's state.
func (s *Server) launch(j *job, m *control.RunRequest, request *control.Frame, client *control.Conn) {
	if j.spec.Allocation {
		s.grant(j, request, client)
		return
	}
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // it never fails
	if t := j.spec.Task; t != nil && m.Exec != nil {
		m.Exec.Env = append(m.Exec.Env, fmt.Appendf(nil, "MARGAY_ARRAY_JOB_ID=%d", t.Array))
	}
	layout, err := j.layout()
	if err != nil {
		s.mu.Lock()
		s.fail(j, toFailure(err)) // step asks no node
		s.mu.Unlock()
	}
	prepare := &control.Prepare{Job: j.number, Spec: j.spec, Layout: layout, Secret: secret, Exec: m.Exec, Files: m.Files}
	if j.spec.Joins {
		if prepare.Network, err = s.networkOf(j.spec.Step); err != nil {
			s.mu.Lock()
			s.fail(j, toFailure(err))
			s.mu.Unlock()
		}
		prepare.NetworkJob = j.spec.Step
	}
	lacking := newUnion(len(m.Exec.GetContents()))
	s.enterPhase(j, control.Phase_PHASE_PREPARE)
	prepared := s.step(j, prepareTimeout, prepare, func(q *question, answer proto.Message) {
		lacking.add(answer)
		s.nodePrepared(j, q.node, answer)
	})
	if !prepared {
		select {
		case <-j.done: // its cores must be free by the time the client knows
			client.Answer(request, nil, j.failure)
		case <-s.context.Done(): // the client notices the end of the connection
		}
		return
	}
	present := s.allPresent(j)
	client.Answer(request, &control.RunReply{Job: j.number, Places: j.places, Lacking: lacking.list(), Loaded: present}, nil)
	if !s.loaded(j, present) {
		return
	}
	started := func(q *question, answer proto.Message) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if m, ok := answer.(*control.Started); ok {
			j.phases.worked(control.Phase_PHASE_START, q.node, m.StartNs)
		}
		if answer != nil {
			s.startedOn(s.nodes[q.node], j)
			s.killOn(s.nodes[q.node], j)
		}
	}
	if !s.runs(j) || !s.step(j, startTimeout, &control.Start{Job: j.number}, started) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[j.number] == j {
		j.enter(control.Phase_PHASE_RUN)
		for _, m := range j.members { // it may have been stopped before it had ranks
			s.haltOn(s.nodes[m.Node], j)
		}
		j.tellClient()
	}
}

// loaded waits until every node has a job's files, and returns false if the job has ended before.
// If all files were present, the client must answer soon; otherwise the nodes supervise the
// transfer.
func (s *Server) loaded(j *job, present bool) bool {
	var late <-chan time.Time
	if present {
		late = time.After(clientTimeout)
	}
	select {
	case <-j.loaded:
		return true
	case <-j.failed:
	case <-s.context.Done():
	case <-late:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fail(j, control.Failf(control.Code_CODE_RESTARTED, "its margay run has not answered for %v", clientTimeout)) // it may have been stopped, and can ask again
	}
	return false
}

// nodePrepared processes a node's answer to Prepare.
func (s *Server) nodePrepared(j *job, node uint32, answer proto.Message) {
	m, ok := answer.(*control.Prepared)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j.phases.worked(control.Phase_PHASE_PREPARE, node, m.PrepareNs)
	j.phases.worked(control.Phase_PHASE_LOAD, node, m.LoadNs)
	if m.Loaded {
		delete(j.loading, node)
	}
}

// allPresent begins the loading of a job, and reports whether all its nodes have its files already.
// In this case loading waits only for the client. No rank may run before that: a client that does
// not know the job's number would ask for the job again after it has lost its connection.
func (s *Server) allPresent(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.enter(control.Phase_PHASE_LOAD)
	j.present = len(j.loading) == 0
	return j.present
}

// enterPhase is job.enter for a caller that does not hold Server.mu.
func (s *Server) enterPhase(j *job, phase control.Phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.enter(phase)
}

// runs records that a job is running before its nodes are asked to start it: ranks may produce
// output before every node has answered. It returns false if the job has ended.
func (s *Server) runs(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.finishing {
		return false
	}
	j.phase = control.JobPhase_JOB_RUNNING
	j.limit = limitOf(j.spec, time.Now())
	j.enter(control.Phase_PHASE_RECORD)
	if s.save(j); j.unsaved != nil {
		j.phase = control.JobPhase_JOB_PREPARED
		s.fail(j, toFailure(j.unsaved))
		return false
	}
	s.freeSpares(j)
	for _, m := range j.members {
		j.starts(m.Node)
	}
	j.enter(control.Phase_PHASE_START)
	s.keepLimit(j)
	return true
}

// step sends a request to all nodes of a job, in turns, and reports whether none has refused it.
// Otherwise the job has failed, and step does not wait for the other nodes. If answered is not nil,
// it receives each answer, and nil for a node without one.
func (s *Server) step(j *job, timeout time.Duration, request proto.Message, answered func(*question, proto.Message)) bool {
	refused := s.failIfRefused(j)
	s.inTurns(j, s.launchTime(j, timeout), j.failed, func(node uint32) *question {
		s.mu.Lock()
		defer s.mu.Unlock()
		if j.finishing { // a node that has forgotten the job would get it again, and keep it
			return nil
		}
		return s.ask(node, request)
	}, func(q *question, answer proto.Message, err error) {
		if answered != nil {
			answered(q, answer)
		}
		refused(q, answer, err)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.failure == nil && !j.finishing
}

// launchTime returns how long a request that launches a job may take, from the time that it may
// take in a job of one node.
func (s *Server) launchTime(j *job, one time.Duration) time.Duration {
	return one + time.Duration(len(j.members)-1)*s.config.Timing.Each
}

// turns returns how many nodes of a job are asked at a time.
func (s *Server) turns(j *job) int {
	if most := s.config.AtOnce; most > 0 {
		return min(len(j.members), most)
	}
	return len(j.members)
}

// failIfRefused returns the handler for a node's answer that a job needs. A node whose connection
// breaks is either dead soon, or back. When it is back, serve repeats the request of a running job
// (startOn), and a launch has failed.
func (s *Server) failIfRefused(j *job) func(*question, proto.Message, error) {
	return func(q *question, _ proto.Message, err error) {
		if err == nil || errors.Is(err, &control.Failure{Code: control.Code_CODE_NODE_LOST}) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fail(j, j.blame(q.node, err))
	}
}

// inTurns asks the nodes of a job, and reports each answer. When as many as serve asks at a time
// have not answered, the next one waits for its turn. Each node has timeout for its answer. ask
// returns nil if no further node must be asked. When over is closed, inTurns waits no longer, and
// asks no further node; nil never is.
func (s *Server) inTurns(j *job, timeout time.Duration, over <-chan struct{}, ask func(node uint32) *question,
	answered func(q *question, answer proto.Message, err error)) {
	ctx, cancel := context.WithCancel(s.context)
	defer cancel()
	go func() {
		select {
		case <-over:
			cancel()
		case <-ctx.Done():
		}
	}()
	turns := make(chan struct{}, max(1, s.turns(j)))
	var waiting sync.WaitGroup
	defer waiting.Wait()
	for _, m := range j.members {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		q := ask(m.Node)
		if q == nil {
			return
		}
		waiting.Go(func() {
			defer func() { <-turns }()
			s.await(ctx, q, timeout, answered)
		})
	}
}

// await waits for the answer to a question, and reports it.
func (s *Server) await(ctx context.Context, q *question, timeout time.Duration, answered func(q *question, answer proto.Message, err error)) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if answer, err := q.answer(ctx); s.context.Err() == nil {
		answered(q, answer, err)
	}
}

// nodeLoaded processes a node's report that it has a job's files, or why not. Once all nodes have
// them, the report of a node that could not pass them on is irrelevant. The caller holds Server.mu.
func (s *Server) nodeLoaded(j *job, n *node, m *control.Loaded) {
	if len(j.loading) == 0 {
		return
	}
	if m.Error != nil {
		s.fail(j, j.blame(n.number, m.Error.Err()))
		return
	}
	if !j.loading[n.number] {
		return
	}
	j.phases.worked(control.Phase_PHASE_LOAD, n.number, m.LoadNs)
	delete(j.loading, n.number)
	if len(j.loading) == 0 {
		close(j.loaded)
	}
}
