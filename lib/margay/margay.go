// Package margay is the library of Go programs that take part in a Margay job. The program gets its
// place in the job, sends active messages to other ranks, synchronises by barriers, shares memory
// with the ranks and extensions of its node, and inserts extensions into the node kernel.
//
//	job, err := margay.Init()
//	job.Handle(1, func(m margay.Message) { ... })
//	job.Send(ctx, target, 1, [2]uint64{n}, payload)
//	job.Barrier(ctx)
//	job.WaitFor(ctx, func() bool { return arrived == n })
//	job.Finalize(ctx)
//
// A message to another node is written to memory shared with the node kernel; a system call is made
// only if the node kernel sleeps. A message to a rank of the same node is written to memory shared
// with that rank; a system call is made only if that rank sleeps. On a trusted wire, a message to
// another node is a datagram to its rank, and an operation on a window there one to its node
// kernel, or, if it is a get or an atomic access that waits and the rank polls or waits, to the
// rank. All pass the node kernels instead while an extension, a recording or a scheduler must see
// them. The first datagrams leave at once. If the program sends without a pause, later messages
// leave together, at the latest when it polls or waits. If it then calls nothing, its node kernel
// sends them after 20 to 40 ms; if it goes on sending a little at a time and never polls, they may
// wait for longer. A call that waits spins and yields for about a millisecond before it sleeps.
//
// Messages from one rank to another arrive in order, each exactly once: a loss ends the job. Unless
// an extension consumes a message, it runs the handler of its number inside Poll, Wait, WaitFor,
// Barrier, Finalize, or Send when that must wait. So a message may have been handled before the
// program waits for it: wait with WaitFor for the effect of a handler, not with Wait for a message.
// A handler must not block and must not call these functions; it may send with Post, which reports
// whether there is room. A message that an extension turns into an upcall runs its handler at once,
// if Upcalls has been called.
//
// Broadcast, Reduce, AllReduce, Gather, AllGather, AllToAll and Scan are the collective operations,
// of all ranks or of a group of them (NewGroup, Split). Put, Get, FetchAdd and CompareSwap reach
// memory of other ranks, which they have opened by Window. XferAndSignal and CompareAndWrite change
// the windows of all ranks of a group, or of none.
//
// Locks, outermost first: Job.meeting (one barrier at a time), Job.handling (held while messages
// are taken, their handlers run, which may send and ask, and collective operations advance),
// Job.sending, Job.asking, Job.mu.
package margay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/pace"
	"margay/kernel/abi/wire"
	"margay/lib/collective"
	"margay/lib/commit"
)

// Bounds of the payload of a message, in bytes.
const (
	MaxMessage = wire.MaxMessage // with Send
	MaxPayload = wire.MaxPayload // with Post
)

// Errors.
var (
	// ErrNoJob reports that this process was not started by margay run.
	ErrNoJob = errors.New("margay: this process is not a rank of a job: start it with margay run")
	// ErrClosed reports use of a job after Finalize.
	ErrClosed = errors.New("margay: the job is finalized")
	// ErrGone reports that the node kernel has closed the connection for good.
	ErrGone = errors.New("margay: the node kernel is gone")
	// ErrJoined is the error of Init in a second process of a rank.
	ErrJoined = errors.New("another process of this rank has joined the job: one process of each rank can, once")
	// ErrAbandoned is the error of Barrier after one that ctx ended while other ranks were
	// awaited.
	ErrAbandoned = errors.New("margay: an earlier barrier was abandoned: the job has no barriers any more")
	// ErrNotFound, ErrRefused, ErrNoRoom and ErrVersion are the reasons of the node kernel's
	// refusals.
	ErrNotFound = errors.New("not found")
	ErrRefused  = errors.New("refused")
	ErrNoRoom   = errors.New("no room")
	ErrVersion  = errors.New("version mismatch")
)

// Job is this rank's part in its job. It is safe for concurrent use; handlers run one at a time.
type Job struct {
	header         wire.Header
	area           *wire.Area
	memory         []byte
	socket         *net.UnixConn
	doorbell       *os.File
	upcallDoorbell *os.File

	board         *wire.Board
	peerDoorbell  *os.File // rung by the other ranks of this node
	peerDoorbells []int    // descriptors by local rank, -1: not fetched; guarded by sending

	asking   sync.Mutex // one request at a time
	requests uint32     // requests made; guarded by asking

	sending sync.Mutex
	out     *wire.Outlet
	mirrors mirrors

	handling sync.Mutex // held while messages are taken and their handlers run
	in       *wire.Inlet
	handlers [wire.MaxHandlers]func(Message)
	world    *collective.Group // all ranks; guarded by handling
	calls    calls             // the same
	desk     *commit.Desk      // the same
	pieces   wire.Assembler    // of long messages; the same
	remote   remote            // the same

	stalled atomic.Bool   // a message waits for others that have not arrived; changed under handling
	inVain  atomic.Uint32 // calls of Poll since one has handled something

	meeting  sync.Mutex // held during a barrier
	barriers barriers

	finalized atomic.Bool // changed under handling and sending: nothing is sent or handled after that

	interrupting sync.Once   // Upcalls has been called
	abandoned    atomic.Bool // a barrier that this rank had entered
	meets        atomic.Bool // this rank is in a barrier

	mu      sync.Mutex
	changed sync.Cond
	rung    uint64             // number of doorbells received and of batches handled by other goroutines
	waiters atomic.Int32       // goroutines in sleep; changed under mu
	closed  error              // ErrClosed or ErrGone; nil: it is not
	fixed   map[uintptr][]byte // by address: the regions that are mapped where all ranks have them
	windows map[window][]byte  // of ranks of this node
}

// Message is an active message, as passed to its handler.
type Message struct {
	Source    int // rank that sent it; the system vouches for it
	Node      int // where that rank is
	Handler   int
	Args      [2]uint64
	Payload   []byte // valid until the handler returns
	Extension bool   // an extension on that node has sent it, for a message to that rank; no rank can set this
}

// joined reports whether this process has joined its job: its descriptor is closed then, and
// another file may have the number.
var joined atomic.Bool

// Init joins this process to its job. All ranks of a job must call it, or none. One process of each
// rank can, once: not a second program that the rank starts.
func Init() (*Job, error) {
	fd, err := strconv.Atoi(os.Getenv(wire.EnvFD))
	switch {
	case joined.Load():
		return nil, errors.New("margay: Init has been called before")
	case err != nil || fd < 0:
		return nil, ErrNoJob
	}
	// Another program of this rank may have a file of its own there.
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		return nil, ErrNoJob
	}
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "margay")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoJob, err)
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, ErrNoJob
	}
	j := &Job{socket: socket, fixed: make(map[uintptr][]byte), windows: make(map[window][]byte)}
	j.changed.L = &j.mu
	if err := j.open(); err != nil {
		socket.Close()
		return nil, err
	}
	joined.Store(true)
	go j.listen()
	go j.answer()
	return j, nil
}

// open greets the node kernel and maps the area.
func (j *Job) open() error {
	_, files, err := j.ask(wire.Request{Op: wire.OpHello, Value: wire.Version}, nil)
	if err != nil {
		return fmt.Errorf("margay: init: %w", err)
	}
	if len(files) != 5 {
		rights.Close(files)
		return fmt.Errorf("margay: init: the node kernel sent %d descriptors", len(files))
	}
	area, board := files[0], files[3]
	defer area.Close()
	defer board.Close()
	j.doorbell, j.upcallDoorbell, j.peerDoorbell = files[1], files[2], files[4]
	if err := j.openMemory(area, board); err != nil {
		rights.Close([]*os.File{j.doorbell, j.upcallDoorbell, j.peerDoorbell})
		return fmt.Errorf("margay: init: %w", err)
	}
	return nil
}

// openMemory maps the area and the board.
func (j *Job) openMemory(area, board *os.File) error {
	var err error
	if j.memory, err = mapFile(area); err != nil {
		return err
	}
	if j.area, j.header, err = wire.OpenArea(j.memory); err != nil {
		return err
	}
	shared, err := mapFile(board)
	if err != nil {
		return err
	}
	if j.board, err = wire.OpenBoard(shared, j.LocalSize()); err != nil {
		return err
	}
	if j.LocalRank() >= j.LocalSize() {
		return fmt.Errorf("local rank %d of %d", j.LocalRank(), j.LocalSize())
	}
	if j.area.Joined().Swap(1) != 0 {
		return ErrJoined
	}
	j.out = wire.NewOutlet(j.area, j.board, j.header)
	j.in = wire.NewInlet(j.area, j.board, j.header)
	j.initMirrors()
	j.remote.passing = make([]int, j.Size())
	j.initBarriers()
	j.world = collective.NewJob(j.Rank(), j.Size(), j.Nodes() == 1)
	j.calls.groups = map[wire.GroupID]*collective.Group{0: j.world}
	j.desk = commit.NewDesk(ownWindows{j}, func(id wire.GroupID) *collective.Group { return j.calls.groups[id] })
	j.peerDoorbells = slices.Repeat([]int{-1}, j.LocalSize())
	return nil
}

// mapFile maps the whole of a file of shared memory.
func mapFile(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return mapBytes(f, int(info.Size()))
}

// mapBytes is mapFile for so many bytes of a file, or of a map of Linux, which has no size.
func mapBytes(f *os.File, size int) ([]byte, error) {
	memory, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	return memory, nil
}

// Number is the job's number in its machine.
func (j *Job) Number() int { return int(j.header.Job) }

// Rank is this process's number in the job, 0 to Size-1.
func (j *Job) Rank() int { return int(j.header.Rank) }

// Size is the number of ranks of the job.
func (j *Job) Size() int { return int(j.header.Size) }

// Node is the number of the node that this rank is on.
func (j *Job) Node() int { return int(j.header.Node) }

// Nodes is the number of nodes of the job.
func (j *Job) Nodes() int { return int(j.header.Nodes) }

// NodeOf is the number of the node that a rank is on.
func (j *Job) NodeOf(rank int) int {
	if rank < 0 || rank >= j.Size() {
		panic(fmt.Sprintf("margay: the job has no rank %d", rank))
	}
	return int(j.area.NodeOf(uint32(rank)))
}

// LocalRank is this process's number among the job's ranks on its node, 0 to LocalSize-1.
func (j *Job) LocalRank() int { return int(j.header.LocalRank) }

// LocalSize is the number of the job's ranks on this node.
func (j *Job) LocalSize() int { return int(j.header.LocalSize) }

// Handle sets the handler for messages of a number, 0 to 255; nil removes it. It fails for any
// other number. A message without a handler panics.
func (j *Job) Handle(number int, f func(Message)) error {
	if err := checkHandler(number); err != nil {
		return err
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	j.handlers[number] = f
	return nil
}

// Poll runs the handlers of all messages that have arrived and returns their number, 0 after
// Finalize. Where ranks share a CPU, it yields to them when it is called again and again in vain.
func (j *Job) Poll() int {
	before, most := j.inVain.Load(), datagramsEach
	if before > 0 {
		most = 1 // a program that has polled in vain polls again
	}
	n, advanced := j.progress(most)
	after, yields := pace.Polled(before, j.area.Path().Load(), n > 0 || advanced)
	j.inVain.Store(after)
	if yields {
		yield()
	}
	return n
}

// progress handles the messages that have come, of at most most datagrams and of the train that
// exceeds them. It returns their number, and whether it has advanced operations or taken parts of
// messages.
func (j *Job) progress(most int) (n int, advanced bool) {
	n, advanced = j.poll(most)
	if n > 0 || advanced {
		j.announce()
	}
	return n, advanced
}

// announce wakes the waiting goroutines after messages have been handled.
func (j *Job) announce() {
	if j.waiters.Load() == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rung++
	j.changed.Broadcast()
}

// poll is progress, but wakes no goroutine. It handles each train before it looks for another:
// Linux takes as long to say that there is none as to copy one. Strangers may have sent some.
func (j *Job) poll(most int) (n int, advanced bool) {
	j.handling.Lock()
	defer j.handling.Unlock()
	if j.finalized.Load() || !j.fetchAll() {
		return 0, false
	}
	for came := 1; came > 0 && most > 0; most -= came {
		var some bool
		came, some = j.receive()
		handled, parts := j.handleAll()
		j.transmitDue() // acknowledgements with the room that the handlers have made
		n += handled
		advanced = advanced || some || parts
	}
	j.stalled.Store(j.in.Stalled())
	advanced = j.advance() || advanced
	return n, j.advanceCalls() || advanced
}

// handleAll runs the handlers of the messages in rings and channels. It returns their number, and
// whether it has taken parts of others. The caller holds Job.handling.
func (j *Job) handleAll() (n int, parts bool) {
	for looks := 0; ; {
		record, ok, err := j.in.Next()
		if errors.Is(err, wire.ErrChannels) && j.fetchAll() {
			continue
		}
		switch whole, some := j.handle(&record, ok, err); {
		case !some:
			return n, parts
		case whole:
			n++
		default:
			parts = true
		}
		if looks++; looks%acknowledgeEach == 0 {
			j.acknowledge()
		}
	}
}

// handle runs the handler of the message that in has returned, if there is one. It reports whether
// that was a whole message, and whether there was one. The caller holds Job.handling.
func (j *Job) handle(r *wire.Record, ok bool, err error) (whole, some bool) {
	if err != nil && !errors.Is(err, wire.ErrChannels) {
		panic(fmt.Sprintf("margay: receive: %v", err)) // a rank has written over shared memory
	}
	if !ok {
		return false, false
	}
	whole = j.dispatch(r)
	// A sender may wait for this message's room.
	if wake := j.in.Done(); wake != wire.WakeNobody {
		j.sending.Lock()
		defer j.sending.Unlock()
		j.wake(wake)
	}
	return whole, true
}

// dispatch calls the handler of a message, and reports false if it is a piece that completes none,
// or was stopped.
// The caller holds Job.handling.
func (j *Job) dispatch(r *wire.Record) (whole bool) {
	var err error
	whole = true
	switch r.Handler {
	case wire.HandlerCollective:
		err = j.collected(r)
	case wire.HandlerRemote:
		err = j.answered(r)
	case wire.HandlerBarrier:
		err = j.noted(r)
	case wire.HandlerPiece:
		whole, err = j.assemble(r)
	case wire.HandlerCommit:
		err = j.committed(r)
	case wire.HandlerStopped:
		whole = false
	default:
		j.run(r)
	}
	if err != nil {
		panic(fmt.Sprintf("margay: rank %d got a message from rank %d: %v", j.Rank(), r.Peer, err))
	}
	return whole
}

// assemble takes a piece of a message. When it is the last one, it runs the message's handler and
// reports true. The caller holds Job.handling.
func (j *Job) assemble(r *wire.Record) (whole bool, err error) {
	p, err := wire.ParsePiece(r.Args, r.Payload, j.Size())
	if err != nil {
		return false, err
	}
	l, err := j.pieces.Arrive(r.Peer, &p)
	if l == nil || err != nil {
		return false, err
	}
	j.run(&wire.Record{Handler: l.Handler, Peer: r.Peer, Node: r.Node, Args: l.Args, Payload: l.Payload})
	return true, nil
}

// noted takes a message of wire.HandlerBarrier. The caller holds Job.handling.
func (j *Job) noted(r *wire.Record) error {
	if j.barriers.exchange == nil {
		return fmt.Errorf("%w: this rank leads no node", wire.ErrNote)
	}
	return j.barriers.exchange.Arrive(r.Peer, r.Args, len(r.Payload))
}

// run runs the application's handler of a message. The caller holds Job.handling.
func (j *Job) run(r *wire.Record) {
	var handler func(Message)
	if int(r.Handler) < len(j.handlers) {
		handler = j.handlers[r.Handler]
	}
	if handler == nil {
		panic(fmt.Sprintf("margay: rank %d got a message for handler %d from rank %d, and has no such handler", j.Rank(), r.Handler, r.Peer))
	}
	handler(Message{
		Source: int(r.Peer), Node: int(r.Node &^ wire.NodeExtension), Handler: int(r.Handler), Args: r.Args, Payload: r.Payload,
		Extension: r.Node&wire.NodeExtension != 0,
	})
}

// WaitFor handles messages until done returns true. It calls done first, and again after any
// goroutine has handled messages, never while a handler runs, so done may read data that handlers
// write. done must not block and must not call functions of this package that handle messages.
func (j *Job) WaitFor(ctx context.Context, done func() bool) error {
	return j.wait(ctx, func(int) bool {
		j.handling.Lock()
		defer j.handling.Unlock()
		return done()
	})
}

// Wait waits until this call has handled messages, and returns their number. Messages handled
// before, in Barrier or Send, or by another goroutine do not count: use WaitFor to wait for a
// certain message.
func (j *Job) Wait(ctx context.Context) (n int, err error) {
	err = j.wait(ctx, func(handled int) bool { n = handled; return n > 0 })
	return n, err
}

// Finalize ends this rank's part in the job: it waits for the other ranks to do the same. After it
// has returned nil, no handler runs, and functions that send, wait or request return ErrClosed. The
// process may continue: the functions that return its place, and mapped memory, work as before. If
// it fails, the job is not finalized; only after the error of a refused put, it is.
func (j *Job) Finalize(ctx context.Context) error {
	if err := j.settleCommits(ctx); err != nil {
		return err
	}
	if err := j.synchronise(ctx); err != nil {
		return err
	}
	j.finalize()
	refused := j.refused()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed == nil {
		j.closed = ErrClosed
		j.doorbell.Close()
		j.peerDoorbell.Close()
		j.stopUpcalls()
		j.changed.Broadcast()
	}
	return refused
}

// finalize waits for the running handler and sender and admits no other.
func (j *Job) finalize() {
	j.handling.Lock()
	defer j.handling.Unlock()
	j.sending.Lock()
	defer j.sending.Unlock()
	j.finalized.Store(true)
	j.closeMirrors()
	for _, fd := range j.peerDoorbells {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// ring wakes the node kernel. A full doorbell needs no further byte.
func (j *Job) ring() {
	raw, err := j.doorbell.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.Send(int(fd), []byte{1}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

// ask makes a request of the node kernel. An idempotent request is repeated if the node kernel was
// restarted before it answered.
func (j *Job) ask(q wire.Request, give *os.File) (wire.Reply, []*os.File, error) {
	j.asking.Lock()
	defer j.asking.Unlock()
	if j.finalized.Load() {
		return wire.Reply{}, nil, ErrClosed
	}
	for {
		reply, files, err := j.askOnce(q, give)
		if err == nil {
			err = failure(reply)
		}
		if reply.Status == wire.StatusAgain && q.Op != wire.OpInsert && q.Op != wire.OpRemove {
			continue
		}
		if err != nil {
			rights.Close(files)
			return reply, nil, err
		}
		return reply, files, nil
	}
}

// askOnce sends a request and waits for its answer. Any other answer is a duplicate from the node
// kernel.
func (j *Job) askOnce(q wire.Request, give *os.File) (wire.Reply, []*os.File, error) {
	j.requests++
	q.Call = j.requests
	packet, err := q.Encode()
	if err != nil {
		return wire.Reply{}, nil, err
	}
	var control []byte
	if give != nil {
		control = rights.Encode(give)
	}
	if _, _, err := j.socket.WriteMsgUnix(packet, control, nil); err != nil {
		return wire.Reply{}, nil, fmt.Errorf("ask the node kernel: %w", err)
	}
	buf := make([]byte, wire.ReplySize)
	oob := make([]byte, rights.Space(8))
	for {
		n, oobn, _, _, err := j.socket.ReadMsgUnix(buf, oob)
		if err != nil {
			return wire.Reply{}, nil, fmt.Errorf("the node kernel's answer: %w", err)
		}
		files, _ := rights.Decode(oob[:oobn], "margay") // Linux has written it
		reply, err := wire.DecodeReply(buf[:n])
		if err == nil && reply.Call == q.Call {
			return reply, files, nil
		}
		rights.Close(files)
		if err != nil {
			return reply, nil, err
		}
	}
}

// failure turns the status of a reply into an error.
func failure(r wire.Reply) error {
	kinds := map[wire.Status]error{
		wire.StatusVersion: ErrVersion, wire.StatusNotFound: ErrNotFound, wire.StatusRefused: ErrRefused, wire.StatusNoRoom: ErrNoRoom,
	}
	switch kind := kinds[r.Status]; {
	case r.Status == wire.StatusOK:
		return nil
	case kind != nil:
		return &refusal{kind, r.Text}
	}
	return errors.New(r.Text)
}

// refusal is an error of the node kernel, with its text, of one of this package's kinds.
type refusal struct {
	kind error
	text string
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.kind }
