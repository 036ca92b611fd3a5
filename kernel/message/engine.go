// Package message carries active messages between the ranks of jobs. Those between ranks of one node may pass it by (package
// channel, file channels.go).
//
// A rank writes a message into its send ring (package wire). The node kernel takes it from there, stamps who sent it, and
// sends it with others in a frame to the node of the target rank (package fabric), where the job's message extensions decide
// what becomes of it (package extension): it is done with, or it goes into the target's receive ring.
//
// # Flow
//
// For each pair of a node and a target rank there is a window: bytes of messages that may be on their way, or wait at the
// target's node for room in the receive ring. A rank whose next message finds the window closed has it and all later ones
// waiting in its send ring. What has been taken is told back as a running total, so that telling it again does no harm. The
// target's node counts what comes: a message beyond the window is dropped, and the job is reported as faulty.
//
// # Loss
//
// Frames can be lost when a connection breaks, and so can messages when a node kernel is killed. They are not sent again;
// but the loss of a message is never overlooked. Both nodes count the messages of a job between them, every frame bears the
// number of its first message, and the counts are in memory that outlives a node kernel (ledger). The sender counts a message
// before it passes it on, the receiver when it has passed it on. Where numbers do not meet, the job is reported as faulty.
//
// # Barriers
//
// The nodes of a job form a binary tree. A node whose local ranks and whose children are all through with barrier n tells its
// parent n; the root tells everybody n back. The numbers only grow, so they too can be told again.
//
// Messages that were sent before a barrier are handled before their target leaves it. So a node is through with a barrier only
// when the other nodes have the messages that its ranks had sent when they entered: it asks those to which it has sent any
// since they last said so. A rank is let out behind the messages that wait for room in its ring.
//
// Locks, outermost first: Engine.spinning (held while the spinner begins or ends), Job.pathing (held while ranks are told which path messages take), Job.sending (held while frames of messages are numbered and queued), Job.receiving (held while
// messages are handed to extensions and ranks), rank.mu, Job.mu. Frames that are not messages are sent with none but
// Job.sending and Job.receiving held: sending them never waits. Engine.mu guards the table of jobs and the transport. It is
// taken last, and held for no other.
package message

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"margay/internal/cond"
	"margay/kernel/abi/id"
	"margay/kernel/extension"
	"margay/kernel/fabric"
	"margay/kernel/gate"
	"margay/kernel/keep"
	"margay/kernel/record"
)

// Config is what an engine needs.
type Config struct {
	Self id.Node
	Log  func(format string, args ...any)
	// Fault is told that a job cannot go on as it should. It is called on a goroutine of its own.
	Fault func(job id.Job, err error)
	// Recorder gets the events of messages; nil: nobody wants them.
	Recorder *record.Recorder
}

// Engine carries the messages of all jobs of a node. It is safe for concurrent use.
type Engine struct {
	config  Config
	context context.Context
	cancel  context.CancelFunc
	log     *gate.Log // of what other nodes send that they should not

	mu        sync.Mutex
	changed   sync.Cond
	transport fabric.Transport // nil until Connect
	jobs      map[id.Job]*Job
	frames    sync.Pool // of *frame

	spinning sync.Mutex // held while the spinner begins or ends
	spinner  atomic.Pointer[spinner]
	prompt   atomic.Bool // frames of messages never wait
}

// NewEngine makes an engine that cannot send before Connect.
func NewEngine(c Config) *Engine {
	e := &Engine{config: c, log: gate.NewLog(c.Log, 10, 1), jobs: make(map[id.Job]*Job)}
	e.changed.L = &e.mu
	e.frames.New = func() any { return new(frame) }
	e.context, e.cancel = context.WithCancel(context.Background())
	return e
}

// Connect gives the engine its way to other nodes.
func (e *Engine) Connect(t fabric.Transport) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.transport = t
	e.changed.Broadcast()
}

// JobConfig describes a job to the engine.
type JobConfig struct {
	Job     id.Job
	Nodes   []id.Node // of each rank
	Members []id.Node // the nodes of the job, in the order of its tree; this one among them
	Local   []id.Rank // the ranks on this node
	Cores   []id.Core // of those, for the recorder; nil: none
	Secret  []byte
	Set     *extension.Set
	Keeper  keep.Keeper

	// InitTimeout bounds how long ranks that use messages wait for one that does not take part; 0: DefaultInitTimeout.
	InitTimeout time.Duration

	// Arrived is told that a message has come for a rank of this node, and how many wait for it at most. nil: nobody wants to
	// know. It is called for every message, on a goroutine that receives them: it must not wait, nor call the engine.
	Arrived func(rank id.Rank, waiting uint32)

	// Woken is told that a rank of this node may have been woken up, unless Arrived is told after that. nil: nobody wants to know.
	// It must not wait, nor call the engine.
	Woken func(rank id.Rank)

	// Scheduled reports whether Arrived and Woken must be told at present; nil: always, where they are set. Repath must be called
	// after it has changed.
	Scheduled func() bool

	// CPUs is how many CPUs the ranks of this node run on; 0: one for each.
	CPUs int
}

// DefaultInitTimeout is the InitTimeout of a job that asks for no other.
const DefaultInitTimeout = 30 * time.Second

// Open gives a job its messages: an area, bells and a socket for each local rank, which are left with the keeper.
func (e *Engine) Open(c JobConfig) (*Job, error) {
	j, err := e.newJob(c)
	if err != nil {
		return nil, err
	}
	if err := j.create(); err != nil {
		j.release()
		return nil, fmt.Errorf("messages of job %d: %w", c.Job, err)
	}
	e.add(j)
	return j, nil
}

// Adopt takes up a job that the node kernel before this one had opened, from what was kept of it. The files of the items are
// the engine's from then on.
func (e *Engine) Adopt(c JobConfig, items []*keep.Item) (*Job, error) {
	for _, item := range items {
		defer item.CloseFiles()
	}
	j, err := e.newJob(c)
	if err != nil {
		return nil, err
	}
	j.adopted = true
	if err := j.adopt(items); err != nil {
		j.release()
		return nil, fmt.Errorf("messages of job %d: %w", c.Job, err)
	}
	e.add(j)
	return j, nil
}

func (e *Engine) add(j *Job) {
	e.mu.Lock()
	e.jobs[j.config.Job] = j
	e.mu.Unlock()
	j.run()
}

func (e *Engine) remove(j *Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.jobs, j.config.Job)
}

// Frame takes a frame from another node (fabric.Handler).
func (e *Engine) Frame(from id.Node, b []byte) {
	f := e.frames.Get().(*frame)
	defer e.frames.Put(f)
	if err := f.parse(b); err != nil {
		e.log.Printf("frame from node%d: %v", from, err)
		return
	}
	e.mu.Lock()
	j := e.jobs[f.job]
	e.mu.Unlock()
	if j == nil || !j.enter() {
		return // it has ended here, and will there
	}
	defer j.running.Done()
	if s := e.spinner.Load(); s != nil && f.kind == kindMessages && s.do(func() { j.frame(from, f) }) {
		return
	}
	j.frame(from, f)
}

// Broken tells that frames to and from a node may have been lost (fabric.Handler).
func (e *Engine) Broken(node id.Node) {
	e.mu.Lock()
	var jobs []*Job
	for _, j := range e.jobs {
		jobs = append(jobs, j)
	}
	e.mu.Unlock()
	for _, j := range jobs {
		if at := j.memberAt(node); at >= 0 && j.enter() {
			// Not on the transport's goroutine, since it sends.
			go func() {
				defer j.running.Done()
				j.resume(at)
			}()
		}
	}
}

// send sends a frame, as soon as there is a transport.
func (e *Engine) send(ctx context.Context, to id.Node, class fabric.Class, frame []byte) error {
	t, err := e.connected(ctx)
	if err != nil {
		return err
	}
	return t.Send(ctx, to, class, frame)
}

// connected waits until there is a transport.
func (e *Engine) connected(ctx context.Context) (fabric.Transport, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := cond.Wait(ctx, &e.changed, func() bool { return e.transport != nil }); err != nil {
		return nil, err
	}
	return e.transport, nil
}

// key turns a job's secret into the key of its frames.
func key(secret []byte) uint64 {
	var b [8]byte
	copy(b[:], secret)
	return binary.LittleEndian.Uint64(b[:])
}
