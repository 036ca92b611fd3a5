package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/internal/cond"
	"margay/internal/printable"
)

// Bounds of what a connection holds for a peer that is slower than its sender, in bytes.
const (
	queueLimit = 64 << 20 // more than this ends the connection
	bulkLimit  = 1 << 20  // SendBulk and Drained wait while more than this is queued
)

// readAhead is how much a connection reads at once, in bytes: the largest record of TLS. serve has
// a connection for each node.
const readAhead = 16 << 10

// ErrClosed reports that a connection has ended.
var ErrClosed = errors.New("control connection closed")

// errStreams reports a message on a connection that has become a plain stream.
var errStreams = errors.New("control: the connection is a plain stream")

// maxProgram is how much of what a program calls itself is taken, in bytes.
const maxProgram = 200

// HelloTimeout bounds how long either side waits for the other's first frame.
const HelloTimeout = 10 * time.Second

// SpoolLimit bounds the output of one detached job, in bytes. Serve discards output beyond it, or
// beyond the limit of a user's outputs, and margay logs reports that.
const SpoolLimit = 256 << 20

// ChangeTimeout bounds how long a node takes to change its extensions. Before a node with sched_ext
// has a scheduler, Linux verifies it, which takes an emulated node on a busy host many seconds.
const ChangeTimeout = time.Minute

// KernelLogWait bounds how long a node waits for a record of its kernel's log.
const KernelLogWait = 5 * time.Second

// MaxFirmwareLog bounds the text of a FirmwareLog, in bytes.
const MaxFirmwareLog = 512 << 10

// Conn is one connection. It is safe for concurrent use; Serve must run for answers to arrive.
type Conn struct {
	net  net.Conn
	in   *bufio.Reader
	tame func(proto.Message) // what arrives goes through it; nil: it is trusted
	room Room                // for frames that arrive; nil: as much as they need

	mu      sync.Mutex
	changed sync.Cond
	queue   [][]byte                // encoded frames that wait to be written
	queued  int                     // bytes in queue
	err     error                   // why the connection ended
	streams bool                    // Stream was called
	calls   map[uint64]func(*Frame) // what takes the answers; Serve calls them
	lastID  uint64

	done    chan struct{}
	writers sync.WaitGroup // the writer, and the goroutine that closes net
}

// NewConn makes a connection of an established stream, whose opening conversation has not been
// held.
func NewConn(c net.Conn) *Conn {
	conn := &Conn{net: c, in: bufio.NewReaderSize(c, readAhead), calls: make(map[uint64]func(*Frame)), done: make(chan struct{})}
	conn.changed.L = &conn.mu
	conn.writers.Go(conn.write)
	return conn
}

// Greet opens a conversation as the side that connected. A refusal of the other side is returned as
// a *Failure.
func (c *Conn) Greet(hello *Hello) (*Welcome, error) {
	if hello.Version == 0 {
		hello.Version = Version
	}
	if err := c.Send(hello); err != nil {
		return nil, err
	}
	f, err := c.first()
	if err != nil {
		return nil, err
	}
	switch m := f.Message().(type) {
	case *Welcome:
		return m, nil
	case *Error:
		return nil, m.Err()
	}
	return nil, fmt.Errorf("control: %s answered Hello with %T", c.net.RemoteAddr(), f.Message())
}

// Meet opens a conversation as the side that was connected to: it waits for the other's Hello and
// checks its version. The caller answers with a Welcome, or with Refuse.
func (c *Conn) Meet() (*Hello, error) {
	f, err := c.first()
	if err != nil {
		return nil, err
	}
	hello, ok := f.Message().(*Hello)
	if !ok {
		return nil, fmt.Errorf("control: conversation begins with %T, not Hello", f.Message())
	}
	hello.Program = printable.Short(hello.Program, maxProgram)
	if hello.Version != Version {
		return hello, Failf(Code_CODE_VERSION, "%s speaks version %d of the control protocol, this machine's serve speaks version %d: "+
			"use the margay and the node image of one build", hello.Program, hello.Version, Version)
	}
	return hello, nil
}

// first reads the one frame of the other side's opening.
func (c *Conn) first() (*Frame, error) {
	c.net.SetReadDeadline(time.Now().Add(HelloTimeout))
	defer c.net.SetReadDeadline(time.Time{})
	f, err := readFrame(c.in, maxOpening)
	if err != nil {
		c.fail(err)
		return nil, fmt.Errorf("control: opening: %w", err)
	}
	return f, nil
}

// Refuse sends the reason of a refusal to the other side, and then ends the connection.
func (c *Conn) Refuse(err error) {
	_ = c.Send(FromError(err))
	c.Flush(time.Second)
	c.fail(err)
}

// Dismiss sends the reason of the end to the other side, and ends the connection when the other
// side has, or after a second: closing while the other side writes could discard data that it has
// not read. Serve must run. A connection that has become a plain stream is only closed.
func (c *Conn) Dismiss(err error) {
	if c.Send(FromError(err)) == nil {
		select {
		case <-c.done:
		case <-time.After(time.Second):
		}
	}
	c.Close()
}

// Distrust has everything that arrives go through Tame from now on. It is called before Serve.
func (c *Conn) Distrust() { c.tame = Tame }

// Room is the memory for the frames that some connections receive. Enter waits until there is room
// for a frame of a number of bytes, and Leave ends what it began. An error of Enter ends the
// connection.
type Room interface {
	Enter(bytes int) error
	Leave(bytes int)
}

// Within has each frame that arrives enter room before it is read, and leave it when it is handled.
// It also bounds the memory of a frame by its length: one that would take more is not decoded and
// ends the connection. It is called before Serve.
func (c *Conn) Within(room Room) { c.room = room }

// Serve reads frames until the connection ends and returns the reason, which Dismiss on the other
// side sends as an error outside any answer. Answers go to the waiting callers; every other frame
// goes to handle, one at a time, in order.
func (c *Conn) Serve(handle func(*Frame)) error {
	for {
		if err := c.serveOne(handle); err != nil {
			if err == io.EOF {
				err = ErrClosed
			}
			c.fail(err)
			return err
		}
	}
}

// serveOne is Serve for one frame.
func (c *Conn) serveOne(handle func(*Frame)) error {
	n, err := readLength(c.in, MaxFrame)
	if err != nil {
		return err
	}
	memory := unlimited
	if c.room != nil {
		if err := c.room.Enter(int(n)); err != nil {
			return err
		}
		defer c.room.Leave(int(n))
		memory = spreadBase + spread*int(n)
	}
	f, err := readBody(c.in, n, memory)
	if err != nil {
		return err
	}
	if c.tame != nil {
		c.tame(f)
	}
	if e := f.GetError(); e != nil && f.Answer == 0 {
		return e.Err()
	}
	if f.Answer == 0 {
		handle(f)
		return nil
	}
	c.mu.Lock()
	take := c.calls[f.Answer]
	delete(c.calls, f.Answer)
	c.mu.Unlock()
	if take != nil {
		take(f)
	}
	return nil
}

// Send queues a message. It never waits; a peer that lets too much pile up loses the connection.
func (c *Conn) Send(body proto.Message) error { return c.send(NewFrame(body)) }

// SendBulk is Send for a stream of bulk data: it first waits until little is queued.
func (c *Conn) SendBulk(ctx context.Context, body proto.Message) error {
	if err := c.Drained(ctx); err != nil {
		return err
	}
	return c.Send(body)
}

// Drained waits until little is queued, or until the connection has ended.
func (c *Conn) Drained(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cond.Wait(ctx, &c.changed, func() bool { return c.queued <= bulkLimit || c.err != nil })
}

// Queued returns how many bytes wait to be written.
func (c *Conn) Queued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queued
}

// Call sends a request and waits for its answer. An answer that is an Error is returned as a
// *Failure.
func (c *Conn) Call(ctx context.Context, body proto.Message) (proto.Message, error) {
	return c.Ask(body).Answer(ctx)
}

// Question is a request that has been sent. Its answer must be waited for, once.
type Question struct {
	conn  *Conn
	id    uint64
	reply chan *Frame
	err   error // it could not be sent
}

// Ask sends a request. It never waits, so a caller that holds a lock determines the order of
// requests.
func (c *Conn) Ask(body proto.Message) *Question {
	q := &Question{conn: c, reply: make(chan *Frame, 1)}
	q.id, q.err = c.ask(body, func(f *Frame) { q.reply <- f })
	return q
}

// AskThen is Ask for a caller that must have the answer before the frames after it. Serve calls
// then, which must not wait, with the answer or, for an Error, a *Failure; it does not if the
// connection ends first. AskThen returns the number of the request.
func (c *Conn) AskThen(body proto.Message, then func(proto.Message, error)) (call uint64, err error) {
	return c.ask(body, func(f *Frame) { then(f.answer()) })
}

func (c *Conn) ask(body proto.Message, take func(*Frame)) (uint64, error) {
	f := NewFrame(body)
	c.mu.Lock()
	c.lastID++
	f.Call = c.lastID
	c.calls[f.Call] = take
	c.mu.Unlock()
	err := c.send(f)
	if err != nil {
		c.mu.Lock()
		delete(c.calls, f.Call)
		c.mu.Unlock()
	}
	return f.Call, err
}

// answer returns what an answer says.
func (f *Frame) answer() (proto.Message, error) {
	m := f.Message()
	if e, ok := m.(*Error); ok {
		return nil, e.Err()
	}
	return m, nil
}

// Answer waits for the answer, as Call does.
func (q *Question) Answer(ctx context.Context) (proto.Message, error) {
	c := q.conn
	defer func() {
		c.mu.Lock()
		delete(c.calls, q.id)
		c.mu.Unlock()
	}()
	if q.err != nil {
		return nil, q.err
	}
	var answer *Frame
	select {
	case answer = <-q.reply:
	case <-c.done:
		select {
		case answer = <-q.reply: // it came just before the end
		default:
			return nil, c.Err()
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return answer.answer()
}

// Answer answers a request, with err when that is not nil, and with an error when a frame cannot
// carry the answer. It does nothing for a frame that wants no answer.
func (c *Conn) Answer(request *Frame, body proto.Message, err error) {
	if request.Call == 0 {
		return
	}
	if err != nil {
		body = FromError(err)
	}
	f := NewFrame(body)
	f.Answer = request.Call
	var unfit *unfitError
	if err := c.send(f); errors.As(err, &unfit) {
		f = NewFrame(FromError(fmt.Errorf("the answer, %s, cannot be sent: %w", strings.TrimPrefix(fmt.Sprintf("%T", body), "*control."), err)))
		f.Answer = request.Call
		_ = c.send(f)
	}
	// A connection that has ended needs no answer.
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended, nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Flush waits until everything queued is written, at most for the given time.
func (c *Conn) Flush(wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = cond.Wait(ctx, &c.changed, func() bool { return c.queued == 0 || c.err != nil })
}

// Close ends the connection at once and waits for its writer, and for its stream to be closed.
func (c *Conn) Close() {
	c.fail(ErrClosed)
	c.writers.Wait()
}

// Stream makes a connection whose opening conversation is over a plain stream, after the queue has
// been written. Serve must not have been called, and no message can be sent any more. Closing
// the stream closes the connection.
func (c *Conn) Stream() net.Conn {
	c.mu.Lock()
	c.streams = true
	c.mu.Unlock()
	c.Flush(HelloTimeout)
	return plain{c.net, c}
}

// plain is a connection after Stream.
type plain struct {
	net.Conn
	conn *Conn
}

func (p plain) Read(b []byte) (int, error) { return p.conn.in.Read(b) }

func (p plain) Close() error {
	p.conn.Close()
	return nil
}

// NetConn returns the underlying stream, which identifies the peer.
func (c *Conn) NetConn() net.Conn { return c.net }

func (c *Conn) send(f *Frame) error {
	packet, err := encode(f)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if c.streams {
		return errStreams
	}
	if c.queued+len(packet) > queueLimit {
		c.failLocked(fmt.Errorf("control: the other side lets more than %d bytes pile up", queueLimit))
		return c.err
	}
	c.queue = append(c.queue, packet)
	c.queued += len(packet)
	c.changed.Broadcast()
	return nil
}

// write writes the queued frames, as many as possible at once.
func (c *Conn) write() {
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && c.err == nil {
			c.changed.Wait()
		}
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		batch := net.Buffers(c.queue)
		size := c.queued
		c.queue = nil
		c.mu.Unlock()
		_, err := batch.WriteTo(c.net)
		c.mu.Lock()
		c.queued -= size
		c.changed.Broadcast()
		if err != nil {
			c.failLocked(fmt.Errorf("control: write: %w", err))
		}
		c.mu.Unlock()
	}
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// failLocked ends the connection. Only Close waits until its stream is closed: TLS sends a closing
// alert first, which takes seconds if the other side does not read.
func (c *Conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.writers.Go(func() { c.net.Close() })
	close(c.done)
	c.changed.Broadcast()
}
