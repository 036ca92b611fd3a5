package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/cgroup"
	"margay/kernel/keep"
	"margay/kernel/link"
	"margay/kernel/task/outbox"
)

// ErrGone reports that the job's init has ended, and with it everything of the job on this node.
var ErrGone = errors.New("the job's init has ended")

// endWait bounds how long End waits before it takes stronger means.
const endWait = 5 * time.Second

// sendWait bounds how long a message to a job's init waits for room, unless its sender has a bound
// of its own.
const sendWait = 20 * time.Second

// Host is what a node offers for its jobs.
type Host struct {
	JobInit []string     // command that becomes a job init; further arguments are WithGroup and Ahead
	Cgroups *cgroup.Tree // nil where no control groups can be had
	UserNS  bool         // this node has a single user id: each job gets a user namespace to have another
	User    func() int   // chooses the user id of a job whose init is started ahead, where there is UserNS
	Log     func(format string, args ...any)
}

// Handler receives the events of a job. Its methods are called one at a time and must not block for
// long, because they delay the job's output.
type Handler interface {
	// Started reports a running rank: after its start, and after an adoption. A Record reports its
	// end.
	Started(RankProcess)
	// Record hands over the next record. It may repeat records that have not been acknowledged.
	Record(Record)
	// Content hands over a file that the job has brought, open for reading, and the digest that it
	// should have. The file is the handler's; the job may still write to it.
	Content(digest archive.Digest, f *os.File)
	// InputTaken reports how many bytes of its standard input a rank has taken.
	InputTaken(rank id.Rank, position uint64)
	// Exchange hands over a message of package pmi for the init of the job on another node, which
	// may be lost.
	Exchange(place int, data []byte)
	// Gone reports the end of the job's init. It is the last call.
	Gone()
}

// Container is the node kernel's handle on a job's processes on this node. It is safe for
// concurrent use.
type Container struct {
	spec Spec
	host Host
	conn *link.Conn     // messages to the init pass out
	out  *outbox.Outbox // of conn
	pid  int            // of the job init, in this node's PID namespace

	group string       // name of the job's control group, where there are control groups
	init  *initProcess // the init; nil: an earlier node kernel has started it
	pool  *Pool        // that is notified of the launch; nil: none

	adopted State // what the init said when it was adopted

	share *link.Conn // to the relay of its shared folders; nil: it has none

	unkept Unkept // set before gone is closed

	mu       sync.Mutex
	reason   error // why giveUp has killed the init
	network  bool  // the network namespace was opened: it may have got devices
	reset    bool  // the init was asked to wait for another job
	left     bool  // and does
	launched bool  // the pool knows that the launch is over
	over     bool  // the pool knows that the job is over

	replies chan link.Message // answers to requests
	asking  sync.Mutex        // one request at a time
	gone    chan struct{}     // closed when the init has ended, or has left the job
}

// notes are the words that are kept with a job's link for the next node kernel.
type notes struct {
	Job   id.Job
	PID   int
	Group string
}

// newJob makes a fresh init for a job, which spawn starts, and its empty root, in a control group
// of the given name. On an error nothing is left.
func newJob(ctx context.Context, host Host, spec Spec, h Handler, group string, spawn func(group string, user int) (*initProcess, error)) (*Container, error) {
	if host.Cgroups != nil {
		if _, err := host.Cgroups.Create(group, spec.limits()); err != nil {
			return nil, err
		}
	}
	p, err := spawn(group, spec.UID)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("task: job %d: %w", spec.Job, err), host.removeGroup(group))
	}
	c := newContainer(host, spec, p)
	go c.listen(h)
	if err := c.create(ctx); err != nil {
		c.End()
		return nil, err
	}
	return c, nil
}

func newContainer(host Host, spec Spec, p *initProcess) *Container {
	c := &Container{
		spec: spec, host: host, conn: p.conn, pid: p.process.Pid, group: p.group, init: p,
		replies: make(chan link.Message, 1), gone: make(chan struct{}),
	}
	c.openOutbox()
	return c
}

// create makes the init build the job's root.
func (c *Container) create(ctx context.Context) error {
	m, packed, err := c.spec.pack()
	if err != nil {
		return fmt.Errorf("task: job %d: %w", c.spec.Job, err)
	}
	if err := c.describe(ctx, packed); err != nil {
		return c.failed(ctx, Create, err)
	}
	return c.ask(ctx, m)
}

// describe sends the strings of the ranks, in pieces. They are not kept here.
func (c *Container) describe(ctx context.Context, packed []byte) error {
	c.spec.Exec = Exec{}
	for piece := range slices.Chunk(packed, link.MaxPayload) {
		if err := c.out.Send(ctx, link.Message{Kind: Strings, Payload: piece}); err != nil {
			return err
		}
	}
	return nil
}

// Adopt takes over the init of a job that an earlier node kernel made, from what Kept gave. It also
// returns what the init keeps. The container is dead until Follow.
func Adopt(ctx context.Context, host Host, item *keep.Item) (*Container, []*keep.Item, error) {
	var n notes
	if err := json.Unmarshal(item.Words, &n); err != nil {
		return nil, nil, fmt.Errorf("task: notes of kept link %s: %w", item.Name, err)
	}
	if len(item.Files) != 1 {
		return nil, nil, fmt.Errorf("task: kept link %s has %d descriptors, not one", item.Name, len(item.Files))
	}
	conn, err := link.NewConn(item.Files[0])
	if err != nil {
		return nil, nil, err
	}
	c := &Container{host: host, conn: conn, pid: n.PID, group: n.Group, replies: make(chan link.Message, 1), gone: make(chan struct{})}
	items, err := c.resync(ctx)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("task: adopt job %d: %w", n.Job, err)
	}
	c.openOutbox()
	if items, err = c.adoptShare(items); err != nil {
		c.host.Log("job %d: its shared folders are lost: %v", n.Job, err)
	}
	return c, items, nil
}

// inputWindow is the most standard input that is under way to a rank, in bytes.
const inputWindow = 256 << 10

// openOutbox gives the container what its messages to the init pass. It has room for all standard
// input that may be under way.
func (c *Container) openOutbox() {
	l := outbox.Default
	for _, r := range c.spec.Ranks {
		if r.Stdin {
			l.Bytes += inputWindow
		}
	}
	c.out = outbox.New(c.conn, l, c.giveUp)
}

// giveUp kills an init that does not take its messages.
func (c *Container) giveUp(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.gone:
		return
	default:
	}
	if c.reason == nil && !c.left {
		c.reason = reason
		c.host.Log("job %d: killing its init %d: %v", c.spec.Job, c.pid, reason)
		_ = unix.Kill(c.pid, unix.SIGKILL) // it may have ended a moment ago
	}
}

// Follow starts an adopted container: h then receives its events. It must be called once.
func (c *Container) Follow(h Handler) { go c.listen(h) }

// Exchange passes a message of package pmi from another node's init to this one. It never waits:
// when too much waits for the init already, the message is lost.
func (c *Container) Exchange(place int, data []byte) {
	m := link.New(Exchange, ExchangeBody{Place: place})
	m.Payload = data
	_ = c.out.Offer(m)
}

// NetworkNamespace opens the job's network namespace.
func (c *Container) NetworkNamespace() (*os.File, error) {
	c.mu.Lock()
	c.network = true
	c.mu.Unlock()
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", c.pid))
	if err != nil {
		return nil, fmt.Errorf("task: network namespace of job %d: %w", c.spec.Job, err)
	}
	select {
	case <-c.gone: // the number may be another process's
		f.Close()
		return nil, fmt.Errorf("task: network namespace of job %d: %w", c.spec.Job, ErrGone)
	default:
		return f, nil
	}
}

// resync reads the init's state for a new node kernel. Messages that the old one had not read come
// first and are skipped, because the init sends them again.
func (c *Container) resync(ctx context.Context) ([]*keep.Item, error) {
	defer c.bound(ctx)()
	sent := make(chan error, 1)
	go func() { sent <- c.conn.Send(link.New(Resync, nil)) }() // the old answers may fill the socket
	var items []*keep.Item
	for {
		m, err := c.conn.Recv()
		if err != nil {
			return nil, err
		}
		if m.Kind == Resync {
			var state State
			err := errors.Join(m.Decode(&state), <-sent)
			c.spec, c.adopted = state.Spec, state
			return items, err
		}
		item, _, err := keep.Replayed(m)
		switch {
		case err != nil:
			return nil, err
		case item != nil:
			items = append(items, item)
		default:
			m.CloseFiles()
		}
	}
}

// Kept is what PID 1 should keep of this container, for Adopt. Its file is the caller's to close.
func (c *Container) Kept(name string) (keep.Item, error) {
	words, err := json.Marshal(notes{Job: c.spec.Job, PID: c.pid, Group: c.group})
	if err != nil {
		return keep.Item{}, err
	}
	dup, err := c.conn.Dup()
	if err != nil {
		return keep.Item{}, err
	}
	return keep.Item{Name: name, Words: words, Files: []*os.File{dup}}, nil
}

// Spec returns what the container was made from, but for its Exec.
func (c *Container) Spec() Spec { return c.spec }

// Adopted returns the state that an adopted container was found in.
func (c *Container) Adopted() State { return c.adopted }

// Keep leaves an item with the job's init, for ranks to inherit and for the next node kernel to
// find.
func (c *Container) Keep(item keep.Item) error { return keep.Keep(sender{c}, item) }

// Drop makes the job's init forget an item.
func (c *Container) Drop(name string) error { return keep.Drop(sender{c}, name) }

// sender sends the messages that must be in the socket when they are sent, so that they outlive the
// node kernel.
type sender struct{ *Container }

func (s sender) Send(m link.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), sendWait)
	defer cancel()
	return s.out.Send(ctx, m)
}

// put sends a message without waiting. An init that lets too many of them wait is killed, because
// none may be lost.
func (c *Container) put(m link.Message) error { return c.orGiveUp(c.out.Put(m)) }

// orGiveUp gives the init up if it has not taken messages for so long that there is no room.
func (c *Container) orGiveUp(err error) error {
	if errors.Is(err, outbox.ErrFull) {
		c.giveUp(err)
	}
	return err
}

// Give passes files to the init that the job's archive names by their digests alone, before Unpack.
// The files are open for reading and stay the caller's. They are in folder, unless that is empty.
func (c *Container) Give(folder string, digests []archive.Digest, files []*os.File) error {
	for len(files) > 0 {
		n := min(len(files), link.MaxFiles)
		m := link.New(Contents, ContentsBody{digests[:n], folder})
		m.Files = files[:n]
		if err := (sender{c}).Send(m); err != nil {
			return c.lost(Contents, err)
		}
		digests, files = digests[n:], files[n:]
	}
	return nil
}

// pieces are buffers for pieces of archives. A small job has one small piece.
var pieces = sync.Pool{New: func() any { return new([link.MaxPayload]byte) }}

// Unpack has the archive that r gives unpacked into the job's root.
func (c *Container) Unpack(ctx context.Context, r io.Reader) error {
	buf := pieces.Get().(*[link.MaxPayload]byte)
	defer pieces.Put(buf)
	for {
		n, err := io.ReadFull(r, buf[:])
		if n > 0 {
			if err := c.out.Send(ctx, link.Message{Kind: Unpack, Payload: buf[:n]}); err != nil {
				return c.failed(ctx, Unpack, err)
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return c.ask(ctx, link.New(Unpacked, nil))
		}
		if err != nil {
			return fmt.Errorf("task: read files of job %d: %w", c.spec.Job, err)
		}
	}
}

// Start runs the job's ranks.
func (c *Container) Start(ctx context.Context) error {
	err := c.ask(ctx, link.New(Start, nil))
	if err == nil {
		c.reportLaunch()
	}
	return err
}

// Signal sends sig to the process group of one rank, or of AllRanks.
func (c *Container) Signal(rank int, sig unix.Signal) error {
	return c.put(link.New(Signal, SignalBody{Rank: rank, Signal: sig}))
}

// Resize gives the terminal of the job another size, if it has one.
func (c *Container) Resize(size Size) error { return c.put(link.New(Resize, size)) }

// Input gives a rank a piece of its standard input; offset counts the bytes before it. The handler
// receives the position that the rank has taken, and a piece must end less than 256 KiB after that.
func (c *Container) Input(rank id.Rank, offset uint64, data []byte, eof bool) error {
	for {
		piece := data[:min(len(data), link.MaxPayload)]
		data = data[len(piece):]
		m := link.New(Input, InputBody{Rank: rank, Offset: offset, EOF: eof && len(data) == 0})
		m.Payload = piece
		if err := c.put(m); err != nil {
			return err
		}
		offset += uint64(len(piece))
		if len(data) == 0 {
			return nil
		}
	}
}

// Ack lets the init forget the records up to seq.
func (c *Container) Ack(seq uint64) error {
	return c.orGiveUp(c.out.PutNewest(link.New(Ack, AckBody{Seq: seq})))
}

// Finish ends the processes that the ranks have left behind, once all ranks have ended here. The
// last record follows, if it has not been sent.
func (c *Container) Finish() error { return c.put(link.New(Finish, nil)) }

// Rewind resends every unacknowledged record and all input positions.
func (c *Container) Rewind() error { return c.put(link.New(Rewind, nil)) }

// Collect ends all processes of the job and has the archive of the files that they have written at
// the paths (package archive) written to a pipe, which stays the caller's. The reader sees its end
// when the init is done, or has ended. A later call begins again; the archive is the same.
func (c *Container) Collect(ctx context.Context, paths [][]byte, pipe *os.File) error {
	m := link.New(Collect, CollectBody{paths})
	m.Files = []*os.File{pipe}
	return c.ask(ctx, m)
}

// Stacks has the stacks of ranks written to a pipe, which stays the
// caller's: a stack.Report in JSON. The reader sees its end when the init is done, or has ended.
func (c *Container) Stacks(ctx context.Context, body StacksBody, pipe *os.File) error {
	m := link.New(Stacks, body)
	m.Files = []*os.File{pipe}
	return c.ask(ctx, m)
}

// Debug gives the init a stream of a debugger (package gdb) of a rank. It stays the caller's.
func (c *Container) Debug(ctx context.Context, rank id.Rank, stream *os.File) error {
	m := link.New(Debug, DebugBody{rank})
	m.Files = []*os.File{stream}
	return c.ask(ctx, m)
}

// Unkept returns the files that have vanished with the job. It may be called after End.
func (c *Container) Unkept() Unkept { return c.unkept }

// Done is closed when the job's init has ended.
func (c *Container) Done() <-chan struct{} { return c.gone }

// Why returns the reason why the job's init has ended without a request to end. It may be called
// by a handler's Gone, and after it.
func (c *Container) Why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return fmt.Errorf("the job's init on this node was killed: %w: %w", c.reason, ErrGone)
	}
	return fmt.Errorf("the job's processes were ended from outside: %w", ErrGone)
}

// End kills everything of the job on this node and waits until it is gone.
func (c *Container) End() error {
	defer func() {
		if !c.waits() { // else Release does
			c.reportEnd(nil)
		}
	}()
	// An init that does not listen any more is killed below.
	_ = c.out.Last(link.New(c.lastRequest(), nil))
	select {
	case <-c.gone:
	case <-time.After(endWait):
		c.host.Log("job %d: init %d does not end, killing it", c.spec.Job, c.pid)
		if err := c.kill(); err != nil {
			return err
		}
		<-c.gone
	}
	if c.waits() {
		return nil
	}
	return c.host.removeGroup(c.group)
}

// Release gives the init back to the pool that the container comes from, if the init waits for
// another job. It must follow End when nothing that is of the job refers to the init any more: what
// Kept gave must be dropped, and its control group must not be used.
func (c *Container) Release() {
	if c.waits() {
		c.reportEnd(c.init)
	}
}

// lastRequest chooses how the init ends the job. One from a pool may wait for another job.
func (c *Container) lastRequest() string {
	takes := c.init != nil && c.pool.takes() && c.outOfMemory() == ""
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset = takes && !c.network
	if c.reset {
		return Reset
	}
	return Quit
}

// waits reports whether the init waits for another job.
func (c *Container) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// kill kills the init, unless that has left the job.
func (c *Container) kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return nil
	}
	if err := unix.Kill(c.pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return fmt.Errorf("task: kill init of job %d: %w", c.spec.Job, err)
	}
	return nil
}

// listen reads what the init says and ends when the init does, or has left the job.
func (c *Container) listen(h Handler) {
	defer func() {
		if !c.waits() {
			c.conn.Close()
		}
		c.closeShare()
		close(c.gone)
		h.Gone()
	}()
	for {
		m, err := c.conn.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.host.Log("job %d: %v", c.spec.Job, err)
			}
			return
		}
		if m.Kind == Staged && c.leave() {
			return
		}
		if err := c.dispatch(m, h); err != nil {
			c.host.Log("job %d: %v", c.spec.Job, err)
		}
	}
}

// leave notes that the init has left the job, if it was asked to.
func (c *Container) leave() bool {
	c.mu.Lock()
	reset := c.reset && c.reason == nil
	c.left = reset
	c.mu.Unlock()
	if reset {
		c.out.Leave()
	}
	return reset
}

func (c *Container) dispatch(m link.Message, h Handler) error {
	switch m.Kind {
	case Process:
		p, err := c.rankProcess(m)
		if errors.Is(err, errEnded) {
			return nil // its record says the rest
		}
		if err != nil {
			return err
		}
		h.Started(p)
	case Output:
		var r Record
		if err := m.Decode(&r); err != nil {
			return err
		}
		r.Data = m.Payload
		if r.Stream == Exit {
			c.explain(&r.Status)
		}
		h.Record(r)
	case Content:
		var b ContentsBody
		if err := m.Decode(&b); err != nil {
			m.CloseFiles()
			return err
		}
		if len(b.Digests) != 1 || len(m.Files) != 1 {
			m.CloseFiles()
			return fmt.Errorf("%q with %d digests and %d files", m.Kind, len(b.Digests), len(m.Files))
		}
		h.Content(b.Digests[0], m.Files[0])
	case Exchange:
		var b ExchangeBody
		if err := m.Decode(&b); err != nil {
			return err
		}
		h.Exchange(b.Place, m.Payload)
	case Left:
		return m.Decode(&c.unkept)
	case Input:
		var b InputBody
		if err := m.Decode(&b); err != nil {
			return err
		}
		h.InputTaken(b.Rank, b.Offset)
	default:
		select {
		case c.replies <- m:
		default:
			return fmt.Errorf("unexpected answer %q", m.Kind)
		}
	}
	return nil
}

// explain adds what only the node knows about the end of a rank.
func (c *Container) explain(s *Status) {
	if s.Signal == unix.SIGKILL {
		s.Reason = c.outOfMemory()
	}
}

// outOfMemory says for people that memory was the reason why something of the job was killed,
// nothing if it was not.
func (c *Container) outOfMemory() string {
	if c.host.Cgroups == nil || c.host.Cgroups.Job(c.group).OOMKills() == 0 {
		return ""
	}
	return fmt.Sprintf("out of memory (the job's limit on this node is %d MiB)", c.spec.Memory>>20)
}

// lost explains an error of the link by the end of the init, if that is the reason.
func (c *Container) lost(op string, err error) error {
	select {
	case <-c.gone:
	case <-time.After(endWait / 5):
		return err
	}
	if reason := c.outOfMemory(); reason != "" {
		return fmt.Errorf("task: %s: %w: %s", op, ErrGone, reason)
	}
	return fmt.Errorf("task: %s: %w", op, ErrGone)
}

// ask sends a request and waits for its answer.
func (c *Container) ask(ctx context.Context, m link.Message) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	select {
	case <-c.replies: // to a request whose time was over, or an error of a message that is not answered
	default:
	}
	if err := c.out.Send(ctx, m); err != nil {
		return c.failed(ctx, m.Kind, err)
	}
	select {
	case reply := <-c.replies:
		return answered(m.Kind, reply)
	case <-c.gone:
		return c.lost(m.Kind, ErrGone)
	case <-ctx.Done():
		return c.failed(ctx, m.Kind, context.Cause(ctx))
	}
}

// answered returns the error in the answer to a request.
func answered(kind string, reply link.Message) error {
	if reply.Kind == Failed {
		e := new(StartError)
		if err := reply.Decode(e); err != nil {
			return err
		}
		return e
	}
	if reply.Kind != kind {
		return fmt.Errorf("task: %q was answered by %q", kind, reply.Kind)
	}
	return nil
}

// failed explains an error of a request by the end of ctx, or by the end of the init.
func (c *Container) failed(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("task: %s of job %d: %w", op, c.spec.Job, context.Cause(ctx))
	}
	return c.lost(op, err)
}

// bound applies ctx to reads of the link until the returned function is called.
func (c *Container) bound(ctx context.Context) func() {
	set := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		c.conn.SetReadDeadline(time.Unix(1, 0))
		close(set)
	})
	return func() {
		if !stop() {
			<-set
		}
		c.conn.SetReadDeadline(time.Time{})
	}
}
