package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"margay/cluster/control"
	"margay/internal/tree"
	"margay/kernel"
	"margay/kernel/abi/id"
)

// stall bounds how long the files of a job may make no progress. A node looks for them so many times meanwhile.
const (
	stall      = 30 * time.Second
	stallLooks = 30
)

// copyService is the name of the stream by which a node passes files to a child. It carries the job's number as 4 bytes,
// then pieces: a 4-byte big-endian length and as many bytes; the length 0 ends it. What passes is a zstd archive with a
// checksum, so damage is noticed where it is unpacked.
const copyService = "copy"

// maxPiece bounds a piece, in bytes.
const maxPiece = 1 << 20

var errEnded = errors.New("the job was ended")

// queuedPieces bounds how many pieces wait to be passed on. A sender that keeps to control.FileWindow never has so many on the way.
const queuedPieces = 256

// copying is the passage of one job's files through this node: from serve or the parent in the job's tree, to this node's
// job and to the children.
type copying struct {
	agent    *Agent
	job      id.Job
	root     bool    // the files come from serve, which is told how much has been taken
	parent   id.Node // whose stream is taken; of a root none is
	children []id.Node
	pieces   chan []byte     // an empty one is the last
	context  context.Context // ends with the passage
	stop     context.CancelCauseFunc
	ended    chan struct{} // closed when the job is over, or this is
}

// startCopy makes a place for a job's files to arrive at, and passes them on when they do.
func (a *Agent) startCopy(s kernel.JobSpec) {
	c := &copying{agent: a, job: s.Job, pieces: make(chan []byte, queuedPieces), ended: make(chan struct{})}
	c.context, c.stop = context.WithCancelCause(context.Background())
	for i, m := range s.Members {
		if m.Node != a.config.Boot.Node {
			continue
		}
		if parent, ok := tree.Parent(i); ok {
			c.parent = s.Members[parent].Node
		} else {
			c.root = true
		}
		for _, child := range tree.Children(i, len(s.Members)) {
			c.children = append(c.children, s.Members[child].Node)
		}
	}
	a.mu.Lock()
	a.copies[s.Job] = c
	a.mu.Unlock()
	go c.run()
}

// stopCopy ends the passage of a job's files, if it goes on.
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

// offer queues a piece of a sender that must not be made to wait.
func (c *copying) offer(p []byte) {
	select {
	case c.pieces <- p:
	default:
		c.stop(errors.New("more of the files was sent than was asked for"))
	}
}

// stream takes a job's files from the parent in the tree (kernel.Membership).
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
		a.peers.Printf("node%d sends files of job %d, which it has no part in passing on", from, c.job)
		return
	}
	stop := context.AfterFunc(c.context, func() { conn.Close() })
	defer stop()
	for {
		conn.SetReadDeadline(time.Now().Add(stall))
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

// run passes the files on and reports how that went.
func (c *copying) run() {
	defer c.agent.stopCopy(c.job)
	err := c.pass()
	if errors.Is(err, errEnded) {
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
	report := &control.Loaded{Job: uint32(c.job)}
	if err != nil {
		report.Error = c.agent.failure(err)
	}
	if broken != nil {
		report.Error.Code = control.Code_CODE_RESTARTED
	}
	c.agent.tell(report)
}

// pass moves every piece to the job's init and to the children, and waits until the files are unpacked here.
func (c *copying) pass() error {
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
			return lerr // it is what made the copy fail
		}
		return err
	}
	w.Close()
	return <-loaded
}

// copy moves the pieces until the last one.
func (c *copying) copy(w io.Writer) error {
	p, err := c.next()
	if err != nil {
		return err
	}
	// Now that files come, every node has made a place for them.
	outs, err := c.openChildren()
	defer func() {
		for _, out := range outs {
			out.conn.Close()
		}
	}()
	var taken uint64
	for ; err == nil; p, err = c.next() {
		for _, out := range outs {
			if err := out.write(p); err != nil {
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
			c.agent.tell(&control.FileTaken{Job: uint32(c.job), Offset: taken})
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

// nextBy waits for a piece until looks for it have been in vain. It counts them, and not the time: of a node that had no processor for a
// while all ticks but one are lost, and its sender may have had none, either.
func (c *copying) nextBy(looks <-chan time.Time) ([]byte, error) {
	for range stallLooks {
		select {
		case p := <-c.pieces:
			return p, nil
		case <-c.context.Done():
			return nil, context.Cause(c.context)
		case <-looks:
		}
	}
	select {
	case p := <-c.pieces:
		return p, nil
	default:
		return nil, &streamError{"files of the job", fmt.Errorf("no piece of them came for %v", stall)}
	}
}

// child is the stream to a child in the job's tree.
type child struct {
	node id.Node
	conn net.Conn
}

// streamError reports that a stream of files has ended too early, as when the node kernel at its other end was killed, or has stopped: the
// launch can be begun anew.
type streamError struct {
	what string
	err  error
}

func (e *streamError) Error() string { return fmt.Sprintf("%s: %v", e.what, e.err) }
func (e *streamError) Unwrap() error { return e.err }

func toChild(node id.Node, err error) error {
	return &streamError{fmt.Sprintf("pass files on to node%d", node), err}
}

// reasonGrace is how long a node waits before it reports a broken stream. A node that has ended the stream because it cannot go on
// reports a better reason itself.
const reasonGrace = 500 * time.Millisecond

func (c *copying) openChildren() ([]*child, error) {
	var outs []*child
	for _, node := range c.children {
		ctx, cancel := context.WithTimeout(c.context, stall)
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

func (out *child) write(p []byte) error {
	out.conn.SetWriteDeadline(time.Now().Add(stall))
	packet := append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...)
	if _, err := out.conn.Write(packet); err != nil {
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
