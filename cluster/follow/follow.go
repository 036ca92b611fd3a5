// Package follow reads the events that nodes record and writes them into a trace.
//
// Each node is asked again and again for what it has recorded since; each question keeps its
// recording on for a few seconds more (package record), so that nothing need be undone on the nodes
// when this process is killed. Between two questions memory holds one answer for each node at most.
// A node that cannot be reached, or whose kernel is started again, leaves a gap.
//
// # Clocks
//
// A node is asked for its time, through serve, several times in a row. It reads its clock between
// the sending of the question at t0 and the arrival of the answer at t1, so its clock is ahead of
// this one by at least its answer minus t1 and at most its answer minus t0. The intersection of all
// these intervals is the result; half its width is the error. At the end the clock is read again,
// and the difference is recorded as drift.
package follow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/trace"
	"margay/kernel/abi/id"
	"margay/kernel/record"
)

// Bounds of how nodes are asked.
const (
	shortest = 20 * time.Millisecond  // between two questions to a node that had much
	longest  = 200 * time.Millisecond // between two to one that had little: rings last for longer
	much     = 64 << 10               // bytes of events
	maxDrift = 1000                   // a clock that runs wrong by more than a part in so many is worth a warning
	retry    = 200 * time.Millisecond
	readings = 16               // of a clock
	final    = 64               // questions at the end, more than it takes to fetch all that rings can hold
	patience = 20 * time.Second // until serve is there again
	ending   = 10 * time.Second // for everything to be fetched at the end
)

// Options select the events.
type Options struct {
	Socket string // of serve
	Nodes  []id.Node
	Job    id.Job // only its events and events without a job; 0: all
	Trace  *trace.Writer
	// Warn receives warnings.
	Warn func(format string, args ...any)
}

// Follower follows nodes.
type Follower struct {
	Options
	reader uint64
	begun  time.Time // the zero of the trace's clock

	mu   sync.Mutex
	conn *control.Conn
}

// Run follows the nodes until stop is closed, and then fetches what they still have. It calls ready
// when all nodes that can be reached record. The error is that nothing can be written, that the
// machine is gone (client.Gone), or that ctx has ended; what was fetched before is in the trace.
func Run(ctx context.Context, o Options, stop <-chan struct{}, ready func()) error {
	f := &Follower{Options: o, reader: rand.Uint64(), begun: time.Now()}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer f.disconnect()
	go func() {
		select {
		case <-stop:
			time.AfterFunc(ending, func() { cancel(fmt.Errorf("the nodes do not give away what they have recorded within %v", ending)) })
		case <-ctx.Done():
		}
	}()
	var recording, following sync.WaitGroup
	recording.Add(len(o.Nodes))
	for _, number := range o.Nodes {
		n := &node{Follower: f, number: number, pause: shortest, recording: sync.OnceFunc(recording.Done)}
		following.Go(func() {
			if err := n.follow(ctx, stop); err != nil {
				cancel(err)
			}
			n.recording()
		})
	}
	recording.Wait()
	if ctx.Err() == nil {
		ready()
	}
	following.Wait()
	return context.Cause(ctx)
}

// ask makes a request, over a new connection if the last one has ended and that was not for good.
func (f *Follower) ask(ctx context.Context, request proto.Message) (proto.Message, error) {
	conn, err := f.connected(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Call(ctx, request)
}

func (f *Follower) connected(ctx context.Context) (*control.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		if err := f.conn.Err(); err == nil || client.Gone(err) {
			return f.conn, err
		}
		f.conn.Close()
		f.conn = nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := client.Dial(ctx, f.Socket)
	if err != nil {
		return nil, err
	}
	go conn.Serve(func(*control.Frame) {})
	f.conn = conn
	return conn, nil
}

func (f *Follower) disconnect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		f.conn.Close()
	}
}

// node is a node that is followed.
type node struct {
	*Follower
	number    id.Node
	recording func() // to be called when it records, or cannot

	met        bool // something is known of it
	clock      trace.Clock
	kernel     int64 // when the node kernel was started, whose clock that is
	now        int64 // when it was asked last
	generation uint64
	positions  []uint64
	pause      time.Duration // until the next question
	silent     bool          // it was unreachable at the last request
}

// follow follows the node. An error is one of writing, or that the machine is gone or does not let
// this user record.
func (n *node) follow(ctx context.Context, stop <-chan struct{}) error {
	last, left := false, final
	for {
		more, err := n.fetch(ctx)
		n.recording()
		wait := n.pause
		var writing *writeError
		switch {
		case errors.As(err, &writing), client.Gone(err), denied(err):
			return err
		case ctx.Err() != nil:
			return nil
		case err != nil && last:
			n.Warn("node%d: what it has recorded last is lost: %v", n.number, err)
			return nil
		case err != nil:
			n.lost(err)
			wait = retry
		case last && (!more || left == 0):
			n.leave(ctx)
			return nil
		case last:
			left--
			continue
		case more:
			wait = 0
		}
		select {
		case <-stop:
			last = true
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// denied reports whether serve does not let this user record.
func denied(err error) bool {
	var f *control.Failure
	return errors.As(err, &f) && f.Code == control.Code_CODE_REFUSED && f.Node == control.None
}

// lost says once that the node cannot be reached.
func (n *node) lost(err error) {
	if !n.silent {
		n.Warn("node%d: %v", n.number, err)
	}
	n.silent = true
}

// leave ends recording on the node, and records the drift of its clock.
func (n *node) leave(ctx context.Context) {
	if c, err := n.readClock(ctx); err == nil {
		drift := c.Ahead - n.clock.Ahead
		n.Trace.SetDrift(n.number, drift)
		if drift.Abs() > c.Error+n.clock.Error+time.Since(n.begun)/maxDrift {
			n.Warn("node%d: its clock drifted by %v during the recording: its times cannot be compared with other nodes' times", n.number, drift.Round(time.Millisecond))
		}
	}
	// If the node misses this, its recording expires.
	_, _ = n.ask(ctx, &control.ReadEvents{Node: uint32(n.number), Reader: n.reader, Leave: true})
}

// writeError is an error of writing the trace.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// fetch asks the node once, and reports whether it has more.
func (n *node) fetch(ctx context.Context) (more bool, err error) {
	m, err := n.ask(ctx, &control.ReadEvents{
		Node: uint32(n.number), Reader: n.reader, Generation: n.generation, Positions: n.positions, Job: uint32(n.Job),
	})
	if err != nil {
		return false, err
	}
	answer, ok := m.(*control.Events)
	if !ok {
		return false, fmt.Errorf("serve answered ReadEvents with %T", m)
	}
	events, err := record.Parse(answer.Events)
	if err != nil {
		return false, err
	}
	if !isTime(answer.NowNs) || !isTime(answer.BegunNs) {
		return false, fmt.Errorf("its clock shows %d and %d", answer.BegunNs, answer.NowNs)
	}
	if !n.met || answer.KernelNs != n.kernel {
		// A node that was booted again has another clock, too.
		c, err := n.readClock(ctx)
		if err != nil {
			return false, err
		}
		n.met, n.clock = true, c
		n.Trace.SetClock(n.number, c)
	}
	n.gap(answer)
	n.silent = false
	n.pause = min(2*n.pause, longest)
	if len(answer.Events) > much {
		n.pause = shortest
	}
	n.kernel, n.generation, n.positions, n.now = answer.KernelNs, answer.Generation, answer.Positions, answer.NowNs
	if err := n.Trace.Events(n.number, id.Time(answer.NowNs), events, answer.Lost); err != nil {
		return false, &writeError{err}
	}
	return answer.More, nil
}

// gap writes that recording was off before this answer, if it was.
func (n *node) gap(answer *control.Events) {
	if n.generation == 0 || answer.Generation == n.generation {
		return
	}
	why := fmt.Sprintf("it was not asked for more than %v", record.Lease)
	if answer.KernelNs != n.kernel {
		why = "its kernel was started again"
	}
	n.Trace.Gap(n.number, id.Time(n.now), id.Time(answer.BegunNs), why)
	n.Warn("node%d: nothing is known of %v: %s", n.number, time.Duration(answer.BegunNs-n.now).Round(time.Millisecond), why)
}

// isTime reports whether a clock can show that.
func isTime(ns int64) bool { return ns >= 0 && ns < 1<<60 }

// readClock measures the offset of the node's clock to the trace's.
func (n *node) readClock(ctx context.Context) (trace.Clock, error) {
	var known bounds
	for range readings {
		t0 := time.Since(n.begun)
		m, err := n.ask(ctx, &control.ReadClock{Node: uint32(n.number)})
		t1 := time.Since(n.begun)
		if err != nil {
			return trace.Clock{}, err
		}
		c, ok := m.(*control.Clock)
		if !ok || !isTime(c.TimeNs) {
			return trace.Clock{}, fmt.Errorf("its clock shows %v", m)
		}
		known.narrow(time.Duration(c.TimeNs)-t1, time.Duration(c.TimeNs)-t0)
	}
	return known.clock(), nil
}

// bounds are between what a node's clock is ahead. The zero bounds know nothing.
type bounds struct {
	low, high time.Duration
	known     bool
}

// narrow notes one more reading. One that contradicts the others, as when a clock was set, takes
// their place if it is better.
func (b *bounds) narrow(low, high time.Duration) {
	l, h := max(b.low, low), min(b.high, high)
	switch {
	case b.known && l <= h:
		b.low, b.high = l, h
	case !b.known || high-low < b.high-b.low:
		b.low, b.high, b.known = low, high, true
	}
}

func (b *bounds) clock() trace.Clock {
	half := (b.high - b.low) / 2
	return trace.Clock{Ahead: b.low + half, Error: half + 1}
}
