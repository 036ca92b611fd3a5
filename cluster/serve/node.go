package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/fitness"
	"margay/cluster/trust"
	"margay/internal/printable"
	"margay/kernel/abi/id"
	"margay/kernel/gate"
)

// node is serve's view of a node. Server.mu guards it.
type node struct {
	number   uint32
	term     uint32        // how many nodes have had the number, this one included
	conn     *control.Conn // nil while it is not connected
	fresh    *control.Conn // the newest connection that has shown the node's token and has not registered; nil if there is none
	leaving  string        // the boot that a reboot order ends; empty if there is none
	health   control.NodeHealth
	reason   string // why it is not up
	retry    bool   // reason says how it ended, and it is being started again
	remedy   string // what brings it back when it is dead or off; empty when it comes back unaided
	waits    bool   // it is off, and comes when it is switched on by hand
	info     *control.NodeInfo
	unsaved  bool // info has changed since it was recorded
	boot     string
	pace     time.Duration // factor of the times of its heartbeats (Timing.pace), as when it registered
	heard    time.Time     // when it last sent something; while it is booting, when the boot started
	entered  time.Time     // when this serve got to know it
	since    time.Time     // when it registered
	free     int64         // memory, in bytes
	boots    uint32
	started  time.Time          // when the holder started its substrate
	power    control.NodePower  // whether its substrate runs
	stage    *control.NodeStage // progress of its boot over the network; nil if it is up, or boots in another way
	panicked string             // why its console says that its Linux has panicked since its start; empty: it does not
	firmware keptLogs
	uses     map[uint32]use  // cores in use
	drain    *control.Drain  // why it gets no jobs; nil if it is in service
	retiring bool            // the holder has been asked to end it for good
	kept     time.Time       // when the holder could not
	vitals   *control.Vitals // from its last heartbeat
	fit      fitness.State   // whether it is well enough for jobs
	strays   []uint32        // jobs in its last heartbeat that serve does not have there
	owes     int             // actions that it must complete before it can get jobs
	log      *gate.Log       // takes the lines of its own log
	deeds    *gate.Log       // takes its actions that deserve a line
}

// Bounds on a line of a node's log and of its console, in bytes. A line of the log is bounded when
// it arrives.
const (
	maxLevel       = 32
	maxConsoleLine = 1000
)

// maxHosted is how many jobs a registering node may have. Each has a core, but may be about to free
// it.
const maxHosted = 8192

// use is what a core is used for.
type use struct {
	job   uint32
	ranks []uint32
}

func newNode(number, term uint32, log func(format string, args ...any)) *node {
	return &node{number: number, term: term, pace: 1, heard: time.Now(), entered: time.Now(), boots: 1, uses: make(map[uint32]use), firmware: newKeptLogs(), log: gate.NewLog(log, 100, 10), deeds: gate.NewLog(log, 20, 1)}
}

func (n *node) closeLogs() {
	n.log.Close()
	n.deeds.Close()
}

// up reports whether serve can send requests to the node. The caller holds Server.mu.
func (n *node) up() bool { return n.conn != nil && n.health == control.NodeHealth_NODE_UP }

// gone reports whether the node has no jobs, and none can come back. The caller holds Server.mu.
func (n *node) gone() bool {
	return n.health == control.NodeHealth_NODE_DEAD || n.health == control.NodeHealth_NODE_OFF
}

// late reports whether the node is away but may be back soon. The caller holds Server.mu.
func (n *node) late() bool {
	return n.health == control.NodeHealth_NODE_LATE || n.health == control.NodeHealth_NODE_UP && n.conn == nil
}

// why explains why a node is not up, and the way out. The caller holds Server.mu.
func (n *node) why() string {
	text := cmp.Or(n.reason, "it has not registered yet")
	switch {
	case !n.gone() || n.remedy == "":
		return text
	case strings.Contains(text, "\n"): // it ends with lines of the node's console
		return text + "\n" + n.remedy
	}
	return text + "; " + n.remedy
}

// jobs returns the jobs that hold cores of the node, in order. The caller holds Server.mu.
func (n *node) jobs() (jobs []uint32) {
	for _, u := range n.uses {
		jobs = append(jobs, u.job)
	}
	slices.Sort(jobs)
	return slices.Compact(jobs)
}

// use assigns cores to a rank of a job. A step takes cores from its allocation, which has no ranks.
// The caller holds Server.mu.
func (n *node) use(j *job, p *control.Place) {
	for _, core := range coresOf(p) {
		u := n.uses[core]
		if u.job != j.number {
			u = use{job: j.number}
		}
		if !j.spec.Allocation {
			u.ranks = append(u.ranks, p.Rank)
		}
		n.uses[core] = u
	}
}

// disconnect closes the connection to the node. The caller holds Server.mu.
func (n *node) disconnect() {
	if n.conn != nil {
		go n.conn.Close() // it waits for its writer
		n.conn = nil
	}
}

// send sends a message to the node if it is connected. The caller holds Server.mu.
func (n *node) send(m proto.Message) {
	if n.conn != nil {
		_ = n.conn.Send(m)
	}
}

// serveNode serves the connection of a node.
func (s *Server) serveNode(conn *control.Conn) error {
	hello, err := conn.Meet()
	admitted := false
	if hello != nil {
		stranger := s.identify(hello)
		admitted = stranger == nil
		err = cmp.Or(err, stranger)
	}
	if err != nil {
		if admitted {
			s.nodeRefused(hello, err)
		}
		conn.Refuse(err)
		return err
	}
	gate.Admit(conn.NetConn())
	if hello.Role == control.Role_ROLE_FILES {
		return s.serveFiles(conn, hello, sideNode)
	}
	if hello.Role == control.Role_ROLE_DEBUG {
		return s.serveDebugged(conn, hello)
	}
	defer s.greeted(hello.Node, conn)()
	if err := conn.Send(&control.Welcome{Version: control.Version, Machine: s.config.Machine, TimeNs: time.Now().UnixNano()}); err != nil {
		return err
	}
	conn.Distrust()
	var n *node
	err = conn.Serve(func(f *control.Frame) {
		if m, ok := f.Message().(*control.Register); ok {
			if n != nil {
				conn.Answer(f, nil, control.Failf(control.Code_CODE_REFUSED, "it has registered over this connection").At(n.number))
			} else if n, err = s.register(conn, hello.Node, f, m); err != nil {
				s.known.Printf("connection from %s: refused: %v", name(conn.NetConn()), err)
				conn.Answer(f, nil, err)
			}
			return
		}
		if n == nil {
			conn.Answer(f, nil, control.Failf(control.Code_CODE_BAD_REQUEST, "%T before Register", f.Message()))
			return
		}
		s.fromNode(conn, n, f)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if n != nil && n.conn == conn {
		n.conn = nil
	}
	return err
}

// identify refuses a connection that does not show the join token of one of the machine's nodes.
// The reason distinguishes a token of an earlier node of the same number from a token that this
// machine has not made.
func (s *Server) identify(hello *control.Hello) error {
	s.mu.Lock()
	r := s.roster
	s.mu.Unlock()
	made := func(term uint32) bool {
		return trust.SameToken(hello.Token, trust.NodeToken(s.config.Secret, id.Node(hello.Node), term))
	}
	refuse := func(why string) error {
		return control.Failf(control.Code_CODE_REFUSED, "%s does not show the join token of node%d of machine %s%s", hello.Program, hello.Node, s.config.Machine, why)
	}
	term := r.Term(hello.Node)
	switch {
	case !slices.Contains([]control.Role{control.Role_ROLE_NODE, control.Role_ROLE_FILES, control.Role_ROLE_DEBUG}, hello.Role):
		return refuse("")
	case r.Has(hello.Node) && made(term):
		return nil
	case term > 0 && made(term):
		return refuse(": that node has left the machine")
	case r.Has(hello.Node) && term > 1 && made(term-1):
		return refuse(": the node that it was made for has left the machine, and another one has its number")
	case !r.Has(hello.Node):
		return refuse(fmt.Sprintf(", which has %v", r))
	}
	return refuse("")
}

// greeted notes a connection over which a node can register, and closes an earlier one over which
// it has not registered: the gate no longer counts them. The returned function forgets the
// connection.
func (s *Server) greeted(node uint32, conn *control.Conn) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.member(node)
	if n == nil {
		return func() {}
	}
	if n.fresh != nil {
		go n.fresh.Close() // it waits for its writer
	}
	n.fresh = conn
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n.fresh == conn {
			n.fresh = nil
		}
	}
}

// nodeRefused remembers why a node of this machine could not join.
func (s *Server) nodeRefused(hello *control.Hello, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.member(hello.Node); n != nil && n.conn == nil && n.health != control.NodeHealth_NODE_OFF {
		n.turn(control.NodeHealth_NODE_REFUSED, err.Error())
	}
}

func (s *Server) certify(m *control.Register) []byte {
	cert, err := s.config.Authority.Certify(id.Node(m.Node), m.PublicKey)
	if err != nil {
		s.nodes[m.Node].deeds.Printf("%v", err) // the node cannot reach others, and reports that
	}
	return cert
}

// register makes the sender of m, which has shown the token of a node, that node of the machine,
// new or returning. It answers m's frame f before any other goroutine can send to the node.
func (s *Server) register(conn *control.Conn, shown uint32, f *control.Frame, m *control.Register) (*node, error) {
	if m.Node != shown {
		return nil, control.Failf(control.Code_CODE_REFUSED, "node%d registers as node%d", shown, m.Node).At(shown)
	}
	if m.Info == nil {
		return nil, control.Failf(control.Code_CODE_REFUSED, "it does not describe itself").At(shown)
	}
	if err := s.checkAddress(m.Node, m.Info.Address); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.member(m.Node)
	if n == nil || n.fresh != conn {
		return nil, control.Failf(control.Code_CODE_REFUSED, "it has left the machine, or has connected once more since").At(m.Node)
	}
	if n.conn != nil && n.boot != m.Boot && n.health == control.NodeHealth_NODE_UP {
		return nil, control.Failf(control.Code_CODE_REFUSED, "another node has registered with its join token and is up: a token admits one node").At(m.Node)
	}
	if n.health == control.NodeHealth_NODE_OFF { // its host may not have noticed yet
		return nil, control.Failf(control.Code_CODE_REFUSED, "it is off: %s", n.reason).At(m.Node)
	}
	if n.leaving != "" && n.leaving == m.Boot {
		return nil, control.Failf(control.Code_CODE_REFUSED, "it is being ended by order of an operator").At(m.Node)
	}
	if n.conn != nil && n.conn != conn {
		n.disconnect()
	}
	if n.boot != m.Boot {
		n.since = time.Now()
		if n.boot != "" { // otherwise it is restored, and of this boot
			n.firmware.panic = ""
		}
	}
	n.fresh, n.pace = nil, s.pace()
	conn.Answer(f, &control.Registered{Certificate: s.certify(m), HeartbeatMs: uint32((n.pace * s.config.Timing.Heartbeat).Milliseconds())}, nil)
	again := n.boot == m.Boot && n.health == control.NodeHealth_NODE_DEAD
	n.conn, n.info, n.boot, n.heard = conn, m.Info, m.Boot, time.Now()
	s.hinder(s.queue...)
	n.free, n.stage, n.panicked = m.Info.Memory, nil, ""
	n.vitals, n.fit = nil, fitness.State{}
	if again {
		n.deeds.Printf("node%d is back", n.number)
	} else {
		n.deeds.Printf("node%d is up: %d application cores, %d MiB for jobs, Linux %s", n.number, len(m.Info.Cores), m.Info.Memory>>20, m.Info.Kernel)
	}
	for other := range s.members() { // those whose turn to start has not come are not silent
		if other.health == control.NodeHealth_NODE_BOOTING && other.started.IsZero() && time.Since(other.entered) < (bootExtension-1)*s.config.Timing.Boot {
			other.heard = time.Now()
		}
	}
	if m.Vitals != nil { // before it can be given a job
		n.free = m.FreeMemory
		s.examine(n, m.Vitals)
	}
	if s.holder != nil {
		_ = s.holder.Send(&control.NodeUp{Node: n.number})
	}
	s.saveNode(n)
	n.owes, n.strays = 0, nil
	s.reconcile(n, m)
	s.catchUp(n)
	s.ready(n)
	return n, nil
}

// saveNode records the current state of a node. The caller holds Server.mu.
func (s *Server) saveNode(n *node) {
	n.unsaved = false
	if err := s.store.saveNode(n); err != nil {
		s.config.Log("%v", err)
	}
}

// checkAddress refuses a node that announces an address other than its own.
func (s *Server) checkAddress(node uint32, address string) error {
	claimed, err := netip.ParseAddrPort(address)
	if err != nil {
		return control.Failf(control.Code_CODE_REFUSED, "%q is not an address and port", address).At(node)
	}
	if s.config.Address == nil {
		return nil
	}
	if own := s.config.Address(id.Node(node)); claimed.Addr() != own {
		return control.Failf(control.Code_CODE_REFUSED, "it says that its address is %v, but it is %v", claimed.Addr(), own).At(node)
	}
	return nil
}

// ready marks a node as up, so that it can get jobs, unless it has something to complete first. The
// caller holds Server.mu.
func (s *Server) ready(n *node) {
	if n.owes > 0 {
		n.turn(control.NodeHealth_NODE_LATE, "it ends jobs that are none any more, or gets the machine's extensions")
		return
	}
	n.turn(control.NodeHealth_NODE_UP, "")
	s.accountedFor(n.number)
	s.roomChanged()
}

// reconcile compares the jobs of a node that has just registered with serve's, and resolves the
// differences. The caller holds Server.mu.
func (s *Server) reconcile(n *node, m *control.Register) {
	has := make(map[uint32]bool)
	for _, hosted := range m.Jobs[:min(len(m.Jobs), maxHosted)] {
		has[hosted.Job] = true
		j := s.jobs[hosted.Job]
		if j == nil || j.finishing || !j.on(n.number) {
			s.forgetOn(n, hosted.Job)
			continue
		}
		if hosted.Phase == control.JobPhase_JOB_PREPARED && j.phase == control.JobPhase_JOB_RUNNING {
			s.startOn(n, j)
		} else if j.phase == control.JobPhase_JOB_RUNNING {
			s.inputAgain(j, n.number)
			s.startedOn(n, j)
		}
		delete(j.released, n.number) // that may be lost
		j.moved = time.Now()
		if hosted.Phase == control.JobPhase_JOB_DONE {
			j.over[n.number] = true
		}
		s.finishOn(n, j)
		s.killOn(n, j)
		s.haltOn(n, j)
		if j.wantsRecords() {
			n.send(&control.Rewind{Job: j.number})
		}
	}
	for _, j := range s.jobs {
		if j.on(n.number) && j.phase == control.JobPhase_JOB_PREPARED {
			// Chunks of its files may be lost, or the report that they have arrived, and all other
			// nodes would wait for that.
			s.fail(j, control.Failf(control.Code_CODE_RESTARTED, "it connected again while the job was being launched").At(n.number))
		}
		if j.on(n.number) && !has[j.number] && j.phase == control.JobPhase_JOB_RUNNING && !j.finishing && !j.records.Complete(n.number) {
			s.fail(j, control.Failf(control.Code_CODE_NODE_LOST, "it was restarted and has lost the job").At(n.number))
		}
	}
}

// forgetOn asks a node to end a job that no longer exists. The caller holds Server.mu.
func (s *Server) forgetOn(n *node, job uint32) {
	timeout := s.forgetTime()
	s.owe(n, fmt.Sprintf("end job %d", job), func(conn *control.Conn) error {
		ctx, cancel := context.WithTimeout(s.context, timeout)
		defer cancel()
		_, err := conn.Call(ctx, &control.Forget{Job: job})
		return err
	})
}

// forgetStray asks a node to end a job that is in the node's heartbeat but that serve does not have
// there. The previous heartbeat must have listed it as well, as a stray: the node may have ended
// the job since that one. Jobs are ended one at a time, before the node gets jobs. The caller holds
// Server.mu.
func (s *Server) forgetStray(n *node, jobs []uint32) {
	var strays []uint32
	for _, job := range jobs[:min(len(jobs), len(n.info.Cores))] { // each has a core
		if j := s.jobs[job]; j != nil && j.on(n.number) {
			continue
		}
		if n.owes == 0 && slices.Contains(n.strays, job) {
			n.deeds.Printf("node%d has job %d, which has ended", n.number, job)
			s.forgetOn(n, job)
			s.ready(n)
		}
		strays = append(strays, job)
	}
	n.strays = strays
}

// insist makes a node that did not end a job when it was asked over conn end that job before it
// gets another. A node that has reconnected since then was asked when it registered.
func (s *Server) insist(node uint32, conn *control.Conn, job uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; conn != nil && n.conn == conn {
		s.forgetOn(n, job)
		s.ready(n)
	}
}

// owe makes a node complete an action before it can get jobs. If the action fails, the node must
// register again and retry. The caller holds Server.mu.
func (s *Server) owe(n *node, what string, do func(*control.Conn) error) {
	n.owes++
	conn := n.conn
	s.running.Go(func() {
		err := do(conn)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n.conn != conn || s.context.Err() != nil {
			return
		}
		if err != nil {
			n.deeds.Printf("node%d: %s: %v", n.number, what, err)
			n.disconnect()
			return
		}
		if n.owes--; n.owes == 0 {
			s.ready(n)
		}
	})
}

// startOn asks a node to start a job if an earlier serve could not. The caller holds Server.mu.
func (s *Server) startOn(n *node, j *job) {
	if _, ok := j.unstarted[n.number]; !ok {
		j.unstarted[n.number] = nil
	}
	asked := s.ask(n.number, &control.Start{Job: j.number})
	refused := s.failIfRefused(j)
	s.running.Go(func() {
		s.await(s.context, asked, s.launchTime(j, startTimeout), func(q *question, answer proto.Message, err error) {
			refused(q, answer, err)
			if err == nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.inputAgain(j, q.node) // input that arrived before its ranks were started is lost
				s.startedOn(s.nodes[q.node], j)
				s.killOn(s.nodes[q.node], j)
				s.haltOn(s.nodes[q.node], j)
			}
		})
	})
}

// fromNode processes a message from a registered node.
func (s *Server) fromNode(conn *control.Conn, n *node, f *control.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.conn != conn {
		return // a newer connection has replaced it
	}
	n.heard = time.Now()
	if n.health == control.NodeHealth_NODE_LATE && n.owes == 0 {
		n.deeds.Printf("node%d is reachable again", n.number)
		s.catchUp(n)
		s.ready(n)
	}
	switch m := f.Message().(type) {
	case *control.Heartbeat:
		n.free = m.FreeMemory
		s.examine(n, m.Vitals)
		if m.Info != nil {
			s.changed(n, m.Info)
		}
		s.forgetStray(n, m.Jobs)
		conn.Answer(f, &control.Heartbeat{Number: m.Number, TimeNs: time.Now().UnixNano()}, nil)
	case *control.LogLine:
		n.log.Printf("node%d: %s: %s", n.number, printable.Short(m.Level, maxLevel), m.Text)
	case *control.FirmwareLog:
		s.keepFirmwareLog(conn, n, f, m)
	default:
		s.fromJob(n, f)
	}
}

// question is a request that has been sent to a node.
type question struct {
	node    uint32
	request proto.Message
	conn    *control.Conn     // over which the request was sent; nil when the node is away
	why     string            // why the node is away
	sent    *control.Question // nil when the node is away
}

// ask sends a request to a node. Messages that are sent with Server.mu held arrive in the order in
// which they are sent. The caller holds Server.mu.
func (s *Server) ask(number uint32, request proto.Message) *question {
	n := s.nodes[number]
	q := &question{node: number, request: request, conn: n.conn, why: "it is not connected"}
	switch {
	case n.conn != nil:
		q.sent = n.conn.Ask(request)
	case n.reason != "":
		q.why = n.why()
	}
	return q
}

// answer waits for the answer.
func (q *question) answer(ctx context.Context) (proto.Message, error) {
	if q.conn == nil {
		return nil, control.Failf(control.Code_CODE_NODE_LOST, "%s", q.why).At(q.node)
	}
	m, err := q.sent.Answer(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, control.Failf(control.Code_CODE_TIMEOUT, "no answer to %s: %v", q.request.ProtoReflect().Descriptor().Name(), context.Cause(ctx)).At(q.node)
	}
	var answered *control.Failure
	if err != nil && q.conn.Err() != nil && !errors.As(err, &answered) {
		return nil, control.Failf(control.Code_CODE_NODE_LOST, "%v", err).At(q.node)
	}
	if err != nil {
		failure := control.FromError(err)
		failure.Node = int32(q.node)
		return nil, failure.Err()
	}
	return m, nil
}

// call sends a request to a node and waits for the answer.
func (s *Server) call(ctx context.Context, number uint32, request proto.Message) (proto.Message, error) {
	s.mu.Lock()
	q := s.ask(number, request)
	s.mu.Unlock()
	return q.answer(ctx)
}

// watch detects silent nodes.
func (s *Server) watch(ctx context.Context) {
	every := s.config.Timing.Late / 10
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		away := absence(now.Sub(last), every)
		last = now
		s.mu.Lock()
		for n := range s.members() {
			n.heard = n.heard.Add(away)
			s.judge(n, now.Sub(n.heard))
			if n.unsaved {
				s.saveNode(n)
			}
		}
		s.retire()
		s.advanceUpdate()
		for _, j := range s.jobs {
			s.catchUpClient(j)
			s.awaitRecords(j)
		}
		s.saveAgain()
		s.mu.Unlock()
	}
}

// absence returns how long serve has not run, from the time since its last check and the interval
// of checks: it was stopped, or had no CPU. Nodes do not count as silent during that time. Less
// than one interval counts as 0.
func absence(since, every time.Duration) time.Duration {
	if since < 2*every {
		return 0
	}
	return since - every
}

// judge decides what a node's silence means. The caller holds Server.mu.
func (s *Server) judge(n *node, silent time.Duration) {
	t := s.config.Timing
	switch n.health {
	case control.NodeHealth_NODE_BOOTING:
		if silent > t.Boot {
			last := ""
			if n.stage != nil {
				last = fmt.Sprintf(" after the last news of its boot (%s, %d %%)", n.stage.Stage, n.stage.Percent)
			}
			s.dead(n, fmt.Sprintf("it did not register within %v%s (machine up --boot-timeout gives a slow or busy host longer)%s", t.Boot, last, s.consoleTail(n.number)), "if it stays silent, "+s.rebooted(n.number))
		}
	case control.NodeHealth_NODE_UP:
		if silent > n.pace*t.Late {
			n.turn(control.NodeHealth_NODE_LATE, "it is silent"+n.panic())
			n.deeds.Printf("node%d is late: silent for %v", n.number, silent.Round(time.Millisecond))
		}
	case control.NodeHealth_NODE_LATE:
		if dead := t.deadAfter(n.pace); silent > dead {
			s.dead(n, fmt.Sprintf("it has been silent for %v%s", dead, n.panic()), "if it stays silent, "+s.rebooted(n.number)+"; machine up --dead-after waits longer on a busy host")
		}
	case control.NodeHealth_NODE_REFUSED:
		if silent > t.deadAfter(n.pace) {
			s.lose(n)
		}
	}
}

// rebooted explains how to reboot a node.
func (s *Server) rebooted(node uint32) string {
	return fmt.Sprintf("margay node reboot -m %s node%d reboots it", s.config.Machine, node)
}

// turn changes a node's health, and the reason why it is not up. The caller holds Server.mu.
func (n *node) turn(health control.NodeHealth, reason string) {
	n.health, n.reason, n.retry, n.waits = health, reason, false, false
}

// dead removes a node from the machine and ends its jobs. The caller holds Server.mu.
func (s *Server) dead(n *node, reason, remedy string) {
	n.deeds.Printf("node%d is dead: %s", n.number, reason)
	s.part(n, control.NodeHealth_NODE_DEAD, reason, remedy)
}

// part removes a node, which is dead or off, and ends its jobs. The caller holds Server.mu.
func (s *Server) part(n *node, health control.NodeHealth, reason, remedy string) {
	n.turn(health, reason)
	n.remedy = remedy
	n.disconnect()
	s.accountedFor(n.number)
	s.roomChanged()
	s.lose(n)
}

// lose ends the jobs of a node. A job that is being launched has not run any rank, so it can be
// launched again. The caller holds Server.mu.
func (s *Server) lose(n *node) { s.loseJobs(n, n.why()) }

// loseJobs is lose for a given reason. It returns the jobs. Steps come before their allocations,
// whose end would be the reason otherwise. The caller holds Server.mu.
func (s *Server) loseJobs(n *node, why string) (jobs []uint32) {
	lose := func(j *job) {
		code := control.Code_CODE_NODE_LOST
		if j.phase == control.JobPhase_JOB_PREPARED {
			code = control.Code_CODE_LAUNCH_LOST
		}
		s.fail(j, control.Failf(code, "%s", why).At(n.number))
		jobs = append(jobs, j.number)
	}
	var allocations []*job
	for _, j := range s.jobs {
		if j.spec.Allocation && j.has(n.number) {
			allocations = append(allocations, j)
		} else if j.on(n.number) && !j.records.Complete(n.number) {
			lose(j)
		}
	}
	for _, a := range allocations {
		lose(a)
	}
	return jobs
}

// consoleLines is how many lines of a node's console an error message includes.
const consoleLines = 8

func (s *Server) consoleTail(node uint32) string {
	if s.config.Console == nil {
		return ""
	}
	lines := s.config.Console(id.Node(node), consoleLines)
	if len(lines) == 0 {
		return "; its console shows nothing"
	}
	for i, line := range lines {
		lines[i] = printable.Short(line, maxConsoleLine)
	}
	return "; the last lines of its console:\n    " + strings.Join(lines, "\n    ")
}

// nodeBoot processes the holder's report that a node's substrate has been started.
func (s *Server) nodeBoot(m *control.NodeBoot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.member(m.Node)
	if n == nil {
		return
	}
	if n.conn == nil && n.health != control.NodeHealth_NODE_LATE {
		off := n.health == control.NodeHealth_NODE_OFF
		if m.Boots <= 1 || off {
			n.reason, n.retry = "", false // otherwise they say why the node boots again
		}
		n.health, n.heard = control.NodeHealth_NODE_BOOTING, time.Now()
		if off {
			s.hinder(s.queue...)
		}
	}
	if m.Boots != n.boots { // the holder does not repeat itself
		n.firmware.panic = ""
	}
	n.boots, n.stage, n.panicked, n.started, n.power = m.Boots, nil, "", time.Now(), control.NodePower_POWER_ON
}

// nodePanic processes the holder's report of a panic. Other stations on the boot network can forge
// what it is based on, so it ends nothing: it explains the silence of the node.
func (s *Server) nodePanic(m *control.NodePanic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.member(m.Node)
	if n == nil {
		return
	}
	last := n.panic()
	n.panicked = m.Reason
	n.deeds.Printf("node%d: its console says that its Linux has panicked: %s", n.number, m.Reason)
	if n.health == control.NodeHealth_NODE_LATE || n.health == control.NodeHealth_NODE_BOOTING {
		// The holder repeats the report when it connects again, and may have a new one.
		if reason := strings.TrimSuffix(n.reason, last); !strings.HasSuffix(reason, n.panic()) {
			n.reason = cmp.Or(reason, "it has not registered yet") + n.panic()
		}
	}
}

// panic is what the reason of a node's silence ends with. The caller holds Server.mu.
func (n *node) panic() string {
	if n.panicked == "" {
		return ""
	}
	return "; its console says that its Linux has panicked: " + n.panicked
}

// bootExtension bounds the time of a boot over the network, in boot time-outs: a node that starts
// over and over would never be silent. It also bounds the time until a node has registered whose
// start waits for others.
const bootExtension = 5

// nodeStage processes the holder's report on the progress of a node's boot. A node that makes
// progress is not silent.
func (s *Server) nodeStage(m *control.NodeStage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.member(m.Node); n != nil && n.conn == nil && n.health == control.NodeHealth_NODE_BOOTING {
		n.stage = m
		if time.Since(n.started) < (bootExtension-1)*s.config.Timing.Boot {
			n.heard = time.Now()
		}
	}
}

// nodeExit processes the holder's report that a node's substrate has ended.
func (s *Server) nodeExit(m *control.NodeExit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.member(m.Node)
	if n == nil {
		return
	}
	n.power = control.NodePower_POWER_OFF
	off := n.health == control.NodeHealth_NODE_OFF
	if m.Off {
		s.switchedOff(n, m.Reason, m.Waits)
		return
	}
	reason, remedy := m.Reason, "it stays down: "+s.rebooted(m.Node)
	if m.Retry {
		reason, remedy = reason+"; it is being restarted", ""
	} else if len(m.Console) > 0 {
		reason += "; the last lines of its console:\n    " + strings.Join(m.Console, "\n    ")
	}
	s.dead(n, reason, remedy)
	n.retry = m.Retry
	if off { // it could not be switched on
		s.hinder(s.queue...)
		s.roomChanged()
	}
}
