package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"margay/cluster/control"
	"margay/internal/tree"
	"margay/kernel"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// stall bounds the time without progress of a job's files, and stallLooks is the number of checks
// in that time. On a hosted node, whose processors all nodes share, there is one more for each
// nodesALook nodes of the job.
const (
	stall      = 30 * time.Second
	stallLooks = 30
	nodesALook = 5
)

// copyService is the name of the stream from a node to its child. It carries the job's number as 4
// bytes, and then pieces: a 4-byte big-endian length and that many bytes. The length 0 is the end.
// The data is a zstd archive with a checksum, so unpacking detects damage.
const copyService = "copy"

// maxPiece bounds a piece, in bytes.
const maxPiece = 1 << 20

var errEnded = errors.New("the job was ended")

// Bounds of the pieces that wait to be forwarded: at the root, whose sender also respects
// control.FileWindow, and at other nodes, whose parents wait.
const (
	queuedPieces   = 256
	streamedPieces = 8 // a usual piece is an eighth of the window
)

// copying forwards the files of one job: from serve or the parent in the job's tree to the job on
// this node and to the children.
type copying struct {
	agent    *Agent
	job      id.Job
	root     bool    // the files come from serve, which receives the progress
	parent   id.Node // the only node whose stream is accepted; unused in a root
	children []id.Node
	more     int             // looks
	loaded   bool            // this node has the files: pieces are for the nodes below it
	pieces   chan []byte     // an empty one is the last
	queued   atomic.Int64    // bytes in pieces, of a root
	begun    time.Time       // the arrival of the first piece; used by run only
	context  context.Context // ends with the copy
	stop     context.CancelCauseFunc
	ended    chan struct{} // closed by stopCopy
}

// startCopy prepares for the files of a job, and forwards them as they arrive. A node that has them
// has loaded.
func (a *Agent) startCopy(s kernel.JobSpec, loaded bool) {
	c := &copying{agent: a, job: s.Job, loaded: loaded, ended: make(chan struct{})}
	c.context, c.stop = context.WithCancelCause(context.Background())
	if place, ok := s.Layout.PlaceOf(a.config.Boot.Node); ok {
		if parent, ok := tree.Parent(place); ok {
			c.parent = s.Layout.Node(parent)
		} else {
			c.root = true
		}
		for _, child := range tree.Children(place, s.Layout.Nodes()) {
			c.children = append(c.children, s.Layout.Node(child))
		}
	}
	if c.pieces = make(chan []byte, streamedPieces); c.root {
		c.pieces = make(chan []byte, queuedPieces)
	}
	if a.config.Boot.Substrate == node.Hosted {
		c.more = s.Layout.Nodes() / nodesALook
	}
	a.mu.Lock()
	a.copies[s.Job] = c
	a.mu.Unlock()
	go c.run()
}

// stopCopy ends the copy of a job's files, if there is one.
func (a *Agent) stopCopy(job id.Job) {
	a.mu.Lock()
	c := a.copies[job]
	delete(a.copies, job)
	a.mu.Unlock()
	if c != nil {
		c.stop(errEnded)
		close(c.ended)
	}
}

func (a *Agent) copying(job id.Job) *copying {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.copies[job]
}

// fileChunk takes a piece of a job's files from serve.
func (a *Agent) fileChunk(m *control.FileChunk) {
	c := a.copying(id.Job(m.Job))
	if c == nil {
		return
	}
	if len(m.Data) > 0 {
		c.offer(m.Data)
	}
	if m.Last {
		c.offer(nil)
	}
}

// errWindow reports a client that sends more than it may.
var errWindow = errors.New("the sender of the files exceeds its window")

// offer queues a piece from a sender that must not be blocked.
func (c *copying) offer(p []byte) {
	if c.queued.Add(int64(len(p))) > control.FileWindow {
		c.stop(errWindow)
		return
	}
	select {
	case c.pieces <- p:
	default:
		c.stop(errWindow)
	}
}

// stream receives a job's files from the parent in the tree (kernel.Membership).
func (a *Agent) stream(from id.Node, service string, conn net.Conn) {
	defer conn.Close()
	if service != copyService {
		a.peers.Printf("node%d asks for a stream %q, which is unknown", from, service)
		return
	}
	in := bufio.NewReaderSize(conn, 64<<10)
	var number [4]byte
	conn.SetReadDeadline(time.Now().Add(stall))
	if _, err := io.ReadFull(in, number[:]); err != nil {
		a.peers.Printf("files from node%d: %v", from, err)
		return
	}
	c := a.copying(id.Job(binary.BigEndian.Uint32(number[:])))
	if c == nil {
		return // the job has been ended
	}
	if c.root || from != c.parent {
		a.peers.Printf("node%d sends files of job %d, but is not this node's parent", from, c.job)
		return
	}
	stop := context.AfterFunc(c.context, func() { conn.Close() })
	defer stop()
	for {
		conn.SetReadDeadline(time.Now().Add(c.patience()))
		p, err := readPiece(in)
		if err != nil {
			c.stop(&streamError{fmt.Sprintf("files from node%d", from), err})
			return
		}
		select {
		case c.pieces <- p:
		case <-c.context.Done():
			return
		}
		if len(p) == 0 {
			return
		}
	}
}

// run forwards the files and reports the result.
func (c *copying) run() {
	defer c.agent.stopCopy(c.job)
	err := c.pass()
	if errors.Is(err, errEnded) || c.loaded && err == nil {
		return
	}
	var broken *streamError
	if errors.As(err, &broken) {
		select {
		case <-time.After(reasonGrace):
		case <-c.ended:
			return
		}
	}
	loaded := &control.Loaded{Job: uint32(c.job)}
	if !c.begun.IsZero() {
		loaded.LoadNs = int64(time.Since(c.begun))
	}
	if err != nil {
		loaded.Error = c.agent.failure(err)
	}
	if broken != nil {
		loaded.Error.Code = control.Code_CODE_RESTARTED
	}
	c.agent.report(loaded)
}

// pass sends every piece to the children and, if this node has not loaded, to the job's init, and
// waits until the files are unpacked here.
func (c *copying) pass() error {
	if c.loaded {
		return c.copy(io.Discard)
	}
	r, w := io.Pipe()
	loaded := make(chan error, 1)
	go func() {
		err := c.agent.node.Load(c.context, c.job, r)
		r.CloseWithError(err)
		loaded <- err
	}()
	if err := c.copy(w); err != nil {
		w.CloseWithError(err)
		var broken *streamError
		if lerr := <-loaded; lerr != nil && !errors.Is(lerr, err) && !errors.As(err, &broken) {
			return lerr // the cause of err
		}
		return err
	}
	w.Close()
	return <-loaded
}

// copy sends the pieces up to the last one.
func (c *copying) copy(w io.Writer) error {
	p, err := c.next()
	if err != nil {
		return err
	}
	c.begun = time.Now()
	// The first piece shows that every node is prepared.
	outs, err := c.openChildren()
	defer func() {
		for _, out := range outs {
			out.conn.Close()
		}
	}()
	var taken uint64
	for ; err == nil; p, err = c.next() {
		for _, out := range outs {
			if err := out.write(p, c.patience()); err != nil {
				return err
			}
		}
		if len(p) == 0 {
			return nil
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
		if taken += uint64(len(p)); c.root {
			c.agent.report(&control.FileTaken{Job: uint32(c.job), Offset: taken})
		}
	}
	return err
}

// next waits for a piece.
func (c *copying) next() ([]byte, error) {
	tick := time.NewTicker(stall / stallLooks)
	defer tick.Stop()
	return c.nextBy(tick.C)
}

// looks is how many ticks a piece may take.
func (c *copying) looks() int { return stallLooks + c.more }

// patience is as much time.
func (c *copying) patience() time.Duration { return time.Duration(c.looks()) * stall / stallLooks }

// nextBy waits for a piece, for a number of ticks at most. It counts ticks instead of time: a node
// that gets no CPU time for a while loses all ticks but one, and its sender may have been in the
// same state.
func (c *copying) nextBy(looks <-chan time.Time) ([]byte, error) {
	most := c.looks()
	for range most {
		select {
		case p := <-c.pieces:
			return c.dequeued(p), nil
		case <-c.context.Done():
			return nil, context.Cause(c.context)
		case <-looks:
		}
	}
	select {
	case p := <-c.pieces:
		return c.dequeued(p), nil
	default:
		return nil, &streamError{"files of the job", fmt.Errorf("no data for %v", c.patience())}
	}
}

// dequeued notes that a piece waits no longer.
func (c *copying) dequeued(p []byte) []byte {
	c.queued.Add(-int64(len(p)))
	return p
}

// child is the stream to a child in the job's tree.
type child struct {
	node id.Node
	conn net.Conn
}

// streamError reports a stream of files that stalled or ended too early, for example because the
// node kernel at its other end was killed. The launch can be repeated.
type streamError struct {
	what string
	err  error
}

func (e *streamError) Error() string { return fmt.Sprintf("%s: %v", e.what, e.err) }
func (e *streamError) Unwrap() error { return e.err }

func toChild(node id.Node, err error) error {
	return &streamError{fmt.Sprintf("pass files on to node%d", node), err}
}

// reasonGrace is the time before a node reports a broken stream. A node that ended the stream
// because of an error reports a better reason itself.
const reasonGrace = 500 * time.Millisecond

func (c *copying) openChildren() ([]*child, error) {
	var outs []*child
	for _, node := range c.children {
		ctx, cancel := context.WithTimeout(c.context, c.patience())
		conn, err := c.agent.node.Stream(ctx, node, copyService)
		cancel()
		if err != nil {
			return outs, toChild(node, err)
		}
		outs = append(outs, &child{node, conn})
		if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, uint32(c.job))); err != nil {
			return outs, toChild(node, err)
		}
	}
	return outs, nil
}

// write sends a piece. It does not copy it: a piece is large, and each copy takes fresh memory.
func (out *child) write(p []byte, patience time.Duration) error {
	out.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err := out.conn.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p))))
	if err == nil && len(p) > 0 {
		_, err = out.conn.Write(p)
	}
	if err != nil {
		return toChild(out.node, err)
	}
	return nil
}

// readPiece reads what child.write wrote. The end is an empty piece.
func readPiece(in io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxPiece {
		return nil, fmt.Errorf("piece of %d bytes, at most %d are allowed", n, maxPiece)
	}
	p := make([]byte, n)
	_, err := io.ReadFull(in, p)
	return p, err
}
