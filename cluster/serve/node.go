package serve

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/fitness"
	"margay/internal/printable"
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
	byHand   string             // why the holder cannot end it and start it again; empty: it can
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

// seenPower returns whether the node's substrate runs, as far as that is known. The holder does not
// see whether one runs that is switched by hand. The caller holds Server.mu.
func (n *node) seenPower() control.NodePower {
	switch {
	case n.byHand == "":
		return n.power
	case n.health == control.NodeHealth_NODE_UP:
		return control.NodePower_POWER_ON
	}
	return control.NodePower_POWER_UNKNOWN
}

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
