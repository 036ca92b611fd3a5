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

	report func(*control.Record) // gets the messages with ends of ranks that nodes send to serve, if there is no tree; may be nil

	chosen choice // the nodes, if they are known and none dies
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
	nothing   = iota // work of serve on one host, whose event is another one
	asks             // serve can send the stage's request to the node at place Value, and ask the next one
	arrives          // a request of stage Value is at a place
	worked           // a node has done its part of it
	answers          // the answer of a subtree is at a place
	answered         // the place has taken it
	ends             // the ranks on a node have ended
	gathers          // ends of ranks are at a place: of Value ranks if it is serve and there is no tree
	gathered         // the place has taken them
	followed         // margay run has taken them
	saves            // serve can write the record of the job, since ranks have ended
	saved            // it has done so
	enters           // the job enters stage Value
	learns           // margay run learns that the job has ended
	leaves           // and has ended itself
	steps            // a node's spare: the time of its next step has come
	ready            // a node's spare with the number Value is ready
	dies             // node Value is dead
	noticed          // serve notices that node Value is dead
	completes        // on one host: the next work is done, unless Value is an old version
)

// Places of processors that are not a node's.
const (
	atClient = -1
	atServe  = 0
)

// Stages of a job.
const (
	allocating = iota
	recording
	preparing
	prepared
	confirming
	confirmed
	retrying // the nodes forget a launch that has lost one of them
	starting
	ended
	announced
	forgetting
	over
)

// node is the state of a node in a job. A machine has a million of them.
type node struct {
	free  time.Duration // when its own processor is free
	waits uint8         // parts of a subtree whose answer is missing
	ends  uint8         // parts of a subtree whose ends are missing
	dead  bool

	reported bool // the ends of its subtree have left it

	launching bool // on one host: its spare waits for the end of the launch
}

// model is a job on a machine.
type model struct {
	Setting
	Job
	*Engine
	Result

	err     error
	launch  uint16
	stage   int
	dead    map[uint32]bool
	gone    []uint32 // nodes that have died after they had reported their ends, in a job that went on
	members []uint32 // by place-1: numbers of nodes
	nodes   []node   // by place
	bytes   int      // of a request

	next, inFlight, answers int  // of the stage's requests
	asks                    bool // an event asks is scheduled
	endedOn                 int  // nodes
	saving                  bool // an event saves or saved is scheduled

	host   *host            // its processors are shared by all; nil: each place has its own
	client time.Duration    // when the processor of margay run is free
	spares []*spare.Machine // by number of the node; nil: no host is shared
	left   bool             // margay run has ended
}

// Run simulates a job. It returns an error for a job that the allocator refuses, or that breaks a
// rule: each rank ends once.
func Run(s Setting, j Job) (Result, error) {
	m := &model{Setting: s, Job: j, Engine: NewEngine(j.Seed), dead: make(map[uint32]bool)}
	m.Each = max(1, m.Each)
	if j.Fanout < 0 || j.Fanout > maxFanout || m.Each > len(cores) || len(j.Deaths) > maxDeaths {
		return Result{}, errBounds
	}
	if s.Processors > 0 {
		m.host = &host{processors: int64(s.Processors), others: int64(s.Others)}
	}
	for _, d := range j.Deaths {
		m.At(d.At, Event{Kind: dies, Value: int32(d.Node)})
	}
	if err := m.allocate(); err != nil {
		return m.Result, err
	}
	for m.stage != over || !m.left && m.err == nil {
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

// Bounds of a job: the parts of a subtree, and the launches, are counted in a few bits.
const (
	maxFanout = 64
	maxDeaths = 1 << 14
)

// errBounds reports a job beyond the bounds.
var errBounds = errors.New("sim: the job has a fan-out above 64, more than 256 ranks on a node, or too many deaths")

// errRoom reports a machine with too few nodes.
var errRoom = errors.New("sim: the job does not fit")

// choice is the choice of nodes for a job.
type choice struct {
	members []uint32 // numbers of nodes
	bytes   int      // of a request about the job
}

// choose chooses nodes for a job as serve does, of those that it does not know to be dead. A
// machine has as many nodes more than a job needs as die.
func (j Job) choose(dead map[uint32]bool) (c choice, err error) {
	each := max(1, j.Each)
	var free []serve.Free
	for n := range uint32(j.Nodes + len(j.Deaths)) {
		if !dead[n] {
			free = append(free, serve.Free{Node: n, Total: each, Cores: cores[:each]})
		}
	}
	places, err := serve.Allocate(&control.JobSpec{Ranks: uint32(j.Nodes * each), PerNode: uint32(each)}, free)
	if err != nil {
		return c, err
	}
	if places == nil {
		return c, errRoom
	}
	c.members = make([]uint32, 0, j.Nodes)
	for i := 0; i < len(places); i += each {
		c.members = append(c.members, places[i].Node)
	}
	c.bytes, err = requestBytes(places)
	return c, err
}

// allocate begins a launch.
func (m *model) allocate() (err error) {
	c := m.chosen
	if c.members == nil || len(m.Deaths) > 0 {
		if c, err = m.choose(m.dead); err != nil {
			return err
		}
	}
	m.members, m.bytes, m.nodes = slices.Clone(c.members), c.bytes, make([]node, m.Nodes+1)
	m.markDead()
	if m.host != nil && m.spares == nil {
		m.makeSpares()
	}
	m.Launches++
	m.launch++
	m.Ended, m.endedOn, m.saving = 0, 0, false
	m.do(atClient, m.Work.Launcher/2, Event{Kind: enters, Value: allocating}) // the other half is its end
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

// do does some work at a place, and then an event happens, or its message is sent. On one host,
// serve takes precedence: it does not share its processor, and the others have less.
func (m *model) do(place int32, work time.Duration, e Event) {
	e.Job = m.launch
	if m.host != nil && place != atServe {
		m.host.add(m.Now(), work, e)
		m.schedule()
		return
	}
	if m.host != nil {
		m.host.add(m.Now(), work, Event{Kind: nothing})
		m.schedule()
	}
	free := &m.client
	if place >= 0 {
		free = &m.nodes[place].free
	}
	*free = max(*free, m.Now()) + work
	m.then(*free, e)
}

// then makes the event behind some work happen.
func (m *model) then(at time.Duration, e Event) {
	if e.Sends {
		m.send(at, e)
		return
	}
	m.At(at, e)
}

// schedule schedules the end of the next work on the host.
func (m *model) schedule() {
	if at, version, ok := m.host.next(); ok {
		m.At(at, Event{Kind: completes, Value: version})
	}
}

// complete ends all work on the host that is done.
func (m *model) complete(version int32) {
	if version != m.host.version {
		return
	}
	for {
		e, ok := m.host.done(m.Now())
		if !ok {
			break
		}
		if e.Job == m.launch || e.Kind == ready || e.Kind == leaves {
			m.then(m.Now(), e)
		}
	}
	m.schedule()
}

// send sends a message that leaves its sender at a time.
func (m *model) send(at time.Duration, e Event) {
	m.Messages++
	at += m.Network.Latency
	if e.Kind == arrives {
		at += m.Network.PerByte.of(m.bytes)
	}
	if e.Node == atServe || m.fromServe(e) {
		m.AtServe++
	}
	for again := m.Network.Again; m.Chance(m.Network.Loss); again *= 2 {
		m.Lost++
		at += again
	}
	e.Job, e.Sends = m.launch, false
	m.At(at, e)
}

// fromServe reports whether serve sends a message.
func (m *model) fromServe(e Event) bool {
	return e.Kind == arrives && m.above(e.Node) == atServe
}

func (m *model) handle(e Event) {
	switch e.Kind {
	case completes:
		m.complete(e.Value)
		return
	case dies:
		m.die(uint32(e.Value))
		return
	case noticed:
		m.notice(uint32(e.Value))
		return
	case steps, ready:
		m.spare(e)
		return
	case learns:
		m.do(atClient, m.Work.Launcher/2+m.list(), Event{Kind: leaves})
		return
	case leaves:
		m.Done, m.left = m.Now(), true
		return
	}
	if e.Job != m.launch || e.Node > 0 && m.nodes[e.Node].dead {
		return
	}
	switch e.Kind {
	case enters:
		m.enter(int(e.Value))
	case asks:
		m.send(m.Now(), Event{Kind: arrives, Node: e.Value, Value: int32(m.stage)})
		m.asks = false
		m.ask()
	case arrives:
		m.request(e.Node, int(e.Value))
	case worked:
		m.works(e.Node, int(e.Value))
	case answers:
		m.do(e.Node, m.message(e.Node), Event{Kind: answered, Node: e.Node, Value: e.Value})
	case answered:
		m.answer(e.Node, int(e.Value))
	case ends:
		m.rankEnds(e.Node)
	case gathers:
		m.gather(e)
	case gathered:
		m.gathered(e)
	case followed:
		m.followed(int(e.Value))
	case saves:
		if m.stage == starting {
			m.do(atServe, m.save(), Event{Kind: saved})
		}
	case saved:
		m.saving = false
	}
}

// message is the work of a message at a place.
func (m *model) message(place int32) time.Duration {
	work := m.Work.Node
	if place == atServe {
		work = m.Work.Message
	}
	return max(work, m.Network.Gap)
}

// soon schedules the next stage.
func (m *model) soon(after time.Duration, stage int32) {
	m.At(m.Now()+after, Event{Kind: enters, Job: m.launch, Value: stage})
}

// enter begins a stage.
func (m *model) enter(stage int) {
	m.stage = stage
	switch stage {
	case allocating: // margay run has asked for the job
		m.do(atServe, m.Work.Job+time.Duration(m.Nodes)*m.Work.Offer, Event{Kind: enters, Value: recording})
	case recording:
		m.soon(m.save()+m.Network.Latency, preparing)
	case preparing, starting, forgetting, retrying:
		m.wave()
	case prepared: // serve lists the places
		m.Prepared = m.Now()
		m.do(atServe, m.Work.Message+m.list(), Event{Kind: enters, Value: confirming})
	case confirming: // margay run confirms that it knows them
		m.do(atClient, m.Work.Client+m.list(), Event{Kind: enters, Value: confirmed})
	case confirmed:
		m.soon(2*m.Network.Latency+m.save(), starting)
	case ended: // serve writes the record. Then margay run ends while the nodes forget the job
		m.do(atServe, m.list(), Event{Kind: enters, Value: announced})
	case announced:
		m.At(m.Now()+m.Work.Commit+m.Network.Latency, Event{Kind: learns})
		m.enter(forgetting)
	}
}

// list is the work of a message that lists all ranks, at one of its ends.
func (m *model) list() time.Duration { return time.Duration(m.Nodes*m.Each) * m.Work.State }

// save is the work of serve to write the record of the job, which lists all ranks.
func (m *model) save() time.Duration {
	return m.Work.Commit + time.Duration(m.Nodes*m.Each)*m.Work.Save
}

// recordPause is how long serve waits after the end of a rank, for the ends of others, before it
// writes the record of a job whose other ranks run.
const recordPause = 20 * time.Millisecond

// wave begins to send the stage's request to all nodes.
func (m *model) wave() {
	if m.stage == forgetting {
		for _, number := range m.gone {
			m.part(number)
		}
		m.gone = nil
	}
	m.next, m.inFlight, m.answers, m.asks = 1, 0, 0, false
	if len(m.members) == 0 {
		m.answeredAll()
		return
	}
	if m.Fanout == 0 {
		m.ask()
		return
	}
	below := m.pass(atServe, m.stage)
	m.nodes[atServe].waits = below
	if m.stage == starting {
		m.nodes[atServe].ends = below
	}
}

// pass sends a request to the children of a place, and returns how many there are.
func (m *model) pass(place int32, stage int) uint8 {
	first, end := m.Fanout.Children(int(place), len(m.nodes))
	for child := first; child < end; child++ {
		m.do(place, m.message(place), Event{Kind: arrives, Node: int32(child), Value: int32(stage), Sends: true})
	}
	return uint8(end - first)
}

// ask sends the stage's request to the next node, if it is its turn.
func (m *model) ask() {
	if m.asks || m.next == len(m.nodes) || m.AtOnce > 0 && m.inFlight == m.AtOnce {
		return
	}
	m.asks = true
	m.do(atServe, m.message(atServe), Event{Kind: asks, Value: int32(m.next)})
	m.next++
	m.inFlight++
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
	m.do(place, work, Event{Kind: worked, Node: place, Value: int32(stage)})
}

// works ends a node's part of a request.
func (m *model) works(place int32, stage int) {
	switch stage {
	case starting:
		m.launched(place)
		m.do(place, m.Work.End, Event{Kind: ends, Node: place})
	case forgetting, retrying:
		m.forgotten(place)
	}
	m.answer(place, stage)
}

// answer notes that one part of the answer of a place's subtree is there: of the node itself, or of
// a child. It goes on when the answer is complete. The ranks of all nodes may have ended before all
// have answered that they have started: then these answers mean nothing.
func (m *model) answer(place int32, stage int) {
	if stage != m.stage {
		return
	}
	if place == atServe && m.Fanout == 0 {
		m.inFlight--
		if m.answers++; m.answers == len(m.members) {
			m.answeredAll()
			return
		}
		m.ask()
		return
	}
	n := &m.nodes[place]
	switch n.waits--; {
	case n.waits > 0:
	case place == atServe:
		m.answeredAll()
	default:
		m.send(m.Now(), Event{Kind: answers, Node: m.above(place), Value: int32(stage)})
	}
}

// above is the place to which a place reports.
func (m *model) above(place int32) int32 {
	if m.Fanout == 0 {
		return atServe
	}
	parent, _ := m.Fanout.Parent(int(place))
	return int32(parent)
}

// answeredAll goes on when all nodes have answered the stage's request.
func (m *model) answeredAll() {
	switch m.stage {
	case preparing:
		m.enter(prepared)
	case starting:
		m.Started = m.Now()
	case forgetting:
		m.Free, m.stage = m.Now(), over
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
		m.endPart(place)
		return
	}
	m.nodes[place].reported = true
	var gather records.Gather
	for i := range m.Each {
		r := &control.Record{
			Node: m.members[place-1], Seq: uint64(i + 1), Rank: uint32(int(place-1)*m.Each + i), Stream: control.Stream_STREAM_EXIT,
			Exit: new(control.ExitStatus), Last: i == m.Each-1,
		}
		for _, message := range gather.Add(r) {
			if m.report != nil {
				m.report(message)
			}
			m.send(m.Now(), Event{Kind: gathers, Value: int32(1 + len(message.More))})
		}
	}
}

// endPart notes that one part of the ends of a place's subtree is there, and reports them when they
// are complete.
func (m *model) endPart(place int32) {
	n := &m.nodes[place]
	switch n.ends--; {
	case n.ends > 0:
	case place == atServe:
		m.do(atClient, m.Work.Client, Event{Kind: followed})
	default:
		n.reported = true
		m.send(m.Now(), Event{Kind: gathers, Node: m.above(place)})
	}
}

// recordMessages is how many messages serve has for the ends on a node: from the node, to margay
// run, and the answer of that.
const recordMessages = 3

// gather takes ends of ranks at a place. Without a tree, serve passes each on to margay run, and
// looks at the nodes that have ended when this has answered.
func (m *model) gather(e Event) {
	work := m.message(e.Node)
	if m.Fanout == 0 {
		work = recordMessages*work + time.Duration(m.endedOn)*m.Work.Look
		m.endedOn++
	}
	m.do(e.Node, work, Event{Kind: gathered, Node: e.Node, Value: e.Value})
}

func (m *model) gathered(e Event) {
	if m.Fanout > 0 {
		m.endPart(e.Node)
		return
	}
	if !m.saving {
		m.saving = true
		m.At(m.Now()+recordPause, Event{Kind: saves, Job: m.launch})
	}
	m.do(atClient, m.Work.Client, Event{Kind: followed, Value: e.Value})
}

// followed goes on when margay run has the ends of so many further ranks. In a tree these are all.
func (m *model) followed(ranks int) {
	if m.Fanout == 0 {
		m.Ended += ranks
	}
	if m.Ended == m.Nodes*m.Each {
		m.soon(2*m.Network.Latency+m.save(), ended)
	}
}

// die ends a node. serve notices its silence.
func (m *model) die(number uint32) {
	if place, ok := m.place(number); ok {
		m.nodes[place].dead = true
	}
	m.At(m.Now()+m.Silence(m.Nodes), Event{Kind: noticed, Value: int32(number)})
}

// notice is what serve does about a node that has died. The launch of a job is repeated without it,
// after the other nodes have forgotten the job. A job that has started fails. A job that has all
// ends of the node's ranks goes on, as Server.loseJobs decides.
func (m *model) notice(number uint32) {
	m.dead[number] = true
	place, ok := m.place(number)
	switch {
	case !ok, m.stage == over:
		return
	case m.nodes[place].reported && (m.stage == starting || m.stage == ended):
		m.gone = append(m.gone, number)
		return
	case m.stage == starting:
		m.Failed, m.Done, m.left, m.stage = true, m.Now(), true, forgetting
	case m.stage != forgetting:
		m.stage = retrying
	}
	m.part(number)
	m.wave()
}

// part removes a dead node from the job. The others have new places, so events from before mean
// nothing.
func (m *model) part(number uint32) {
	place, ok := m.place(number)
	if !ok {
		return
	}
	before := m.nodes
	m.members = slices.Delete(m.members, place-1, place)
	m.nodes = make([]node, len(m.members)+1)
	for i := range m.members { // place i+1, or, behind the dead one, i+2 before
		old := i + 1
		if old >= place {
			old++
		}
		m.nodes[i+1].launching = before[old].launching
	}
	m.markDead()
	m.launch++
}

// markDead marks the nodes that have died.
func (m *model) markDead() {
	for _, d := range m.Deaths {
		if place, ok := m.place(d.Node); ok && d.At <= m.Now() {
			m.nodes[place].dead = true
		}
	}
}
