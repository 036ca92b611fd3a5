package serve

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/fitness"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
	"margay/kernel/gate"
)

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
	j.starts(n.number)
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
