package message

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/channel"
	"margay/kernel/collective"
	"margay/kernel/fabric"
	"margay/kernel/flow"
	"margay/kernel/keep"
	"margay/kernel/record"
	"margay/kernel/untrusted"
	"margay/kernel/window"
	"margay/nimble/memory"
)

// Job has the messages of one job on this node. It is safe for concurrent use.
type Job struct {
	engine   *Engine
	config   JobConfig
	key      uint64
	self     int              // this node's place in config.Members
	place    []int            // by rank: its node's place in config.Members
	leaders  func() []id.Rank // found when they are needed first
	local    map[id.Rank]*rank
	counters *counters
	channels *channel.Table

	context context.Context // ends with the job
	cancel  context.CancelFunc
	running sync.WaitGroup
	faults  sync.Once

	opening   sync.Mutex
	windows   *window.Server // nil until there are mirrored channels
	noWindows bool           // there will be none

	pathing    sync.Mutex // held while the paths of messages are published
	announcing sync.Mutex // held while a path is sent to another node, or one of its paths is obeyed
	sending    sync.Mutex
	receiver   receiver

	mu         sync.Mutex
	changed    sync.Cond // messages may have credits, or be queued to be forwarded, or the job is closed
	flow       *flow.Flow
	barrier    *collective.Barrier
	mirroring  mirroring
	bounds     map[id.Rank]uint64 // of barriers on the boards, by rank of another node that has ended
	inUse      bool               // some rank of the job uses messages
	forwarding bool               // there is a goroutine that forwards
	closed     bool
}

func (e *Engine) newJob(c JobConfig) (*Job, error) {
	j := &Job{engine: e, config: c, key: Key(c.Secret), local: make(map[id.Rank]*rank), bounds: make(map[id.Rank]uint64)}
	j.changed.L = &j.mu
	j.self = slices.Index(c.Members, e.config.Self)
	var err error
	if j.place, err = placesOf(c.Nodes, c.Members); err != nil || j.self < 0 {
		return nil, fmt.Errorf("messages of job %d: %w", c.Job, errNoMember)
	}
	if j.receiver.event, err = memory.Map("message", slot.PacketSize); err != nil {
		return nil, err
	}
	j.leaders = sync.OnceValue(j.findLeaders)
	j.receiver.returns.job, j.receiver.handled.job = j, j
	j.receiver.pieces = make(map[stream]decision)
	j.mirroring = j.newMirroring()
	j.context, j.cancel = context.WithCancel(e.context)
	c.Set.KeepWith(c.Keeper)
	return j, nil
}

// errNoMember reports a node that is not a member of the job.
var errNoMember = errors.New("a node is not a member of the job")

// placesOf returns the place of each node among the members. Nodes that are equal follow each
// other, in the order of the members, so it does not search all members for each.
func placesOf(nodes, members []id.Node) ([]int, error) {
	places := make([]int, 0, len(nodes))
	at := 0
	for _, node := range nodes {
		ahead := slices.Index(members[at:], node)
		if ahead < 0 {
			return nil, errNoMember
		}
		at += ahead
		places = append(places, at)
	}
	return places, nil
}

// open makes the state machines of the job from its counters in m.
func (j *Job) open(m *memory.Memory) {
	j.counters = newCounters(m, len(j.config.Members), len(j.config.Nodes), len(j.config.Local))
	members := len(j.config.Members)
	j.flow = flow.New(flow.Config{Self: j.self, Members: members, Place: j.place, Local: j.config.Local}, j.counters.flow)
	j.barrier = collective.New(collective.Config{Self: j.self, Members: members, Local: j.config.Local}, j.counters.barrier)
}

// memberAt returns a node's place in the job; -1 if it has none or is this one.
func (j *Job) memberAt(node id.Node) int {
	at := slices.Index(j.config.Members, node)
	if at == j.self {
		return -1
	}
	return at
}

// run starts the goroutines of the job.
func (j *Job) run() {
	j.setPath()
	for _, r := range j.local {
		j.running.Go(r.pump)
		j.running.Go(func() { r.endpoint.Listen(r.rung) })
		j.running.Go(r.calls().Serve)
	}
}

// enter keeps the job from being released until running.Done is called. It reports false if the job
// is closed.
func (j *Job) enter() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	j.running.Add(1)
	return true
}

// Close ends the job's messages on this node and releases everything.
func (j *Job) Close() {
	j.engine.remove(j)
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.cancel()
	j.changed.Broadcast()
	var held []*os.File
	for _, r := range j.local {
		held = append(held, r.endpoint.Hold()...)
		r.endpoint.Shut()
	}
	j.running.Wait()
	j.release()
	untrusted.CloseSockets(held) // including all descriptors in them that were not received
}

// release releases the job's resources.
func (j *Job) release() {
	j.cancel()
	if j.windows != nil {
		j.windows.Close()
	}
	for _, r := range j.local {
		r.endpoint.Close()
	}
	if j.channels != nil {
		j.channels.Close()
	}
	if j.counters != nil {
		j.counters.memory.Close()
	}
	j.receiver.event.Close()
}

// Waiting returns an upper bound on the messages that wait for a rank of this node.
func (j *Job) Waiting(rank id.Rank) uint32 {
	r := j.local[rank]
	if r == nil || !j.enter() {
		return 0
	}
	defer j.running.Done()
	return r.endpoint.Waiting()
}

// owner is the job as its endpoints see it (endpoint.Owner).
type owner Job

func (o *owner) Fault(err error) { (*Job)(o).fault("%w", err) }

func (o *owner) Woken(rank id.Rank) {
	if o.config.Woken != nil {
		o.config.Woken(rank)
	}
}

func (o *owner) Held(source id.Rank)   { (*Job)(o).held(source) }
func (o *owner) Placed(source id.Rank) { (*Job)(o).placed(source) }

// fault reports once that the job cannot continue, and leaves the reason with the keeper: a node
// kernel that starts before serve has received the report repeats it.
func (j *Job) fault(format string, args ...any) {
	j.faults.Do(func() {
		err := fmt.Errorf(format, args...)
		j.recorder().Add(record.Event{Kind: record.Fault, Job: j.config.Job, Text: err.Error()})
		go func() {
			j.engine.config.Fault(j.config.Job, err)
			kept := foundFault{Text: err.Error()}
			errors.As(err, &kept.Ended)
			words, _ := json.Marshal(kept)                                     // never fails for text and numbers
			_ = j.config.Keeper.Keep(keep.Item{Name: keptFault, Words: words}) // fails when the job has ended
		}()
	})
}

// send sends a frame without messages. It never waits for the other node.
func (j *Job) send(member int, b []byte) {
	// It fails only when the job ends.
	_ = j.engine.send(j.context, j.config.Members[member], fabric.System, b)
}

func (j *Job) newFrame(kind frame.Kind, words ...uint64) []byte {
	return frame.New(kind, j.config.Job, j.key, words...)
}

// frame handles a frame of this job from another node.
func (j *Job) frame(from id.Node, f *frame.Frame) {
	member := j.memberAt(from)
	if member < 0 || f.Key != j.key {
		j.engine.log.Printf("job %d: node%d, which has no part in it, sends a frame", j.config.Job, from)
		return
	}
	switch f.Kind {
	case frame.Messages:
		j.receive(member, f.Number, f.Messages)
	case frame.Credits:
		j.credits(member, f.Credits)
	case frame.Acknowledged:
		j.acknowledged(member, f.Number)
	case frame.Arrived:
		j.arrived(member, f.Number)
	case frame.Released:
		j.released(member, f.Number)
	case frame.Meet:
		j.meeting(member, f.Meeting)
	case frame.Path:
		j.pathChanged(member, f.Number)
	case frame.PathSeen:
		j.pathSeen(member, f.Number)
	case frame.Settle:
		j.settle(member)
	case frame.Settled:
		j.settled(member, f.Number)
	case frame.Last:
		j.last(member, f)
	case frame.Joined:
		j.join(member)
	case frame.Ended:
		j.rankEnded(member, f.Rank, f.Number, f.Bound)
	}
}

// resume sends a member all that it must know after frames between the two nodes may have been
// lost.
func (j *Job) resume(member int) {
	j.sending.Lock()
	err := j.engine.send(j.context, j.config.Members[member], j.engine.class(), j.question(member))
	j.sending.Unlock()
	if err != nil {
		return
	}
	j.mu.Lock()
	credits := j.newFrame(frame.Credits)
	for _, c := range j.flow.Resume(member) {
		credits = frame.AppendCredit(credits, c)
	}
	frames := [][]byte{credits}
	if member == j.barrier.Parent() {
		frames = append(frames, j.newFrame(frame.Arrived, j.barrier.Reported()))
	}
	if slices.Contains(j.barrier.Children(), member) {
		frames = append(frames, j.newFrame(frame.Released, j.barrier.Released()))
	}
	if slices.Contains(j.neighbours(), member) {
		frames = append(frames, j.news(member)...)
	}
	j.mu.Unlock()
	for _, b := range frames {
		j.send(member, b)
	}
	j.resumeFar(member)
}
