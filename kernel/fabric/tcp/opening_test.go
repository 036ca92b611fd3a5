package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
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

// player is a node that a test plays by hand, to say the wrong things at the wrong moments.
type player struct {
	t        *testing.T
	config   Config
	listener net.Listener
}

func newPlayer(t *testing.T, m *machine, node id.Node) *player {
	t.Helper()
	p := &player{t: t, config: m.config(t, node, nil), listener: listen(t, "127.0.0.1:0")}
	t.Cleanup(func() { p.listener.Close() })
	return p
}

func (p *player) address() string { return p.listener.Addr().String() }

// dial connects to a node and says something.
func (p *player) dial(to *Transport, say string) *tls.Conn {
	p.t.Helper()
	c, err := tls.Dial("tcp", to.listener.Addr().String(), p.config.Connect)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, say); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// accept takes a connection and its opening.
func (p *player) accept() *tls.Conn {
	p.t.Helper()
	raw, err := p.listener.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	c := tls.Server(raw, p.config.Accept)
	p.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if line, err := readLine(c); err != nil || line != "margay 1 frames -" {
		p.t.Fatalf("the opening is %q, %v", line, err)
	}
	return c
}

// It checks the next input of a connection.
func (p *player) hears(c net.Conn, want string) {
	p.t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		p.t.Fatalf("%q came, want %q: %v", got[:n], want, err)
	}
}

// ends checks that nothing comes any more on a connection.
func (p *player) ends(c net.Conn) {
	p.t.Helper()
	if rest, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) || len(rest) > 0 {
		p.t.Errorf("the connection was not ended: %q, %v", rest, err)
	}
}

func say(frame string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(frame)))) + frame
}

const opening = "margay 1 frames -\n"

// An opening that is none ends its connection, and nothing else.
func TestHostileOpening(t *testing.T) {
	m := newMachine(t)
	for name, line := range map[string]string{
		"another version": "margay 2 frames -\n",
		"another name":    "ocelot 1 frames -\n",
		"too few words":   "margay 1 frames\n",
		"too many words":  "margay 1 frames - -\n",
		"no words":        "\n",
		"unknown kind":    "margay 1 dance -\n",
		"no end":          strings.Repeat("x", maxLine),
		"no kind":         "margay 1  -\n",
		"zeroes":          strings.Repeat("\x00", 50) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			ts, rs := nodes(t, m, 1)
			p := newPlayer(t, m, 1)
			p.ends(p.dial(ts[0], line))
			good := p.dial(ts[0], opening)
			p.hears(good, "y")
			io.WriteString(good, "y"+say("hello"))
			rs[0].await(t, "frame", func() bool { return len(rs[0].frames) == 1 && rs[0].frames[0] == "1:hello" })
		})
	}
}

// A frame that is too long or truncated ends the connection, which is reported to the handler once.
func TestHostileFrames(t *testing.T) {
	m := newMachine(t)
	for name, end := range map[string]string{
		"too long":         "\x00\x01\x00\x01",
		"far too long":     "\xff\xff\xff\xff",
		"half a length":    "\x00\x00",
		"half a frame":     "\x00\x00\x00\x05half",
		"nothing any more": "",
	} {
		t.Run(name, func(t *testing.T) {
			ts, rs := nodes(t, m, 1)
			p := newPlayer(t, m, 1)
			c := p.dial(ts[0], opening)
			p.hears(c, "y")
			whole := strings.Repeat("x", fabric.MaxFrame)
			io.WriteString(c, "y"+say("")+say(whole)+end)
			c.CloseWrite()
			rs[0].await(t, "break", func() bool { return len(rs[0].broken) == 1 })
			p.ends(c)
			if len(rs[0].frames) != 2 || rs[0].frames[0] != "1:" || rs[0].frames[1] != "1:"+whole {
				t.Errorf("%d frames came", len(rs[0].frames))
			}
		})
	}
}

// A node that opens streams without end is stopped; others are not, and it can go on when it has
// closed some.
func TestStreamsWithoutEnd(t *testing.T) {
	m := newMachine(t)
	ts, _ := nodes(t, m, 2)
	p := newPlayer(t, m, 7)
	const greeting = "node7 wants x: "
	var open []*tls.Conn
	for range opensEach {
		c := p.dial(ts[0], "margay 1 stream x\n")
		p.hears(c, greeting)
		open = append(open, c)
	}
	p.ends(p.dial(ts[0], "margay 1 stream x\n"))
	c, err := ts[1].Stream(t.Context(), 0, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.hears(c, "node1 wants x: ")
	open[0].Close()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		c := p.dial(ts[0], "")
		io.WriteString(c, "margay 1 stream x\n")
		got := make([]byte, len(greeting))
		if _, err := io.ReadFull(c, got); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	for _, c := range open {
		c.Close()
	}
}

// A node's number is in its certificate, not in its messages; a connection to the wrong node is
// closed.
func TestWrongNode(t *testing.T) {
	ts, rs := nodes(t, newMachine(t), 2)
	ts[0].Meet(5, ts[1].listener.Addr().String())
	if _, err := ts[0].Stream(t.Context(), 5, "echo"); err == nil || !strings.Contains(err.Error(), "is node1, not node5") {
		t.Errorf("a stream to node5, who is node1: %v", err)
	}
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("x")); err != nil {
		t.Fatal(err)
	}
	rs[1].await(t, "frame", func() bool { return len(rs[1].frames) == 1 })
}

// Both begin at the same moment: the connection of the lower number counts.
func TestLowerNumberCounts(t *testing.T) {
	m := newMachine(t)
	ts, rs := nodes(t, m, 1)
	p := newPlayer(t, m, 1)
	ts[0].Meet(1, p.address())
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	its := p.accept() // node 0 waits for the answer
	mine := p.dial(ts[0], opening)
	p.hears(mine, "n")
	p.ends(mine)
	io.WriteString(its, "y")
	p.hears(its, "y"+say("hello"))
	io.WriteString(its, say("answer"))
	rs[0].await(t, "frame", func() bool { return len(rs[0].frames) == 1 && rs[0].frames[0] == "1:answer" })
	if len(rs[0].broken) > 0 {
		t.Errorf("a connection broke: %v", rs[0].broken)
	}
}

// The higher number takes the other's connection while it opens its own, and lets its own go.
func TestHigherNumberYields(t *testing.T) {
	m := newMachine(t)
	r := newRecorder()
	tr := New(listen(t, "127.0.0.1:0"), m.config(t, 1, r))
	t.Cleanup(func() { tr.Close() })
	p := newPlayer(t, m, 0)
	tr.Meet(0, p.address())
	if err := tr.Send(t.Context(), 0, fabric.User, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	its := p.accept()
	mine := p.dial(tr, opening)
	p.hears(mine, "y")
	io.WriteString(its, "y") // late: there is a better one already
	p.ends(its)
	io.WriteString(mine, "y")
	p.hears(mine, say("hello"))
	if len(r.broken) > 0 {
		t.Errorf("a connection broke: %v", r.broken)
	}
}

// A refused node tries again; an abandoned opening does not block others.
func TestNoAndSilence(t *testing.T) {
	m := newMachine(t)
	ts, rs := nodes(t, m, 1)
	p := newPlayer(t, m, 1)
	ts[0].Meet(1, p.address())
	quitter := p.dial(ts[0], opening)
	p.hears(quitter, "y")
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	quitter.Close()
	for _, answer := range []string{"n", "x", ""} {
		c := p.accept()
		io.WriteString(c, answer)
		c.Close()
	}
	c := p.accept()
	io.WriteString(c, "y")
	p.hears(c, "y"+say("hello"))
	if len(rs[0].broken) > 0 {
		t.Errorf("a connection broke: %v", rs[0].broken)
	}
}

// Three nodes begin with each other at the same moment, again and again: everything comes once and
// in order.
func TestAllAtOnce(t *testing.T) {
	m := newMachine(t)
	for round := range 20 {
		ts, rs := nodes(t, m, 3)
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
			r.await(t, "frames", func() bool { return len(r.frames) >= 10 })
			r.mu.Lock()
			next := make(map[string]int)
			for _, f := range r.frames {
				from, number, _ := strings.Cut(f, ":")
				if number != fmt.Sprint(next[from]) {
					t.Errorf("round %d, node%d: %v", round, node, r.frames)
				}
				next[from]++
			}
			if len(r.frames) != 10 || len(r.broken) > 0 {
				t.Errorf("round %d, node%d: %d frames, broken %v", round, node, len(r.frames), r.broken)
			}
			r.mu.Unlock()
		}
		for _, tr := range ts {
			tr.Close()
		}
	}
}

// A broken connection is reported once to each side; later frames use a new one, and none arrives
// twice.
func TestBrokenConnection(t *testing.T) {
	ts, rs := nodes(t, newMachine(t), 2)
	for round := range 5 {
		for from := range 2 {
			if err := ts[from].Send(t.Context(), id.Node(1-from), fabric.User, fmt.Append(nil, round)); err != nil {
				t.Fatal(err)
			}
		}
		for node, r := range rs {
			r.await(t, "frame", func() bool { return len(r.frames) == round+1 && r.frames[round] == fmt.Sprintf("%d:%d", 1-node, round) })
		}
		p := ts[round%2].peer(id.Node(1 - round%2))
		p.mu.Lock()
		p.conn.(*tls.Conn).NetConn().Close()
		p.mu.Unlock()
		for _, r := range rs {
			r.await(t, "break", func() bool { return len(r.broken) == round+1 })
		}
	}
}

// System frames overtake user frames; each class keeps its order.
func TestClasses(t *testing.T) {
	m := newMachine(t)
	ts, _ := nodes(t, m, 1)
	l := listen(t, "127.0.0.1:0")
	ts[0].Meet(1, l.Addr().String())
	for i, class := range []fabric.Class{fabric.User, fabric.System, fabric.User, fabric.System} {
		if err := ts[0].Send(t.Context(), 1, class, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	r := newRecorder()
	late := New(l, m.config(t, 1, r))
	t.Cleanup(func() { late.Close() })
	r.await(t, "frames", func() bool { return len(r.frames) == 4 })
	if got := strings.Join(r.frames, " "); got != "0:1 0:3 0:0 0:2" {
		t.Errorf("frames came as %s", got)
	}
}

func TestFrameSize(t *testing.T) {
	ts, rs := nodes(t, newMachine(t), 2)
	if err := ts[0].Send(t.Context(), 1, fabric.User, make([]byte, fabric.MaxFrame+1)); err == nil {
		t.Error("too large a frame was sent")
	}
	for _, size := range []int{0, fabric.MaxFrame} {
		if err := ts[0].Send(t.Context(), 1, fabric.User, make([]byte, size)); err != nil {
			t.Error(err)
		}
	}
	rs[1].await(t, "frames", func() bool { return len(rs[1].frames) == 2 })
	if len(rs[1].frames[0]) != len("0:") || len(rs[1].frames[1]) != len("0:")+fabric.MaxFrame {
		t.Errorf("frames of %d and %d bytes came", len(rs[1].frames[0]), len(rs[1].frames[1]))
	}
}

// slow is a handler that blocks until it is released.
type slow struct {
	*recorder
	gate chan struct{}
}

func (s slow) Frame(from id.Node, frame []byte) {
	<-s.gate
	s.recorder.Frame(from, frame)
}

// A node that does not receive blocks its senders, except for system frames, and no other node.
func TestSlowNode(t *testing.T) {
	m := newMachine(t)
	ts, rs := nodes(t, m, 2)
	s := slow{newRecorder(), make(chan struct{})}
	tr := New(listen(t, "127.0.0.1:0"), m.config(t, 2, s))
	t.Cleanup(func() { tr.Close() })
	ts[0].Meet(2, tr.listener.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var err error
	sent := 0
	for ; err == nil; sent++ {
		err = ts[0].Send(ctx, 2, fabric.User, make([]byte, fabric.MaxFrame))
	}
	if sent--; !errors.Is(err, context.DeadlineExceeded) || sent < queueBytes/fabric.MaxFrame {
		t.Errorf("after %d frames: %v", sent, err)
	}
	if err := ts[0].Send(t.Context(), 2, fabric.System, []byte("system")); err != nil {
		t.Error(err)
	}
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("x")); err != nil {
		t.Error(err)
	}
	rs[1].await(t, "frame", func() bool { return len(rs[1].frames) == 1 })
	close(s.gate)
	s.await(t, "all frames", func() bool { return len(s.frames) == sent+1 })
}

// After Close there is an error for every use, also for one that waits.
func TestClosed(t *testing.T) {
	m := newMachine(t)
	ts, _ := nodes(t, m, 2)
	l := listen(t, "127.0.0.1:0") // takes connections and never answers
	defer l.Close()
	ts[0].Meet(7, l.Addr().String())
	waiting := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			err = ts[0].Send(context.Background(), 7, fabric.User, make([]byte, fabric.MaxFrame))
		}
		waiting <- err
	}()
	p := ts[0].peer(7)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		queued := p.queued
		p.mu.Unlock()
		if queued > queueBytes {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %d bytes were queued", queued)
		}
	}
	if err := ts[0].Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-waiting:
		if !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("a Send that waited: %v", err)
		}
	case <-time.After(20 * time.Second):
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

func TestStreamToNowhere(t *testing.T) {
	ts, _ := nodes(t, newMachine(t), 1)
	if _, err := ts[0].Stream(t.Context(), 7, "echo"); !errors.Is(err, fabric.ErrUnknownNode) {
		t.Errorf("Stream to a node never met: %v", err)
	}
	l := listen(t, "127.0.0.1:0")
	defer l.Close()
	ts[0].Meet(7, l.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := ts[0].Stream(ctx, 7, "echo"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stream to a node that does not answer: %v", err)
	}
}

// text is a connection from which a text can be read.
type text struct {
	net.Conn
	*bytes.Reader
}

func (c text) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// The line ends at its end, and what follows is still there.
func FuzzReadLine(f *testing.F) {
	f.Add([]byte("margay 1 frames -\nmore"))
	f.Add([]byte("\n"))
	f.Add(bytes.Repeat([]byte("x"), 2*maxLine))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := text{Reader: bytes.NewReader(data)}
		line, err := readLine(c)
		want, rest, ok := bytes.Cut(data, []byte("\n"))
		if ok = ok && len(want) < maxLine; ok != (err == nil) {
			t.Fatalf("%q became %q, %v", data, line, err)
		}
		if ok && (line != string(want) || c.Len() != len(rest)) {
			t.Fatalf("%q became %q, %d bytes follow", data, line, c.Len())
		}
		if read := len(data) - c.Len(); read > maxLine {
			t.Fatalf("%d bytes were read", read)
		}
	})
}
