package tcp

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/fabric/fabrictest"
)

// machine makes the configurations of the nodes of a test.
type machine struct{ *fabrictest.Machine }

func newMachine(t testing.TB) *machine { return &machine{fabrictest.NewMachine(t)} }

func (m *machine) config(t testing.TB, node id.Node, h fabric.Handler) Config {
	t.Helper()
	accept, connect := m.Credentials(t, node)
	return Config{Self: node, Accept: accept, Connect: connect, Peer: fabrictest.PeerNode, Handler: h, Log: t.Logf}
}

func TestContract(t *testing.T) {
	fabrictest.Suite{Leaks: check.Leaks, Rounds: check.Rounds, Machine: func(t testing.TB) fabrictest.New {
		m := newMachine(t)
		return func(t testing.TB, node id.Node, address string, h fabric.Handler) (fabric.Transport, string) {
			l := listen(t, address)
			return New(l, m.config(t, node, h)), l.Addr().String()
		}
	}}.Run(t)
}

func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// nodes starts n nodes that know each other. When the test is over, nothing of them may be left.
func nodes(t testing.TB, m *machine, n int) (ts []*Transport, rs []*fabrictest.Recorder) {
	t.Helper()
	check.Leaks(t)
	var addresses []string
	for i := range n {
		l := listen(t, "127.0.0.1:0")
		r := fabrictest.NewRecorder()
		tr := New(l, m.config(t, id.Node(i), r))
		t.Cleanup(func() { tr.Close() })
		ts, rs, addresses = append(ts, tr), append(rs, r), append(addresses, l.Addr().String())
	}
	for _, tr := range ts {
		for i, a := range addresses {
			tr.Meet(id.Node(i), a)
		}
	}
	return ts, rs
}

// Strangers that say nothing get little room, and nodes are served beside them.
func TestSilentStrangers(t *testing.T) {
	ts, _ := nodes(t, newMachine(t), 2)
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}} // nodes and strangers have addresses of their own
	const tries = 3 * strangersEach
	ended := make(chan error, tries)
	for range tries {
		c, err := from.DialContext(t.Context(), "tcp", ts[0].listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() {
			_, err := io.ReadAll(c)
			ended <- err
		}()
	}
	for range tries - strangersEach {
		select {
		case <-ended:
		case <-time.After(openTimeout / 2): // before the others have waited for too long
			t.Fatal("more connections of strangers are kept than are to be")
		}
	}
	c, err := ts[1].Stream(t.Context(), 0, "echo")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if len(ended) > 0 {
		t.Error("no connection of a stranger is kept: it has no time to show who it is")
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{255, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		buf := make([]byte, fabric.MaxFrame)
		r := bytes.NewReader(data)
		for {
			frame, err := readFrame(r, buf)
			if err != nil {
				return
			}
			if len(frame) > fabric.MaxFrame {
				t.Fatal("frame larger than allowed")
			}
		}
	})
}

func BenchmarkFrames(b *testing.B) {
	ts, rs := nodes(b, newMachine(b), 2)
	frame := make([]byte, 4096)
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		ts[0].Send(b.Context(), 1, fabric.User, frame)
	}
	rs[1].Await(b, "frames", func() bool { return len(rs[1].Frames) >= b.N })
}

// Both sides of a connection report the other's address: one before it connects, and the other when
// it accepts.
func TestReach(t *testing.T) {
	check.Leaks(t)
	m := newMachine(t)
	var ts []*Transport
	var reached []chan netip.Addr
	for i, address := range []string{"127.0.0.2:0", "127.0.0.3:0"} {
		c := m.config(t, id.Node(i), fabrictest.NewRecorder())
		addresses := make(chan netip.Addr, 8)
		c.Reach = func(a netip.Addr) { addresses <- a }
		tr := New(listen(t, address), c)
		t.Cleanup(func() { tr.Close() })
		ts, reached = append(ts, tr), append(reached, addresses)
	}
	ts[0].Meet(1, ts[1].listener.Addr().String())
	conn, err := ts[0].Stream(t.Context(), 1, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for side, want := range []string{"127.0.0.3", "127.0.0.1"} { // Linux chooses the second one
		if got := <-reached[side]; got.String() != want {
			t.Errorf("node%d reports %v", side, got)
		}
	}
}
