package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/fabric"
)

// Suite says how a test makes the nodes of a machine.
type Suite struct {
	// Machine makes a machine, and returns how to make its nodes: New makes a node that listens at
	// an address, where port 0 stands for any, and returns the address that others reach it at.
	Machine func(t testing.TB) New
	// Leaks checks at the end of a test that nothing of its nodes is left.
	Leaks func(t testing.TB)
	// Rounds returns how often a test repeats something: few times, or many in long runs.
	Rounds func(few, many int) int
}

// New makes a node of a machine.
type New func(t testing.TB, node id.Node, address string, h fabric.Handler) (fabric.Transport, string)

// anywhere is an address on the loopback interface.
const anywhere = "127.0.0.1:0"

// Run runs the contract suite.
func (s Suite) Run(t *testing.T) {
	for name, test := range map[string]func(Suite, *testing.T){
		"FramesInOrder": Suite.framesInOrder, "Stream": Suite.stream, "Restart": Suite.restart, "Unreachable": Suite.unreachable,
		"StrangerIsRefused": Suite.strangerIsRefused, "CloseInUse": Suite.closeInUse, "BothFirst": Suite.bothFirst,
		"AllAtOnce": Suite.allAtOnce, "Classes": Suite.classes, "FrameSize": Suite.frameSize, "SlowNode": Suite.slowNode,
		"Closed": Suite.closed, "StreamToNowhere": Suite.streamToNowhere,
	} {
		t.Run(name, func(t *testing.T) {
			s.Leaks(t)
			test(s, t)
		})
	}
}

// nodes starts n nodes that know each other.
func (s Suite) nodes(t testing.TB, n int) (ts []fabric.Transport, rs []*Recorder, addresses []string, more New) {
	t.Helper()
	more = s.Machine(t)
	for i := range n {
		r := NewRecorder()
		tr, address := more(t, id.Node(i), anywhere, r)
		t.Cleanup(func() { tr.Close() })
		ts, rs, addresses = append(ts, tr), append(rs, r), append(addresses, address)
	}
	for _, tr := range ts {
		for i, a := range addresses {
			tr.Meet(id.Node(i), a)
		}
	}
	return ts, rs, addresses, more
}

func (s Suite) framesInOrder(t *testing.T) {
	ts, rs, _, _ := s.nodes(t, 2)
	n := s.Rounds(1500, 5000)
	var senders sync.WaitGroup
	for from := range 2 { // both begin at the same moment
		senders.Go(func() {
			for i := range n {
				if err := ts[from].Send(t.Context(), id.Node(1-from), fabric.User, fmt.Append(nil, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	senders.Wait()
	for to, r := range rs {
		r.Await(t, "all frames", func() bool { return len(r.Frames) == n })
		frames, breaks := r.Seen()
		for i, f := range frames {
			if f != fmt.Sprintf("%d:%d", 1-to, i) {
				t.Fatalf("frame %d at node%d is %s", i, to, f)
			}
		}
		if len(breaks) > 0 {
			t.Errorf("connections broke: %v", breaks)
		}
	}
}

func (s Suite) stream(t *testing.T) {
	ts, _, _, _ := s.nodes(t, 2)
	c, err := ts[0].Stream(t.Context(), 1, "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data := bytes.Repeat([]byte("bulk "), 100000)
	go func() {
		c.Write(data)
		c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if want := append([]byte("node0 wants echo: "), data...); !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came back, %d expected", len(got), len(want))
	}
}

// A node that is closed comes back at the same address. The break is reported once; later frames
// reach the new one.
func (s Suite) restart(t *testing.T) {
	ts, rs, addresses, more := s.nodes(t, 1)
	second := NewRecorder()
	t1, address := more(t, 1, anywhere, second)
	ts[0].Meet(1, address)
	t1.Meet(0, addresses[0])
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("one")); err != nil {
		t.Fatal(err)
	}
	second.Await(t, "frame", func() bool { return len(second.Frames) == 1 })
	t1.Close()
	rs[0].Await(t, "break", func() bool { return len(rs[0].Breaks) == 1 })

	again := NewRecorder()
	t1, _ = more(t, 1, address, again)
	defer t1.Close()
	if err := ts[0].Send(t.Context(), 1, fabric.System, []byte("two")); err != nil {
		t.Fatal(err)
	}
	again.Await(t, "frame after the restart", func() bool { return len(again.Frames) == 1 })
}

func (s Suite) unreachable(t *testing.T) {
	ts, _, _, _ := s.nodes(t, 1)
	if err := ts[0].Send(t.Context(), 7, fabric.User, []byte("x")); !errors.Is(err, fabric.ErrUnknownNode) {
		t.Errorf("Send to a node never met: %v", err)
	}
	ts[0].Meet(7, nowhere(t))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var err error
	for err == nil {
		err = ts[0].Send(ctx, 7, fabric.User, make([]byte, fabric.MaxFrame))
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Send to a node that does not answer: %v", err)
	}
}

// nowhere returns an address at which nothing listens.
func nowhere(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", anywhere)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s Suite) strangerIsRefused(t *testing.T) {
	_, rs, addresses, _ := s.nodes(t, 1)
	r := NewRecorder()
	stranger, _ := s.Machine(t)(t, 1, anywhere, r)
	defer stranger.Close()
	stranger.Meet(0, addresses[0])
	if _, err := stranger.Stream(t.Context(), 0, "echo"); err == nil {
		t.Error("a node of another machine opened a stream")
	}
	if err := stranger.Send(t.Context(), 0, fabric.User, []byte("x")); err != nil {
		t.Error(err)
	}
	raw, err := net.Dial("tcp", addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	raw.Write([]byte("margay 1 frames -\n"))
	raw.SetReadDeadline(time.Now().Add(5 * time.Second))
	// Expect a TLS alert, and then the end.
	if _, err := io.ReadAll(raw); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection without TLS was kept")
	}
	if frames, _ := rs[0].Seen(); len(frames) > 0 {
		t.Errorf("frames from strangers: %v", frames)
	}
}

// Every test checks that nothing leaks; here all kinds of connection are in use when the transports
// are closed.
func (s Suite) closeInUse(t *testing.T) {
	ts, rs, _, _ := s.nodes(t, 3)
	for i := range 3 {
		ts[i].Send(t.Context(), id.Node((i+1)%3), fabric.User, []byte("x"))
	}
	for _, r := range rs {
		r.Await(t, "frame", func() bool { return len(r.Frames) == 1 })
	}
	c, err := ts[0].Stream(t.Context(), 1, "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var b [1]byte
	if _, err := c.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	ts[1].Close()
	c.SetReadDeadline(time.Now().Add(Patience))
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a stream outlives its transport")
	}
}

// Two nodes that use their connection for the first time at the same moment agree on one, and lose
// nothing.
func (s Suite) bothFirst(t *testing.T) {
	for range s.Rounds(15, 50) {
		ts, rs, _, _ := s.nodes(t, 2)
		var both sync.WaitGroup
		for from := range 2 {
			both.Go(func() {
				for i := range 3 {
					ts[from].Send(t.Context(), id.Node(1-from), fabric.System, fmt.Append(nil, i))
					time.Sleep(time.Duration(i) * time.Millisecond)
				}
			})
		}
		both.Wait()
		for _, r := range rs {
			r.Await(t, "three frames", func() bool { return len(r.Frames) == 3 })
			if _, breaks := r.Seen(); len(breaks) > 0 {
				t.Fatalf("a connection broke: %v", breaks)
			}
		}
		for _, tr := range ts {
			tr.Close()
		}
	}
}

// Three nodes begin with each other at the same moment, again and again: everything arrives once
// and in order.
func (s Suite) allAtOnce(t *testing.T) {
	for round := range s.Rounds(6, 20) {
		ts, rs, _, _ := s.nodes(t, 3)
		var all sync.WaitGroup
		for from := range 3 {
			for to := range 3 {
				if from == to {
					continue
				}
				all.Go(func() {
					for i := range 5 {
						if err := ts[from].Send(t.Context(), id.Node(to), fabric.User, fmt.Append(nil, i)); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		for node, r := range rs {
			r.Await(t, "frames", func() bool { return len(r.Frames) >= 10 })
			frames, breaks := r.Seen()
			next := make(map[string]int)
			for _, f := range frames {
				from, number, _ := strings.Cut(f, ":")
				if number != fmt.Sprint(next[from]) {
					t.Errorf("round %d, node%d: %v", round, node, frames)
				}
				next[from]++
			}
			if len(frames) != 10 || len(breaks) > 0 {
				t.Errorf("round %d, node%d: %d frames, breaks %v", round, node, len(frames), breaks)
			}
		}
		for _, tr := range ts {
			tr.Close()
		}
	}
}

// System frames overtake user frames; each class keeps its order.
func (s Suite) classes(t *testing.T) {
	ts, _, _, more := s.nodes(t, 1)
	address := nowhere(t)
	ts[0].Meet(1, address)
	for i, class := range []fabric.Class{fabric.User, fabric.System, fabric.User, fabric.System} {
		if err := ts[0].Send(t.Context(), 1, class, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	r := NewRecorder()
	late, _ := more(t, 1, address, r)
	t.Cleanup(func() { late.Close() })
	r.Await(t, "frames", func() bool { return len(r.Frames) == 4 })
	frames, _ := r.Seen()
	if got := strings.Join(frames, " "); got != "0:1 0:3 0:0 0:2" {
		t.Errorf("frames came as %s", got)
	}
}

func (s Suite) frameSize(t *testing.T) {
	ts, rs, _, _ := s.nodes(t, 2)
	if err := ts[0].Send(t.Context(), 1, fabric.User, make([]byte, fabric.MaxFrame+1)); err == nil {
		t.Error("too large a frame was sent")
	}
	for _, size := range []int{0, fabric.MaxFrame} {
		if err := ts[0].Send(t.Context(), 1, fabric.User, make([]byte, size)); err != nil {
			t.Error(err)
		}
	}
	rs[1].Await(t, "frames", func() bool { return len(rs[1].Frames) == 2 })
	if frames, _ := rs[1].Seen(); len(frames[0]) != len("0:") || len(frames[1]) != len("0:")+fabric.MaxFrame {
		t.Errorf("frames of %d and %d bytes came", len(frames[0]), len(frames[1]))
	}
}

// slow is a handler that blocks until it is released.
type slow struct {
	*Recorder
	gate chan struct{}
}

func (s slow) Frame(from id.Node, frame []byte) {
	<-s.gate
	s.Recorder.Frame(from, frame)
}

// A node that does not receive blocks its senders, except for system frames, and no other node.
func (s Suite) slowNode(t *testing.T) {
	ts, rs, _, more := s.nodes(t, 2)
	h := slow{NewRecorder(), make(chan struct{})}
	tr, address := more(t, 2, anywhere, h)
	t.Cleanup(func() { tr.Close() })
	release := sync.OnceFunc(func() { close(h.gate) })
	t.Cleanup(release)
	ts[0].Meet(2, address)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var err error
	sent := 0
	for ; err == nil; sent++ {
		err = ts[0].Send(ctx, 2, fabric.User, make([]byte, fabric.MaxFrame))
	}
	if sent--; !errors.Is(err, context.DeadlineExceeded) || sent == 0 || sent > 1000 {
		t.Errorf("after %d frames: %v", sent, err)
	}
	if err := ts[0].Send(t.Context(), 2, fabric.System, []byte("system")); err != nil {
		t.Error(err)
	}
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("x")); err != nil {
		t.Error(err)
	}
	rs[1].Await(t, "frame", func() bool { return len(rs[1].Frames) == 1 })
	release()
	h.Await(t, "all frames", func() bool { return len(h.Frames) == sent+1 })
}

// After Close there is an error for every use, also for one that waits.
func (s Suite) closed(t *testing.T) {
	ts, _, _, _ := s.nodes(t, 2)
	l, err := net.Listen("tcp", anywhere) // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ts[0].Meet(7, l.Addr().String())
	fill := func(ctx context.Context) error { // sends until the queue is full and ctx ends
		for {
			if err := ts[0].Send(ctx, 7, fabric.User, make([]byte, fabric.MaxFrame)); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = fill(ctx)
	waiting := make(chan error, 1) // a Send waits, now or soon: on a busy host the queue may not be full yet
	go func() { waiting <- fill(context.Background()) }()
	if err := ts[0].Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-waiting:
		if !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("a Send that waited: %v", err)
		}
	case <-time.After(Patience):
		t.Fatal("a Send waits for ever")
	}
	ts[0].Meet(8, l.Addr().String())
	for _, node := range []id.Node{1, 7, 8, 9} {
		if err := ts[0].Send(t.Context(), node, fabric.System, []byte("x")); !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("Send to node%d: %v", node, err)
		}
		if _, err := ts[0].Stream(t.Context(), node, "echo"); !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("Stream to node%d: %v", node, err)
		}
	}
}

func (s Suite) streamToNowhere(t *testing.T) {
	ts, _, _, _ := s.nodes(t, 1)
	if _, err := ts[0].Stream(t.Context(), 7, "echo"); !errors.Is(err, fabric.ErrUnknownNode) {
		t.Errorf("Stream to a node never met: %v", err)
	}
	l, err := net.Listen("tcp", anywhere)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ts[0].Meet(7, l.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := ts[0].Stream(ctx, 7, "echo"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stream to a node that does not answer: %v", err)
	}
}
