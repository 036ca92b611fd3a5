package tcp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"margay/internal/cond"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
)

// queueBytes is how much may be queued for one node before Send waits.
const queueBytes = 1 << 20

// buffered is how much is read and written at once, in bytes: the largest record of TLS. A node may
// have a connection to many others, and each end has both buffers.
const buffered = 16 << 10

// writeTimeout bounds one write to a node. A node that takes nothing for so long is as good as
// gone.
const writeTimeout = 10 * time.Second

// The pause between two attempts to connect, and the time after which the queued frames are
// discarded. One attempt may take openTimeout where both nodes are busy.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
	giveUp     = 3 * openTimeout
)

// lastWord bounds how long the accepting side waits for the last word of an opening. The other side
// decides within openTimeout. Frames behind a word that came too late would be lost.
const lastWord = 2 * openTimeout

// peer is another node: its connection, if any, and the frames queued for it.
type peer struct {
	transport *Transport
	node      id.Node

	mu         sync.Mutex
	changed    sync.Cond
	address    string
	conn       net.Conn // for frames; nil when not connected
	connecting bool     // connect runs
	dialing    bool     // this side is opening a connection now
	accepting  int      // connections of the other side that wait for its last word
	opens      int      // streams of the other side, and connections that it opens
	closed     bool
	queues     [fabric.Classes][][]byte
	queued     int // bytes

	serving sync.Mutex // held while the handler is called about this node; taken before mu
}

func newPeer(t *Transport, node id.Node) *peer {
	p := &peer{transport: t, node: node}
	p.changed.L = &p.mu
	return p
}

func (p *peer) send(ctx context.Context, class fabric.Class, frame []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := cond.Wait(ctx, &p.changed, func() bool { return class != fabric.User || p.queued <= queueBytes || p.closed })
	switch {
	case p.closed:
		return fabric.ErrClosed
	case err != nil:
		return err
	case p.address == "" && p.conn == nil:
		return fmt.Errorf("%w %d", fabric.ErrUnknownNode, p.node)
	}
	if class == fabric.Prompt {
		class = fabric.User
	}
	p.queues[class] = append(p.queues[class], frame)
	p.queued += len(frame)
	if p.conn == nil && !p.connecting {
		p.connecting = true
		p.transport.running.Go(p.connect)
	}
	p.changed.Broadcast()
	return nil
}

// enter counts a connection that the other side opens. It reports false when there are too many.
func (p *peer) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opens >= opensEach {
		return false
	}
	p.opens++
	return true
}

// leave removes a connection from the count.
func (p *peer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opens--
}

// connect opens the connection for frames, unless the other side is first, and tries again while
// something is queued.
func (p *peer) connect() {
	deadline := time.Now().Add(giveUp)
	for retry := firstRetry; p.begin(); retry = min(2*retry, lastRetry) {
		err := p.dial()
		if err == nil {
			continue
		}
		if time.Now().After(deadline) {
			p.abandon(err)
			return
		}
		select {
		case <-time.After(retry):
		case <-p.transport.context.Done():
			return
		}
	}
}

// begin reports whether a connection is still to be opened. It waits while one that the other side
// has opened may yet be had.
func (p *peer) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.accepting > 0 && !p.closed {
		p.changed.Wait()
	}
	p.connecting = p.conn == nil && !p.closed && !p.empty()
	p.dialing = p.connecting
	return p.connecting
}

// errNotNow reports that the other side is opening a connection, which counts.
var errNotNow = errors.New("the other node is connecting to this one")

// dial opens one connection and uses it, if the other side agrees and has not been faster.
func (p *peer) dial() error {
	ctx, cancel := context.WithTimeout(p.transport.context, openTimeout)
	defer cancel()
	conn, err := p.transport.open(ctx, p, "frames", "-")
	if err == nil {
		err = p.agree(conn)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing = false
	switch {
	case conn == nil:
		return err
	case err != nil || p.conn != nil || p.accepting > 0:
		conn.Close()
		return err
	}
	conn.SetDeadline(time.Now().Add(openTimeout))
	if _, err := conn.Write([]byte{'y'}); err != nil {
		conn.Close()
		return err
	}
	conn.SetDeadline(time.Time{})
	return p.use(conn)
}

// agree waits for the other side's answer to an opening.
func (p *peer) agree(conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(openTimeout))
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if answer[0] != 'y' {
		return errNotNow
	}
	return nil
}

// accept takes a connection that the other side has opened, or says no because this side's own
// counts.
func (p *peer) accept(conn net.Conn) error {
	p.mu.Lock()
	refuse := p.dialing && p.conn == nil && p.transport.config.Self < p.node
	if !refuse {
		p.accepting++
	}
	p.mu.Unlock()
	if refuse {
		defer conn.Close()
		_, err := conn.Write([]byte{'n'})
		return err
	}
	conn.SetDeadline(time.Now().Add(lastWord))
	_, err := conn.Write([]byte{'y'})
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepting--
	p.changed.Broadcast()
	if err != nil {
		conn.Close()
		return nil // the other side does not want it any more
	}
	conn.SetDeadline(time.Time{})
	return p.use(conn)
}

// abandon discards the frames queued for an unreachable node, unless that node has reached this
// one.
func (p *peer) abandon(err error) {
	p.mu.Lock()
	p.connecting = false
	if p.conn != nil {
		p.mu.Unlock()
		return
	}
	p.dropQueue()
	p.changed.Broadcast()
	p.mu.Unlock()
	p.serving.Lock()
	defer p.serving.Unlock()
	p.transport.config.Handler.Broken(p.node, fmt.Errorf("fabric: connect to node%d: %w", p.node, err))
}

// use makes conn the connection for frames and serves it on goroutines of the transport. The caller
// holds the lock.
func (p *peer) use(conn net.Conn) error {
	if p.closed {
		conn.Close()
		return fabric.ErrClosed
	}
	if p.conn != nil {
		p.conn.Close() // the other side has opened a new one: it does not have this one any more
	}
	p.conn = conn
	p.changed.Broadcast()
	p.transport.running.Go(func() { p.run(conn) })
	return nil
}

// run serves one connection from its beginning to its end.
func (p *peer) run(conn net.Conn) {
	p.serving.Lock()
	defer p.serving.Unlock()
	var writer sync.WaitGroup
	writer.Go(func() { p.write(conn) })
	err := p.read(conn, p.transport.config.Handler)
	conn.Close()
	p.mu.Lock()
	if p.conn == conn {
		p.conn = nil
		if !p.empty() && !p.connecting && !p.closed {
			p.connecting = true
			p.transport.running.Go(p.connect)
		}
	}
	p.changed.Broadcast()
	p.mu.Unlock()
	writer.Wait()
	p.transport.config.Handler.Broken(p.node, err)
}

// dropQueue discards the queued frames. The caller holds the lock.
func (p *peer) dropQueue() {
	for class := range p.queues {
		p.queues[class] = nil
	}
	p.queued = 0
}

func (p *peer) read(conn net.Conn, handler fabric.Handler) error {
	in := bufio.NewReaderSize(conn, buffered)
	var buf []byte
	for {
		frame, err := readFrame(in, buf)
		if err != nil {
			return err
		}
		handler.Frame(p.node, frame)
		buf = frame[:cap(frame)]
	}
}

// readFrame reads one frame, into buf if that is large enough.
func readFrame(in io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > fabric.MaxFrame {
		return nil, fmt.Errorf("fabric: frame of %d bytes, at most %d are allowed", n, fabric.MaxFrame)
	}
	if n > uint32(len(buf)) {
		buf = make([]byte, n)
	}
	if _, err := io.ReadFull(in, buf[:n]); err != nil {
		return nil, fmt.Errorf("fabric: frame of %d bytes: %w", n, io.ErrUnexpectedEOF)
	}
	return buf[:n], nil
}

// write writes the queued frames, the most urgent class first, while conn is the connection.
func (p *peer) write(conn net.Conn) {
	out := bufio.NewWriterSize(patient{conn}, buffered)
	for {
		batch, ok := p.take(conn)
		if !ok {
			return
		}
		if err := writeFrames(out, batch); err != nil {
			conn.Close() // the reader sees it and ends the connection
			return
		}
	}
}

// patient is a connection each of whose writes takes writeTimeout at most.
type patient struct{ net.Conn }

func (c patient) Write(b []byte) (int, error) {
	c.SetWriteDeadline(time.Now().Add(writeTimeout))
	return c.Conn.Write(b)
}

// take waits for something to write on conn.
func (p *peer) take(conn net.Conn) (batch [][]byte, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.conn == conn && p.empty() {
		p.changed.Wait()
	}
	if p.conn != conn {
		return nil, false
	}
	for class := len(p.queues) - 1; class >= 0; class-- {
		batch = append(batch, p.queues[class]...)
	}
	p.dropQueue()
	p.changed.Broadcast()
	return batch, true
}

// empty reports whether nothing is queued. The caller holds the lock.
func (p *peer) empty() bool {
	for _, q := range p.queues {
		if len(q) > 0 {
			return false
		}
	}
	return true
}

func writeFrames(out *bufio.Writer, batch [][]byte) error {
	var head [4]byte
	for _, frame := range batch {
		binary.BigEndian.PutUint32(head[:], uint32(len(frame)))
		if _, err := out.Write(head[:]); err != nil {
			return err
		}
		if _, err := out.Write(frame); err != nil {
			return err
		}
	}
	return out.Flush()
}

// close ends the connection and everything that waits for the peer.
func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.conn != nil {
		p.conn.Close()
	}
	p.changed.Broadcast()
}
