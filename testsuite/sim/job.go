package sim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/cluster/serve"
	"margay/internal/tree"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/task/spare"
)

// Job is a job that does nothing, whose files are on the nodes.
type Job struct {
	Nodes  int
	Each   int         // ranks on each node; 0: 1
	Fanout tree.Fanout // of a tree from serve to the nodes, at most 64; 0: serve asks each node itself
	Seed   uint64      // of the losses of messages
	Deaths []Death     // of nodes, for good
	Spares bool        // a job init is ready on each node

	Report func(*control.Record) // gets the messages with ends of ranks that nodes send to serve, if there is no tree; may be nil
}

// Death is the end of a node.
type Death struct {
	Node uint32
	At   time.Duration
}

// Result is how a job went. Times are from the start of margay run.
type Result struct {
	Prepared time.Duration // all nodes have answered
	Started  time.Duration // the same, to the request to start; the ranks of some have ended
	Done     time.Duration // margay run has ended
	Free     time.Duration // the nodes have forgotten the job

	Ended    int   // ranks
	Launches int   // one, and one more for each launch that has lost a node
	Failed   bool  // it has lost a node after its start
	Messages int64 // between serve and nodes, and nodes
	AtServe  int64 // of them, those that serve has sent or received
	Lost     int64 // of them, those that were lost and sent again
	Events   int64
}

// Kinds of events. A place is 0 for serve and i+1 for the i-th node of the job.
const (
	asks     = iota // serve may ask the next node
	arrives         // a request is at a place
	worked          // a node has done its part of a request
	answers         // the answer to a request is at a place, from Value nodes
	ends            // the ranks on a node have ended
	gathered        // ends of ranks are at a place
	enters          // the job enters its next stage, Value
	steps           // a node's spare: the time of its next step has come
	ready           // a node's spare with the number Value is ready
	dies            // node Value is dead
	noticed         // serve notices that node Value is dead
)

// Stages of a job.
const (
	idle = iota
	preparing
	prepared
	starting
	ended
	forgetting
	retrying
	over
)

// node is the state of a node in a job. A machine has a million of them.
type node struct {
	free  time.Duration // when its own processor is free
	waits uint8         // parts of a subtree whose answer is missing
	ends  uint8         // parts of a subtree whose ends are missing
	dead  bool

	launching bool // on one host: its spare waits for the end of the launch
}

// model is a job on a machine.
type model struct {
	Setting
	Job
	*Engine
	Result

	err     error
	launch  uint8
	stage   int
	dead    map[uint32]bool
	members []uint32 // by place-1: numbers of nodes
	nodes   []node   // by place
	bytes   int      // of a request

	next, inFlight, answered int  // of the stage's requests
	asking                   bool // an event asks is scheduled
	endedOn                  int  // nodes

	host     processors // the shared ones; nil: each has its own
	serve    processors
	launcher processors
	spares   []*spare.Machine // by number of the node; nil: no host is shared
}

// Run simulates a job. It returns an error for a job that the allocator refuses, or that breaks a
// rule: each rank ends once.
func Run(s Setting, j Job) (Result, error) {
	m := &model{Setting: s, Job: j, Engine: NewEngine(j.Seed), dead: make(map[uint32]bool)}
	m.Each = max(1, m.Each)
	m.serve, m.launcher = make(processors, 1), make(processors, 1)
	if s.Processors > 0 {
		m.host = make(processors, s.Processors)
		m.serve, m.launcher = m.host, m.host
	}
	for _, d := range j.Deaths {
		m.At(d.At, Event{Kind: dies, Value: int32(d.Node)})
	}
	if err := m.allocate(); err != nil {
		return m.Result, err
	}
	for m.stage != over {
		event, ok := m.Engine.Next()
		if !ok {
			return m.Result, fmt.Errorf("sim: job on %d nodes stands still in stage %d", m.Nodes, m.stage)
		}
		m.Events++
		m.handle(event)
	}
	if m.err != nil {
		return m.Result, m.err
	}
	if all := m.Nodes * m.Each; !m.Failed && m.Ended != all {
		return m.Result, fmt.Errorf("sim: %d ends of %d ranks", m.Ended, all)
	}
	return m.Result, nil
}

// errRoom reports a machine with too few nodes.
var errRoom = errors.New("sim: the job does not fit")

// allocate begins a launch: serve chooses the nodes, of those that it does not know to be dead. A
// machine has as many nodes more than a job needs as die.
func (m *model) allocate() error {
	var free []serve.Free
	for n := range uint32(m.Nodes + len(m.Deaths)) {
		if !m.dead[n] {
			free = append(free, serve.Free{Node: n, Total: m.Each, Cores: cores[:m.Each]})
		}
	}
	places, err := serve.Allocate(&control.JobSpec{Ranks: uint32(m.Nodes * m.Each), PerNode: uint32(m.Each)}, free)
	if err != nil {
		return err
	}
	if places == nil {
		return errRoom
	}
	m.members, m.nodes = make([]uint32, 0, m.Nodes), make([]node, m.Nodes+1)
	for i := 0; i < len(places); i += m.Each {
		m.members = append(m.members, places[i].Node)
	}
	m.markDead()
	if m.bytes, err = requestBytes(places); err != nil {
		return err
	}
	if m.host != nil && m.spares == nil {
		m.makeSpares()
	}
	m.Launches++
	m.launch++
	m.Ended, m.endedOn = 0, 0
	at := m.launcher.take(m.Now(), m.Work.Launcher/2) + m.Network.Latency // the other half is its end
	m.enter(at+m.Work.Job+time.Duration(len(free))*m.Work.Offer+m.Work.Commit, preparing)
	return nil
}

// cores are the application cores of a node.
var cores = func() (list []uint32) {
	for core := range uint32(256) {
		list = append(list, core+1)
	}
	return list
}()

// requestBytes is the size of a request to prepare a job: the layout and some hundred bytes. A
// layout holds layout.MaxNodes nodes; a larger one is taken for as large as the one of the first of
// them.
func requestBytes(places []*control.Place) (int, error) {
	var list []layout.Place
	for _, p := range places {
		if int(p.Node) < layout.MaxNodes {
			list = append(list, layout.Place{Rank: id.Rank(p.Rank), Node: id.Node(p.Node), Core: id.Core(p.Core)})
		}
	}
	l, err := layout.Condense(list, func(n id.Node) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 7118)
	})
	if err != nil {
		return 0, err
	}
	text, err := l.MarshalJSON()
	return 500 + len(text), err
}

// place returns the place of a node in the job.
func (m *model) place(number uint32) (int, bool) {
	i, ok := slices.BinarySearch(m.members, number)
	return i + 1, ok
}

// enter schedules the next stage.
func (m *model) enter(at time.Duration, stage int32) {
	m.At(at, Event{Kind: enters, Job: m.launch, Value: stage})
}

// do does some work at a place, and returns when it is done.
func (m *model) do(place int32, work time.Duration) time.Duration {
	switch {
	case m.host != nil:
		return m.host.take(m.Now(), work)
	case place == 0:
		return m.serve.take(m.Now(), work)
	}
	n := &m.nodes[place]
	n.free = max(n.free, m.Now()) + work
	return n.free
}

// send sends a message that leaves its sender at a time.
func (m *model) send(at time.Duration, bytes int, e Event, serve bool) {
	m.Messages++
	if serve {
		m.AtServe++
	}
	at += m.Network.Latency + m.Network.PerByte.of(bytes)
	for again := m.Network.Again; m.Chance(m.Network.Loss); again *= 2 {
		m.Lost++
		at += again
	}
	e.Job = m.launch
	m.At(at, e)
}

func (m *model) handle(e Event) {
	switch e.Kind {
	case dies:
		m.die(uint32(e.Value))
		return
	case noticed:
		m.notice(uint32(e.Value))
		return
	case steps, ready:
		m.spare(e)
		return
	}
	if e.Job != m.launch || e.Node > 0 && m.nodes[e.Node].dead {
		return
	}
	switch e.Kind {
	case enters:
		m.entered(int(e.Value))
	case asks:
		m.asking = false
		m.ask()
	case arrives:
		m.request(e.Node, int(e.Value))
	case worked:
		m.works(e.Node, int(e.Value))
	case answers:
		m.answer(e.Node, int(e.Value))
	case ends:
		m.rankEnds(e.Node)
	case gathered:
		m.gather(e)
	}
}

// entered begins a stage.
func (m *model) entered(stage int) {
	m.stage = stage
	switch stage {
	case preparing, starting, forgetting, retrying:
		m.wave()
	case prepared: // margay run learns the places, and confirms that
		m.Prepared = m.Now()
		list := time.Duration(len(m.members)*m.Each) * m.Work.State
		at := max(m.serve.take(m.Now(), m.Work.Message+list), m.launcher.take(m.Now(), m.Work.Client+list))
		m.enter(at+2*m.Network.Latency+m.Work.Commit, starting)
	case ended: // the record is written, and margay run ends while the nodes forget the job
		list := time.Duration(m.Nodes*m.Each) * m.Work.State
		at := m.serve.take(m.Now(), list) + m.Work.Commit
		m.launcher.take(m.Now(), m.Work.Launcher/2+list)
		m.Done = at + m.Network.Latency + m.Work.Launcher/2 + list
		m.enter(at, forgetting)
	}
}

// wave begins to send the stage's request to all nodes.
func (m *model) wave() {
	m.next, m.inFlight, m.answered, m.asking = 1, 0, 0, false
	if len(m.members) == 0 {
		m.answeredAll(m.Now())
		return
	}
	if m.Fanout == 0 {
		m.ask()
		return
	}
	below := m.pass(0, m.stage)
	m.nodes[0].waits = below
	if m.stage == starting {
		m.nodes[0].ends = below
	}
}

// pass sends a request to the children of a place, and returns how many there are.
func (m *model) pass(place int32, stage int) uint8 {
	work := m.Work.Node
	if place == 0 {
		work = m.Work.Message
	}
	first, end := m.Fanout.Children(int(place), len(m.nodes))
	for child := first; child < end; child++ {
		at := m.do(place, max(work, m.Network.Gap))
		m.send(at, m.bytes, Event{Kind: arrives, Node: int32(child), Value: int32(stage)}, place == 0)
	}
	return uint8(end - first)
}

// ask sends the stage's request to the next node, if it is its turn.
func (m *model) ask() {
	if m.asking || m.next == len(m.nodes) || m.AtOnce > 0 && m.inFlight == m.AtOnce {
		return
	}
	at := m.do(0, max(m.Work.Message, m.Network.Gap))
	m.send(at, m.bytes, Event{Kind: arrives, Node: int32(m.next), Value: int32(m.stage)}, true)
	m.next++
	m.inFlight++
	m.asking = true
	m.At(at, Event{Kind: asks, Job: m.launch})
}

// request begins a node's part of a request.
func (m *model) request(place int32, stage int) {
	n := &m.nodes[place]
	n.waits = 1
	if m.Fanout > 0 {
		below := m.pass(place, stage)
		n.waits += below
		if stage == starting {
			n.ends = below + 1
		}
	}
	work := m.Work.Forget
	switch stage {
	case preparing:
		work = m.Work.Prepare + m.takeSpare(place)
	case starting:
		work = m.Work.Start
	}
	m.At(m.do(place, work), Event{Kind: worked, Job: m.launch, Node: place, Value: int32(stage)})
}

// works ends a node's part of a request.
func (m *model) works(place int32, stage int) {
	switch stage {
	case starting:
		m.launched(place)
		m.At(m.do(place, m.Work.End), Event{Kind: ends, Job: m.launch, Node: place})
	case forgetting, retrying:
		m.forgotten(place)
	}
	m.part(place, stage, m.Now())
}

// part notes that one part of the answer of a place's subtree is there, and sends the answer when
// it is complete.
func (m *model) part(place int32, stage int, at time.Duration) {
	if n := &m.nodes[place]; n.waits > 1 {
		n.waits--
		return
	}
	above := m.above(place)
	m.send(at, 0, Event{Kind: answers, Node: above, Value: int32(stage)}, above == 0)
}

// above is the place to which a place reports.
func (m *model) above(place int32) int32 {
	if m.Fanout == 0 {
		return 0
	}
	parent, _ := m.Fanout.Parent(int(place))
	return int32(parent)
}

// answer takes an answer at a place. The ranks of all nodes may have ended before all have answered
// that they have started.
func (m *model) answer(place int32, stage int) {
	if stage != m.stage {
		return
	}
	if place > 0 {
		m.part(place, stage, m.do(place, m.Work.Node))
		return
	}
	at := m.do(0, m.Work.Message)
	if m.Fanout > 0 {
		m.nodes[0].waits--
		if m.nodes[0].waits == 0 {
			m.answeredAll(at)
		}
		return
	}
	m.answered++
	m.inFlight--
	if m.answered == len(m.members) {
		m.answeredAll(at)
		return
	}
	m.ask()
}

// answeredAll goes on when all nodes have answered the stage's request.
func (m *model) answeredAll(at time.Duration) {
	switch m.stage {
	case preparing:
		m.enter(at, prepared)
	case starting:
		m.Started = at
	case forgetting:
		m.Free = at
		m.stage = over
	case retrying:
		if m.err = m.allocate(); m.err != nil {
			m.stage = over
		}
	}
}

// rankEnds reports the ends of the ranks on a node: in a tree, with the ends of its subtree.
func (m *model) rankEnds(place int32) {
	if m.Fanout > 0 {
		m.Ended += m.Each
		m.endPart(place, m.Now())
		return
	}
	var gather records.Gather
	for i := range m.Each {
		r := &control.Record{
			Node: m.members[place-1], Seq: uint64(i + 1), Rank: uint32(int(place-1)*m.Each + i), Stream: control.Stream_STREAM_EXIT,
			Exit: new(control.ExitStatus), Last: i == m.Each-1,
		}
		for _, message := range gather.Add(r) {
			if m.Report != nil {
				m.Report(message)
			}
			m.send(m.Now(), 0, Event{Kind: gathered, Value: int32(1 + len(message.More))}, true)
		}
	}
}

// endPart notes that one part of the ends of a place's subtree is there, and reports them when they
// are complete.
func (m *model) endPart(place int32, at time.Duration) {
	n := &m.nodes[place]
	if n.ends--; n.ends == 0 {
		above := m.above(place)
		m.send(at, 0, Event{Kind: gathered, Node: above}, above == 0)
	}
}

// gather takes ends of ranks at a place.
func (m *model) gather(e Event) {
	if e.Node > 0 {
		m.endPart(e.Node, m.do(e.Node, m.Work.Node))
		return
	}
	complete := false
	work, client := m.Work.Message, m.Work.Client
	if m.Fanout > 0 {
		m.nodes[0].ends--
		complete = m.nodes[0].ends == 0
	} else { // serve passes it on to margay run, and looks at the nodes that have ended when this has answered
		m.Ended += int(e.Value)
		complete = m.Ended == m.Nodes*m.Each
		work = recordMessages*m.Work.Message + time.Duration(m.endedOn)*m.Work.Look
		m.endedOn++
	}
	at := max(m.do(0, work), m.launcher.take(m.Now(), client))
	if complete {
		m.enter(at+2*m.Network.Latency+m.Work.Commit, ended)
	}
}

// recordMessages is how many messages serve has for the ends on a node: from the node, to margay
// run, and the answer of that.
const recordMessages = 3

// die ends a node. serve notices its silence.
func (m *model) die(number uint32) {
	if place, ok := m.place(number); ok {
		m.nodes[place].dead = true
	}
	m.At(m.Now()+m.Silence(m.Nodes), Event{Kind: noticed, Value: int32(number)})
}

// notice is what serve does about a node that has died. The launch of a job is repeated without it,
// after the other nodes have forgotten the job. A job that has started fails.
func (m *model) notice(number uint32) {
	m.dead[number] = true
	place, ok := m.place(number)
	if !ok {
		return
	}
	launching := m.nodes
	m.members = slices.Delete(m.members, place-1, place)
	m.nodes = make([]node, len(m.members)+1)
	for i := range m.members { // place i+1, or, behind the dead one, i+2 before
		old := i + 1
		if old >= place {
			old++
		}
		m.nodes[i+1].launching = launching[old].launching
	}
	m.markDead()
	m.launch++
	switch m.stage {
	case starting:
		m.Failed, m.Done, m.stage = true, m.Now(), forgetting
	case ended, forgetting:
		m.stage = forgetting
	default:
		m.stage = retrying
	}
	m.wave()
}

// markDead marks the nodes that have died.
func (m *model) markDead() {
	for _, d := range m.Deaths {
		if place, ok := m.place(d.Node); ok && d.At <= m.Now() {
			m.nodes[place].dead = true
		}
	}
}
