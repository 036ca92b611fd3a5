package vswitch

import (
	"net"
	"sync"

	"margay/qemu/ether"
)

// chunkSize is the unit of an outbox's memory, in bytes.
const chunkSize = 64 << 10

// maxBatch is the number of chunks written by one system call.
const maxBatch = 16

// A chunk is a piece of the stream to a peer. Frames may cross from one chunk into the next.
type chunk struct {
	data   []byte  // prefixes and frames; capacity chunkSize
	frames int     // that end in this chunk
	bytes  int     // of those frames, without prefixes
	shares []share // of their sources
}

// A share is the number of bytes, with prefixes, of consecutive frames of one source.
type share struct {
	waiting *int // of the source, in the outbox
	bytes   int
}

var chunkPool = sync.Pool{New: func() any { return &chunk{data: make([]byte, 0, chunkSize)} }}

func (c *chunk) free() {
	clear(c.shares) // the outbox may go before the pool does
	*c = chunk{data: c.data[:0], shares: c.shares[:0]}
	chunkPool.Put(c)
}

// greed is the greatest ratio of one source's queued bytes to the free bytes. A source that sends
// too much gets three quarters of the queue, and the free part grows with each frame that is
// written.
const greed = 3

// An outbox is the bounded queue of the stream to one peer. Several goroutines put, one takes.
type outbox struct {
	limit int // bytes
	count *counters

	mu      sync.Mutex
	wake    sync.Cond          // chunks is not empty any more, or closed
	chunks  []*chunk           // all but the last are full
	bytes   int                // put and not yet written
	waiting map[ether.MAC]*int // of these, by the frame's source
	closed  bool
}

func newOutbox(limit int, count *counters) *outbox {
	o := &outbox{limit: limit, count: count, waiting: make(map[ether.MAC]*int)}
	o.wake.L = &o.mu
	return o
}

// put queues a copy of the frame, or drops and counts it. It does not wait. A frame whose source
// has no queued frame may use all free space.
func (o *outbox) put(frame []byte) {
	size := ether.PrefixLen + len(frame)
	source := ether.Source(frame)
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
	waiting := o.waiting[source]
	if waiting == nil {
		waiting = new(int)
		o.waiting[source] = waiting
	}
	if *waiting > 0 && *waiting+size > greed*(o.limit-o.bytes) {
		o.count.full.Add(1)
		return
	}
	*waiting += size
	o.bytes += size
	if len(o.chunks) == 0 {
		o.wake.Signal()
	}
	prefix := ether.Prefix(len(frame))
	o.append(prefix[:])
	last := o.append(frame)
	last.frames++
	last.bytes += len(frame)
	if n := len(last.shares); n > 0 && last.shares[n-1].waiting == waiting {
		last.shares[n-1].bytes += size
	} else {
		last.shares = append(last.shares, share{waiting, size})
	}
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

// take moves the oldest chunks, at most maxBatch, into batch. It waits for at least one; none means
// that the outbox is closed.
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

// done releases chunks that take returned.
func (o *outbox) done(batch []*chunk) {
	o.mu.Lock()
	for _, c := range batch {
		o.bytes -= len(c.data)
		for _, s := range c.shares {
			*s.waiting -= s.bytes
		}
	}
	o.mu.Unlock()
	for _, c := range batch {
		c.free()
	}
}

// close drops and counts the queued frames; take then returns none.
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

// drain writes the outbox to the peer until the connection or the outbox ends. It returns the
// connection's error.
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
