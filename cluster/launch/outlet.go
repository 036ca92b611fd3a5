package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"margay/internal/cond"
)

// outletBytes bounds the output that waits for its reader. With more, nothing is taken from serve.
const outletBytes = 256 << 10

// hangUpLook is how often it is looked, while output waits, whether serve has gone.
const hangUpLook = 100 * time.Millisecond

// lastWrite bounds the wait for unread output once the job is given up.
const lastWrite = time.Second

// errUnread reports output that was not read before the job was given up.
var errUnread = errors.New("the output was not read")

// outlet writes output, in order, beside the goroutines that bring it. So they go on while the
// reader of the output does not read, and find serve again when it is restarted.
//
// It is bounded by await: a reader that does not read holds up the records from serve. When serve
// has gone, the rest of its connection is taken, at most as much as Linux holds for a socket.
type outlet struct {
	failed func(error) // called once, with the first error; it must not wait for the outlet

	mu      sync.Mutex
	changed sync.Cond
	queue   []piece
	size    int   // bytes that are not written
	writing bool  // a goroutine is carrying out pieces
	err     error // nothing is written any more
}

// piece is something to be done when all before it is.
type piece struct {
	size   int
	status bool // has no errors, and is done even after the error of another
	do     func() error
}

func newOutlet(failed func(error)) *outlet {
	o := &outlet{failed: failed}
	o.changed.L = &o.mu
	return o
}

// then calls do when all output before it is written, unless there was an error. It never waits.
func (o *outlet) then(size int, do func() error) { o.add(piece{size: size, do: do}) }

func (o *outlet) add(p piece) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil && !p.status {
		return
	}
	o.queue = append(o.queue, p)
	o.size += p.size
	if !o.writing {
		o.writing = true
		go o.write()
	}
}

// write carries out the pieces until none is left.
func (o *outlet) write() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) > 0 {
		p := o.queue[0]
		o.queue = o.queue[1:]
		o.mu.Unlock()
		err := p.do()
		o.mu.Lock()
		if o.size -= p.size; err != nil {
			o.err, o.size = err, 0
			o.queue = slices.DeleteFunc(o.queue, func(p piece) bool { return !p.status })
			for _, p := range o.queue {
				o.size += p.size
			}
			o.mu.Unlock()
			o.failed(err)
			o.mu.Lock()
		}
		o.changed.Broadcast()
	}
	o.queue, o.writing = nil, false
	o.changed.Broadcast()
}

// await waits until little output is left to write, or until the connection that brings it has no
// other end.
func (o *outlet) await(conn connection) {
	for !o.hasRoom(0) && !conn.HungUp() && !o.hasRoom(hangUpLook) {
	}
}

// hasRoom reports whether little output is left to write. It waits for that for some time.
func (o *outlet) hasRoom(wait time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	little := func() bool { return o.size <= outletBytes }
	if wait == 0 || little() {
		return little()
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return cond.Wait(ctx, &o.changed, little) == nil
}

// flush waits until everything is written, and returns the first error. After the end of ctx it
// does not wait for long.
func (o *outlet) flush(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	idle := func() bool { return !o.writing }
	if cond.Wait(ctx, &o.changed, idle) != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
		defer cancel()
		if cond.Wait(last, &o.changed, idle) != nil && o.err == nil {
			return errUnread
		}
	}
	return o.err
}

// outletWriter writes to one of the streams behind an outlet.
type outletWriter struct {
	outlet *outlet
	to     io.Writer
	lossy  bool // errors are dropped
}

func (o *outlet) writer(to io.Writer) *outletWriter { return &outletWriter{outlet: o, to: to} }

// status returns a Status that writes through the outlet, and drops its errors.
func (o *outlet) status(s *Status) *Status {
	return &Status{W: &outletWriter{outlet: o, to: s.W, lossy: true}, Verbose: s.Verbose, Quiet: s.Quiet, Terminal: s.Terminal}
}

func (w *outletWriter) Write(data []byte) (int, error) {
	data = bytes.Clone(data)
	w.outlet.add(piece{size: len(data), status: w.lossy, do: func() error {
		_, err := w.to.Write(data)
		return w.error(err)
	}})
	return len(data), nil
}

// take writes a file, from where it stands, and closes it.
func (w *outletWriter) take(f *os.File) {
	size := 0
	if info, err := f.Stat(); err == nil {
		size = int(info.Size())
	}
	w.outlet.then(size, func() error {
		defer f.Close()
		_, err := io.Copy(w.to, f)
		return w.error(err)
	})
}

func (w *outletWriter) error(err error) error {
	if err == nil || w.lossy {
		return nil
	}
	return fmt.Errorf("write output: %w", err)
}
