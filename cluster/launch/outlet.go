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

// aheadAfter is how long a message waits for output before it. If the reader of that does not read
// for so long, messages go ahead of it to another file.
const aheadAfter = time.Second

// errUnread reports output that was not read before the job was given up.
var errUnread = errors.New("the output was not read")

// outlet writes output, in order, beside the goroutines that bring it. So they go on while the
// reader of the output does not read, and find serve again when it is restarted.
//
// It is bounded by await: a reader that does not read holds up the records from serve. When serve
// has gone, the rest of its connection is taken, at most as much as Linux holds for a socket.
//
// Messages come in order with the output, as long as that is read. Of lines
// of progress that wait, one after the other, only the last is written.
type outlet struct {
	failed func(error) // called once, with the first error; it must not wait for the outlet

	mu      sync.Mutex
	changed sync.Cond
	queue   []piece
	size    int   // bytes that are not written
	writing bool  // a goroutine is carrying out pieces
	err     error // nothing is written any more

	now    piece     // the piece that is being carried out
	begun  time.Time // since then
	ahead  bool      // messages are being written ahead of now
	timing bool      // goAhead is about to look
}

// piece is something to be done when all before it is.
type piece struct {
	size     int
	status   bool      // has no errors, and is done even after the error of another
	progress bool      // takes the place of another one right before it
	to       io.Writer // nil: it is not output
	do       func() error
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
	if last := len(o.queue) - 1; p.progress && last >= 0 && o.queue[last].progress {
		o.size -= o.queue[last].size
		o.queue = o.queue[:last]
	}
	o.queue = append(o.queue, p)
	o.size += p.size
	if !o.writing {
		o.writing = true
		go o.write()
	} else if p.status {
		o.watch()
	}
}

// watch looks after a while whether messages must go ahead. The caller holds outlet.mu.
func (o *outlet) watch() {
	if !o.timing {
		o.timing = true
		time.AfterFunc(aheadAfter, o.goAhead)
	}
}

// goAhead writes the messages that wait for output to another file that is not read.
func (o *outlet) goAhead() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timing = false
	blocked := func(p piece) bool { return o.writing && p.status && apart(o.now.to, p.to) }
	if !slices.ContainsFunc(o.queue, blocked) {
		if slices.ContainsFunc(o.queue, func(p piece) bool { return p.status }) {
			o.watch()
		}
		return
	}
	if time.Since(o.begun) < aheadAfter || o.ahead {
		o.watch()
		return
	}
	var first []piece
	o.queue = slices.DeleteFunc(o.queue, func(p piece) bool {
		goes := blocked(p)
		if goes {
			first = append(first, p)
		}
		return goes
	})
	o.ahead = true
	for _, p := range first {
		o.mu.Unlock()
		_ = p.do()
		o.mu.Lock()
		o.size -= p.size
	}
	o.ahead = false
	o.changed.Broadcast()
}

// apart reports whether two writers are different files.
func apart(a, b io.Writer) bool {
	type file interface{ Stat() (os.FileInfo, error) }
	x, isFile := a.(file)
	y, areFiles := b.(file)
	if !isFile || !areFiles {
		return false
	}
	first, err := x.Stat()
	second, err2 := y.Stat()
	return err == nil && err2 == nil && !os.SameFile(first, second)
}

// write carries out the pieces until none is left.
func (o *outlet) write() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) > 0 {
		p := o.queue[0]
		o.queue = o.queue[1:]
		o.now, o.begun = p, time.Now()
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
	o.queue, o.writing, o.now = nil, false, piece{}
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
	idle := func() bool { return !o.writing && !o.ahead }
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
	w.outlet.add(w.piece(data))
	return len(data), nil
}

// Progress writes a line in place of one that is not written yet.
func (w *outletWriter) Progress(data []byte) {
	p := w.piece(data)
	p.progress = true
	w.outlet.add(p)
}

func (w *outletWriter) piece(data []byte) piece {
	data = bytes.Clone(data)
	return piece{size: len(data), status: w.lossy, to: w.to, do: func() error {
		_, err := w.to.Write(data)
		return w.error(err)
	}}
}

// take writes a file, from where it stands, and closes it.
func (w *outletWriter) take(f *os.File) {
	size := 0
	if info, err := f.Stat(); err == nil {
		size = int(info.Size())
	}
	w.outlet.add(piece{size: size, to: w.to, do: func() error {
		defer f.Close()
		_, err := io.Copy(w.to, f)
		return w.error(err)
	}})
}

func (w *outletWriter) error(err error) error {
	if err == nil || w.lossy {
		return nil
	}
	return fmt.Errorf("write output: %w", err)
}
