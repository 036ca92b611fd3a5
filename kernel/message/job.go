package message

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/channel"
	"margay/kernel/fabric"
	"margay/kernel/keep"
	"margay/kernel/record"
	"margay/nimble"
	"margay/nimble/memory"
)

// Job is the messages of one job on this node.
type Job struct {
	engine   *Engine
	config   JobConfig
	key      uint64
	self     int   // this node's place in config.Members
	place    []int // by rank: its node's place in config.Members
	local    map[id.Rank]*rank
	ledger   *ledger
	channels *channel.Table
	pathing  sync.Mutex      // held while the ranks are told which path their messages take
	context  context.Context // ends with the job
	cancel   context.CancelFunc
	running  sync.WaitGroup
	faults   sync.Once
	adopted  bool // from an earlier node kernel
	wasInUse bool // a rank of this node used messages then

	sending sync.Mutex

	receiving sync.Mutex
	event     *memory.Memory // a slot.MessageContext
	judged    *packet        // the message in it
	intake    [][]intake     // by lane of a local rank and member
	burst     nimble.Burst

	mu       sync.Mutex
	changed  sync.Cond
	granted  []uint64           // by lane: bytes of messages from this node that have been taken
	granting [][]uint64         // by lane of a local rank and member: bytes that the member has been told are taken
	reserved []uint64           // by lane: bytes of messages that are taken from a ring and not yet sent
	inUse    bool               // some rank of the job uses messages
	ended    map[id.Rank]uint64 // ranks that have ended: the barriers that they had entered
	entered  uint64             // barriers that all ranks of this node have entered
	owed     []uint64           // by member: messages sent to it before that
	came     []uint64           // by member: messages from here that it says it has
	asked    []uint64           // by member: messages from there that it wants to hear are settled; 0 when it has heard
	closed   bool

	// What is being forwarded.
	forwards     map[int][]forward // by lane: what waits for room
	onward       map[int][]onward  // by lane: what is on its way, in order
	held         map[flow][]*held  // whose room has not been given back, in order; the first of each is being forwarded
	isForwarding bool              // there is a goroutine for that

	isMissing bool // a rank that others wait for has ended
}

func (e *Engine) newJob(c JobConfig) (*Job, error) {
	j := &Job{
		engine: e, config: c, key: key(c.Secret), local: make(map[id.Rank]*rank),
		granted: make([]uint64, lanes*len(c.Nodes)), reserved: make([]uint64, lanes*len(c.Nodes)),
		ended: make(map[id.Rank]uint64),
		owed:  make([]uint64, len(c.Members)), came: make([]uint64, len(c.Members)), asked: make([]uint64, len(c.Members)),
		forwards: make(map[int][]forward), onward: make(map[int][]onward), held: make(map[flow][]*held),
	}
	j.changed.L = &j.mu
	j.self = slices.Index(c.Members, e.config.Self)
	for _, node := range c.Nodes {
		j.place = append(j.place, slices.Index(c.Members, node))
	}
	if j.self < 0 || slices.Contains(j.place, -1) {
		return nil, fmt.Errorf("messages of job %d: a node is no member of the job", c.Job)
	}
	for range lanes * len(c.Local) {
		j.granting = append(j.granting, make([]uint64, len(c.Members)))
		j.intake = append(j.intake, make([]intake, len(c.Members)))
	}
	var err error
	if j.event, err = memory.Map("message", slot.MessageSize); err != nil {
		return nil, err
	}
	j.context, j.cancel = context.WithCancel(e.context)
	c.Set.KeepWith(c.Keeper)
	return j, nil
}

// memberAt returns a node's place in the job, -1 when it has none or is this one.
func (j *Job) memberAt(node id.Node) int {
	at := slices.Index(j.config.Members, node)
	if at == j.self {
		return -1
	}
	return at
}

// run brings the job to life.
func (j *Job) run() {
	j.setPath()
	for _, r := range j.local {
		j.running.Go(r.pump)
		j.running.Go(r.listen)
		j.running.Go(r.serve)
	}
	if !j.adopted {
		return
	}
	if j.wasInUse {
		j.running.Go(func() { j.use(true) }) // it waits for the transport
	}
	for member := range j.config.Members {
		if member != j.self {
			j.running.Go(func() { j.resume(member) })
		}
	}
}

// enter keeps the job from being released until running.Done is called. It reports false when the job is closed.
func (j *Job) enter() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	j.running.Add(1)
	return true
}

// Close ends the job's messages here and releases everything.
func (j *Job) Close() {
	j.engine.remove(j)
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.cancel()
	j.changed.Broadcast()
	var held []*os.File
	for _, r := range j.local {
		held = append(held, r.holdFiles()...)
		r.closeFiles()
	}
	j.running.Wait()
	j.release()
	closeForeign(held) // and what nobody has read
}

// Waiting returns how many messages wait for a rank of this node, at most.
func (j *Job) Waiting(rank id.Rank) uint32 {
	r := j.local[rank]
	if r == nil || !j.enter() {
		return 0
	}
	defer j.running.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ordinary.look()
	r.upcalls.look()
	return r.waits()
}

// fault reports once that the job cannot go on, and keeps that: a node kernel that is started again before serve has heard of it
// reports it once more.
func (j *Job) fault(format string, args ...any) {
	j.faults.Do(func() {
		err := fmt.Errorf(format, args...)
		j.recorder().Add(record.Event{Kind: record.Fault, Job: j.config.Job, Text: err.Error()})
		go func() {
			j.engine.config.Fault(j.config.Job, err)
			words, _ := json.Marshal(err.Error())                              // which a string always has
			_ = j.config.Keeper.Keep(keep.Item{Name: keptFault, Words: words}) // it fails when the job has ended
		}()
	})
}

// send sends a frame that is no message. It never waits for the other node.
func (j *Job) send(member int, frame []byte) {
	// It fails only when the job ends.
	_ = j.engine.send(j.context, j.config.Members[member], fabric.System, frame)
}

func (j *Job) newFrame(kind byte, words ...uint64) []byte {
	return newFrame(kind, j.config.Job, j.key, words...)
}

// frame takes a frame of this job from another node.
func (j *Job) frame(from id.Node, f *frame) {
	member := j.memberAt(from)
	if member < 0 || f.key != j.key {
		j.engine.log.Printf("job %d: node%d, which has no part in it, sends a frame", j.config.Job, from)
		return
	}
	switch f.kind {
	case kindMessages:
		j.receive(member, f)
	case kindWindow:
		j.grants(member, f.grants)
	case kindArrived:
		j.childArrived(member, f.number)
	case kindReleased:
		if member == j.parent() {
			j.complete(f.number)
		}
	case kindCame:
		j.haveCome(member, f.number)
	case kindJoined:
		j.use(false)
	case kindEnded:
		if int(f.rank) < len(j.place) && j.place[f.rank] == member {
			j.rankEnded(f.rank, f.number)
		}
	}
}

// receive takes the messages of a frame, in the order in which they were sent.
func (j *Job) receive(member int, f *frame) {
	j.receiving.Lock()
	defer j.receiving.Unlock()
	if have := j.ledger.received[member]; f.number != have {
		j.lost(member, f.number, have)
		return
	}
	var back refunds
	n := j.handleAll(member, f, &back)
	j.mu.Lock()
	j.ledger.received[member] += n
	if len(f.packets) == 0 {
		back.came = append(back.came, j.answer(member))
	}
	j.mu.Unlock()
	back.send(j)
}

// handleAll handles the messages of a frame up to the first for which the sender had no room, and returns how many. Those behind
// it are dropped, and so are all later frames of that member, since their numbers do not meet. The caller holds Job.receiving.
func (j *Job) handleAll(member int, f *frame, back *refunds) uint64 {
	defer j.burst.End()
	for i := range f.packets {
		p := &f.packets[i]
		r := j.target(member, p)
		if r == nil {
			continue
		}
		o := origin{flow{r, member, p.hops}, f.number + uint64(i), p.cost()}
		if !j.admit(o) {
			j.fault("node%d has sent rank %d on node%d more than its window of %d bytes has room for",
				j.config.Members[member], r.number, j.engine.config.Self, windowOf(o.lane()))
			return uint64(i)
		}
		j.handle(r, o, p, back)
	}
	return uint64(len(f.packets))
}

// answer answers a question. When not all is settled, another answer follows. The caller holds Job.mu.
func (j *Job) answer(member int) came {
	number := j.settled(member)
	if received := j.ledger.received[member]; number < received {
		j.asked[member] = received
	}
	return came{member, number}
}

// question is a frame without messages, which its receiver answers with the number of those that it has, and that have come to
// where it forwarded them. The caller holds Job.sending.
func (j *Job) question(member int) []byte { return j.newFrame(kindMessages, j.ledger.sent[member]) }

// lost reports that the numbers of the messages from a member do not meet.
func (j *Job) lost(member int, sent, came uint64) {
	j.fault("messages between node%d and node%d were lost when a connection broke or a node kernel was started again (%d were sent, %d came)",
		j.config.Members[member], j.engine.config.Self, sent, came)
}

// receiveOwn takes messages from ranks of this node to ranks of this node.
func (j *Job) receiveOwn(b []byte) {
	f := j.engine.frames.Get().(*frame)
	defer j.engine.frames.Put(f)
	if err := f.parse(b); err != nil {
		panic(err) // this node kernel has just made it
	}
	j.receive(j.self, f)
}

// sendMessages sends a frame of messages, and waits while much is queued for that node already.
func (j *Job) sendMessages(member int, b []byte) {
	if err := j.engine.send(j.context, j.config.Members[member], j.engine.class(), b); err != nil && j.context.Err() == nil {
		j.fault("messages from node%d to node%d: %v", j.engine.config.Self, j.config.Members[member], err)
	}
}

// countBatches numbers the messages of batches and counts them as sent. The caller holds Job.sending.
func (j *Job) countBatches(batches []*batch) {
	for member, b := range batches {
		if b != nil {
			b.number(j.ledger.sent[member])
			j.recordSent(b, j.ledger.sent[member])
			j.ledger.sent[member] += b.count
		}
	}
}

// sendBatches sends batches that have been counted. The caller holds Job.sending.
func (j *Job) sendBatches(batches []*batch) {
	for member, b := range batches {
		if b == nil {
			continue
		}
		batches[member] = nil
		if member == j.self {
			j.receiveOwn(b.frame)
		} else {
			j.sendMessages(member, b.frame)
		}
	}
}

// target checks who is said to have sent a message and returns the rank that it is for.
func (j *Job) target(member int, p *packet) *rank {
	if int(p.source) >= len(j.place) || j.place[p.source] != member && p.hops == 0 {
		j.engine.log.Printf("job %d: node%d sends a message of rank %d, which it does not have", j.config.Job, j.config.Members[member], p.source)
		return nil
	}
	r := j.local[p.target]
	if r == nil {
		j.engine.log.Printf("job %d: node%d sends a message to rank %d, which is not here", j.config.Job, j.config.Members[member], p.target)
	}
	return r
}

// handle decides what becomes of a message to a rank of this node. The caller holds Job.receiving.
func (j *Job) handle(r *rank, o origin, p *packet, back *refunds) {
	begin := j.recorder().Begin()
	verdict := slot.Deliver
	if !j.config.Set.Empty() {
		j.fill(p)
		j.judged = p
		verdict = j.config.Set.Message(&j.burst, j.event.Region(true), j.allow)
	}
	r.judged(begin, o.member, o.number, p, verdict)
	switch verdict {
	case slot.Deliver:
		r.deliver(&r.ordinary, o, p, back)
	case slot.Upcall:
		r.deliver(&r.upcalls, o, p, back)
	case slot.Forward:
		j.forward(o, *p, j.namedTarget())
	default:
		j.taken(o, back)
	}
}

// fill writes the context of the message slot.
func (j *Job) fill(p *packet) {
	b := j.event.Bytes()
	binary.LittleEndian.PutUint32(b[0:], uint32(j.config.Job))
	binary.LittleEndian.PutUint32(b[4:], uint32(j.config.Nodes[p.source]))
	binary.LittleEndian.PutUint32(b[8:], uint32(p.source))
	binary.LittleEndian.PutUint32(b[12:], uint32(p.target))
	binary.LittleEndian.PutUint32(b[16:], uint32(p.handler))
	binary.LittleEndian.PutUint32(b[20:], uint32(len(p.payload)))
	binary.LittleEndian.PutUint64(b[24:], p.args[0])
	binary.LittleEndian.PutUint64(b[32:], p.args[1])
	clear(b[40+copy(b[40:], p.payload):]) // an extension may have written there
}

// grants notes what a node says it has taken.
func (j *Job) grants(member int, grants []grant) {
	var back refunds
	j.mu.Lock()
	for _, g := range grants {
		if int(g.rank) < len(j.place) && j.place[g.rank] == member && g.taken <= j.ledger.spent[lane(g.rank, g.hops)] {
			j.grant(lane(g.rank, g.hops), g.taken, &back)
		}
	}
	j.changed.Broadcast()
	j.mu.Unlock()
	back.send(j)
}

// resume tells a member, after frames between here and there may have been lost, everything that it must know.
func (j *Job) resume(member int) {
	j.sending.Lock()
	err := j.engine.send(j.context, j.config.Members[member], j.engine.class(), j.question(member))
	j.sending.Unlock()
	if err != nil {
		return
	}
	j.mu.Lock()
	grants := j.newFrame(kindWindow)
	for _, r := range j.local {
		for hops := range uint8(lanes) {
			total := j.ledger.takenOf(r.index, hops)[member]
			j.granting[r.index*lanes+int(hops)][member] = total
			grants = appendGrant(grants, grant{r.number, hops, total})
		}
	}
	frames := [][]byte{grants}
	if member == j.parent() {
		frames = append(frames, j.newFrame(kindArrived, *j.ledger.told))
	}
	if slices.Contains(j.children(), member) {
		frames = append(frames, j.newFrame(kindReleased, *j.ledger.released))
	}
	frames = append(frames, j.news()...)
	j.mu.Unlock()
	for _, f := range frames {
		j.send(member, f)
	}
}

// news are the frames that tell who takes part and who has ended. The caller holds Job.mu.
func (j *Job) news() [][]byte {
	if !j.inUse {
		return nil
	}
	frames := [][]byte{j.newFrame(kindJoined)}
	for rank, entered := range j.ended {
		if j.place[rank] == j.self {
			frames = append(frames, j.newFrame(kindEnded, uint64(rank), entered))
		}
	}
	return frames
}

// use notes that some rank of the job uses messages, and from then on that all must take part. here says that it is a rank
// of this node, so that the others must be told.
func (j *Job) use(here bool) {
	j.mu.Lock()
	if j.inUse || j.closed {
		j.mu.Unlock()
		return
	}
	j.inUse = true
	news := j.news()
	j.running.Go(j.demand)
	j.mu.Unlock()
	if !here {
		news = news[1:] // the others know
	}
	for member := range j.config.Members {
		for _, f := range news {
			if member != j.self {
				j.send(member, f)
			}
		}
	}
}

// demand faults the job when a rank of this node does not take part in time.
func (j *Job) demand() {
	timeout := j.config.InitTimeout
	if timeout == 0 {
		timeout = DefaultInitTimeout
	}
	select {
	case <-time.After(timeout):
	case <-j.context.Done():
		return
	}
	for _, r := range j.local {
		if !r.takesPart() {
			j.fault("rank %d on node%d has not joined the job's messages within %v of the first rank (it never called margay_init or margay.Init)",
				r.number, j.engine.config.Self, timeout)
		}
	}
}
