package tcp

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/fabric/fabrictest"
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
			rs[0].Await(t, "frame", func() bool { return len(rs[0].Frames) == 1 && rs[0].Frames[0] == "1:hello" })
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
			rs[0].Await(t, "break", func() bool { return len(rs[0].Breaks) == 1 })
			p.ends(c)
			if len(rs[0].Frames) != 2 || rs[0].Frames[0] != "1:" || rs[0].Frames[1] != "1:"+whole {
				t.Errorf("%d frames came", len(rs[0].Frames))
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
	rs[1].Await(t, "frame", func() bool { return len(rs[1].Frames) == 1 })
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
	rs[0].Await(t, "frame", func() bool { return len(rs[0].Frames) == 1 && rs[0].Frames[0] == "1:answer" })
	if len(rs[0].Breaks) > 0 {
		t.Errorf("a connection broke: %v", rs[0].Breaks)
	}
}

// The higher number takes the other's connection while it opens its own, and lets its own go.
func TestHigherNumberYields(t *testing.T) {
	m := newMachine(t)
	r := fabrictest.NewRecorder()
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
	if len(r.Breaks) > 0 {
		t.Errorf("a connection broke: %v", r.Breaks)
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
	if len(rs[0].Breaks) > 0 {
		t.Errorf("a connection broke: %v", rs[0].Breaks)
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
			r.Await(t, "frame", func() bool { return len(r.Frames) == round+1 && r.Frames[round] == fmt.Sprintf("%d:%d", 1-node, round) })
		}
		p := ts[round%2].peer(id.Node(1 - round%2))
		p.mu.Lock()
		p.conn.(*tls.Conn).NetConn().Close()
		p.mu.Unlock()
		for _, r := range rs {
			r.Await(t, "break", func() bool { return len(r.Breaks) == round+1 })
		}
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

// A node that does not go on with an opening is waited for as long as the transport has patience.
func TestPatience(t *testing.T) {
	m := newMachine(t)
	check.Leaks(t)
	c := m.config(t, 1, fabrictest.NewRecorder())
	c.Patience = 50 * time.Millisecond
	tr := New(listen(t, "127.0.0.1:0"), c)
	t.Cleanup(func() { tr.Close() })
	conn, err := net.Dial("tcp", tr.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begun := time.Now()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("it was answered")
	}
	if took := time.Since(begun); took >= openTimeout {
		t.Errorf("it was waited for during %v", took)
	}
}
