// Package message carries active messages between the ranks of jobs. It composes the packages of a
// message's path, and adds the stamp of the source, the verdict of the message slot, and the route.
//
// A rank writes a message into its send ring (package endpoint). Its pump takes it from there when
// there are credits (package flow), stamps its source and sends it with others in a frame (package
// frame) to the target's node (package fabric). Messages for ranks of the same node are handed over
// as they are, and most of them take a channel and never come here (package channel). On the
// target's node the message extensions of the job decide about the message (package extension): it
// is finished, or it goes into a ring of the target, or on to another rank. Messages between the
// libraries pass no extension. Requests about windows that come as messages are carried out here,
// in the memory of the region, and forwarded to their source as answers; most of them come as
// datagrams (package window).
// Barriers (package collective) end when all messages from before them have arrived.
//
// Engine has the messages of a node, Job the messages of one job, and rank sends for one rank.
// Package call answers the requests of a rank that are not messages.
//
// # Loss
//
// Frames can be lost when a connection breaks, and messages when a node kernel is killed. They are
// not sent again, but no loss is missed. Both nodes count the messages of a job between them, each
// frame of messages has the number of its first message, and the counters are in memory that
// outlives a node kernel. The sender counts a message before it sends it, the receiver after it has
// handled it. Where numbers do not continue, the job is reported as faulty.
//
// All other frames carry running totals. After a broken connection, and from a restarted node
// kernel, they are sent again (Job.resume).
//
// # Locks
//
// Outermost first: Job.opening (held while the server of windows is made), Engine.spinning (held
// while the spinner begins or ends), Job.pathing (held while the paths of messages are published),
// Job.announcing (held while a path is sent to another node, or one of its paths is obeyed),
// Job.sending (held while frames of messages are numbered and queued), receiver.mu (held while
// messages are given to extensions and ranks), Endpoint.mu, Job.mu. Job.mu guards the state
// machines of the job, Flow and Barrier, and is held for no call that waits. Frames without
// messages are sent with no lock but Job.announcing, Job.sending and receiver.mu held: sending them
// never waits. Engine.mu guards the table of jobs and the transport. It is taken last, and held for
// no other, like the locks of package channel, under which package border alone takes its own.
package message

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"margay/internal/cond"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/border"
	"margay/kernel/channel"
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
	// Fault is called when a job cannot continue, on a goroutine of its own.
	Fault func(job id.Job, err error)
	// Recorder gets the events of messages; nil: they are not recorded.
	Recorder *record.Recorder
	// Border runs extensions in the slots packet and message on the interface of the node; nil:
	// none run there.
	Border Border
}

// Border is a border.Border, as far as the messages of jobs need it.
type Border interface {
	Judges([]*extension.Extension) bool
	Admit(p border.Pair, seal, position uint64) (bool, error)
	Advance(p border.Pair, position uint64) error
	Leave(p border.Pair)
}

// Engine carries the messages of all jobs of a node. It is safe for concurrent use.
type Engine struct {
	config  Config
	context context.Context
	cancel  context.CancelFunc
	log     *gate.Log // of invalid frames of other nodes

	mu        sync.Mutex
	changed   sync.Cond
	transport fabric.Transport // nil until Connect
	jobs      map[id.Job]*Job
	frames    sync.Pool // of *frame.Frame

	spinning sync.Mutex // held while the spinner begins or ends
	spinner  atomic.Pointer[spinner]
	prompt   atomic.Bool // frames of messages never wait
}

// NewEngine makes an engine that cannot send before Connect.
func NewEngine(c Config) *Engine {
	e := &Engine{config: c, log: gate.NewLog(c.Log, 10, 1), jobs: make(map[id.Job]*Job)}
	e.changed.L = &e.mu
	e.frames.New = func() any { return new(frame.Frame) }
	e.context, e.cancel = context.WithCancel(context.Background())
	return e
}

// Connect sets the transport. Frames wait until it is called.
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
	Members []id.Node // the nodes of the job, in the order of its tree, including this one
	Local   []id.Rank // the ranks on this node
	Cores   []id.Core // of the ranks in Local, for the recorder; nil: none
	Secret  []byte
	Set     *extension.Set
	Keeper  keep.Keeper

	// InitTimeout bounds how long ranks that use messages wait for one that does not take part; 0:
	// DefaultInitTimeout.
	InitTimeout time.Duration

	// Halts returns how often the job was stopped and continued; it is odd while the job is
	// stopped. Each change restarts the InitTimeout. nil: never stopped.
	Halts func() uint64

	// Arrived is called for each message that has arrived for a rank of this node, with an upper
	// bound on the number of messages that wait for it. It may be nil. The goroutine receives
	// messages: Arrived must neither wait nor call the engine.
	Arrived func(rank id.Rank, waiting uint32)

	// Woken is called when a rank of this node may have been woken, unless Arrived is called after
	// that. It may be nil. It must neither wait nor call the engine.
	Woken func(rank id.Rank)

	// Scheduled reports whether Arrived and Woken must be called at present; nil: always, where
	// they are set. Engine.Repath must be called after a change.
	Scheduled func() bool

	// Remote is what mirrored channels with ranks of other nodes need; nil: there are none.
	Remote *Remote

	// Meets makes ranks of several nodes complete barriers without the node kernels where they can.
	// It must be equal at all nodes of the job: ranks that meet wait for all others to meet.
	Meets bool

	// Crowd is how the ranks of this node share CPUs with others of the job.
	Crowd Crowd
}

// Crowd states with which ranks of their job the ranks of a node share CPUs.
type Crowd int

// The crowds.
const (
	Apart    Crowd = iota // with none
	Together              // with others of the node, to which one can yield
	Strewn                // with ranks of other nodes, to which yielding does not help
)

// Remote is what mirrored channels need.
type Remote = channel.Remote

// DefaultInitTimeout is the InitTimeout of a job that sets none.
const DefaultInitTimeout = 30 * time.Second

// Open makes a job's counters, and an endpoint for each local rank, and leaves them with the
// keeper.
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

// Adopt continues with a job that the previous node kernel had opened, from the items kept of it.
// It takes ownership of the items' files.
func (e *Engine) Adopt(c JobConfig, items []*keep.Item) (*Job, error) {
	for _, item := range items {
		defer item.CloseFiles()
	}
	j, err := e.newJob(c)
	if err != nil {
		return nil, err
	}
	if err := j.adopt(items); err != nil {
		j.release()
		return nil, fmt.Errorf("messages of job %d: %w", c.Job, err)
	}
	e.add(j)
	j.rejoin()
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

// Frame handles a frame from another node (fabric.Handler).
func (e *Engine) Frame(from id.Node, b []byte) {
	f := e.frames.Get().(*frame.Frame)
	defer e.frames.Put(f)
	if err := f.Parse(b); err != nil {
		e.log.Printf("frame from node%d: %v", from, err)
		return
	}
	e.mu.Lock()
	j := e.jobs[f.Job]
	e.mu.Unlock()
	if j == nil || !j.enter() {
		return // it has ended here, and is ending there
	}
	defer j.running.Done()
	if s := e.spinner.Load(); s != nil && f.Kind == frame.Messages && s.do(func() { j.frame(from, f) }) {
		return
	}
	j.frame(from, f)
}

// Broken reports that frames to and from a node may have been lost (fabric.Handler).
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

// send sends a frame as soon as there is a transport.
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

// Key derives the key of a job's frames from the job's secret.
func Key(secret []byte) uint64 {
	var b [8]byte
	copy(b[:], secret)
	return binary.LittleEndian.Uint64(b[:])
}
