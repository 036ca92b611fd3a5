package vswitch

import (
	"net"
	"sync"

	"margay/qemu/ether"
)

// chunkSize is the unit in which an outbox takes memory, bytes.
const chunkSize = 64 << 10

// maxBatch is how many chunks are written by one system call.
const maxBatch = 16

// A chunk is a piece of the stream to a peer. Frames may cross from one chunk into the next.
type chunk struct {
	data   []byte // prefixes and frames; capacity chunkSize
	frames int    // that end in this chunk
	bytes  int    // of those frames, without prefixes
}

var chunkPool = sync.Pool{New: func() any { return &chunk{data: make([]byte, 0, chunkSize)} }}

func (c *chunk) free() {
	*c = chunk{data: c.data[:0]}
	chunkPool.Put(c)
}

// An outbox is the bounded queue of the stream to one peer. Several goroutines put, one takes.
type outbox struct {
	limit int // bytes
	count *counters

	mu     sync.Mutex
	wake   sync.Cond // chunks is not empty any more, or closed
	chunks []*chunk  // all but the last are full
	bytes  int       // put and not yet written
	closed bool
}

func newOutbox(limit int, count *counters) *outbox {
	o := &outbox{limit: limit, count: count}
	o.wake.L = &o.mu
	return o
}

// put queues a copy of the frame, or drops and counts it. It does not wait.
func (o *outbox) put(frame []byte) {
	size := ether.PrefixLen + len(frame)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		o.count.absent.Add(1)
		return
	case o.bytes+size > o.limit:
		o.count.full.Add(1)
		return
	}
	o.bytes += size
	if len(o.chunks) == 0 {
		o.wake.Signal()
	}
	prefix := ether.Prefix(len(frame))
	o.append(prefix[:])
	last := o.append(frame)
	last.frames++
	last.bytes += len(frame)
}

// append adds bytes to the stream and returns the chunk that holds the last of them.
func (o *outbox) append(b []byte) *chunk {
	for {
		n := len(o.chunks)
		if n == 0 || len(o.chunks[n-1].data) == chunkSize {
			o.chunks = append(o.chunks, chunkPool.Get().(*chunk))
			n++
		}
		c := o.chunks[n-1]
		fit := min(len(b), chunkSize-len(c.data))
		c.data = append(c.data, b[:fit]...)
		if b = b[fit:]; len(b) == 0 {
			return c
		}
	}
}

// take moves the oldest chunks, at most maxBatch, into batch. It waits for some; none means that the outbox is closed.
func (o *outbox) take(batch []*chunk) []*chunk {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.chunks) == 0 && !o.closed {
		o.wake.Wait()
	}
	n := min(len(o.chunks), maxBatch)
	batch = append(batch[:0], o.chunks[:n]...)
	rest := copy(o.chunks, o.chunks[n:])
	clear(o.chunks[rest:])
	o.chunks = o.chunks[:rest]
	return batch
}

// done gives back chunks that take returned.
func (o *outbox) done(batch []*chunk) {
	written := 0
	for _, c := range batch {
		written += len(c.data)
		c.free()
	}
	o.mu.Lock()
	o.bytes -= written
	o.mu.Unlock()
}

// close drops and counts what is queued; take returns none from now on.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, c := range o.chunks {
		o.count.unsent.Add(uint64(c.frames))
		c.free()
	}
	o.chunks = nil
	o.wake.Signal()
}

// drain writes the outbox to the peer until the connection or the outbox ends. It returns the connection's error.
func (o *outbox) drain(conn *net.UnixConn) error {
	var (
		batch []*chunk
		store = make(net.Buffers, maxBatch)
	)
	for {
		batch = o.take(batch)
		if len(batch) == 0 {
			return nil
		}
		frames, bytes := 0, 0
		bufs := store[:0]
		for _, c := range batch {
			bufs = append(bufs, c.data)
			frames += c.frames
			bytes += c.bytes
		}
		_, err := bufs.WriteTo(conn)
		o.done(batch)
		if err != nil {
			o.count.unsent.Add(uint64(frames))
			return err
		}
		o.count.txFrames.Add(uint64(frames))
		o.count.txBytes.Add(uint64(bytes))
	}
}
