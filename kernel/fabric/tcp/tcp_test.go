package tcp

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
)

// machine makes certificates for the nodes of a test.
type machine struct {
	pool *x509.CertPool
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "m"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{pool: x509.NewCertPool(), key: key}
	m.cert, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	m.pool.AddCert(m.cert)
	return m
}

func (m *machine) config(t testing.TB, node id.Node, h fabric.Handler) Config {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: strconv.Itoa(int(node))},
		DNSNames: []string{"node"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, m.cert, pub, m.key)
	if err != nil {
		t.Fatal(err)
	}
	own := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return Config{
		Self:    node,
		Accept:  &tls.Config{Certificates: own, ClientCAs: m.pool, ClientAuth: tls.RequireAndVerifyClientCert},
		Connect: &tls.Config{Certificates: own, RootCAs: m.pool, ServerName: "node"},
		Peer: func(s tls.ConnectionState) (id.Node, error) {
			n, err := strconv.Atoi(s.PeerCertificates[0].Subject.CommonName)
			return id.Node(n), err
		},
		Handler: h,
		Log:     t.Logf,
	}
}

// recorder is a handler that records its calls.
type recorder struct {
	mu     sync.Mutex
	cond   sync.Cond
	frames []string
	broken []error
}

func newRecorder() *recorder {
	r := new(recorder)
	r.cond.L = &r.mu
	return r
}

func (r *recorder) Frame(from id.Node, frame []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames = append(r.frames, fmt.Sprintf("%d:%s", from, frame))
	r.cond.Broadcast()
}

func (r *recorder) Broken(node id.Node, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, err)
	r.cond.Broadcast()
}

func (r *recorder) Stream(from id.Node, service string, c net.Conn) {
	defer c.Close()
	fmt.Fprintf(c, "node%d wants %s: ", from, service)
	io.Copy(c, c)
}

func (r *recorder) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	timer := time.AfterFunc(20*time.Second, r.cond.Broadcast)
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s; %d frames, broken %v", what, len(r.frames), r.broken)
		}
		r.cond.Wait()
	}
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
func nodes(t testing.TB, m *machine, n int) (ts []*Transport, rs []*recorder) {
	t.Helper()
	check.Leaks(t)
	var addresses []string
	for i := range n {
		l := listen(t, "127.0.0.1:0")
		r := newRecorder()
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

func TestFramesInOrder(t *testing.T) {
	ts, rs := nodes(t, newMachine(t), 2)
	const n = 5000
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
		r.await(t, "all frames", func() bool { return len(r.frames) == n })
		for i, f := range r.frames {
			if f != fmt.Sprintf("%d:%d", 1-to, i) {
				t.Fatalf("frame %d at node%d is %s", i, to, f)
			}
		}
		if len(r.broken) > 0 {
			t.Errorf("connections broke: %v", r.broken)
		}
	}
}

func TestStream(t *testing.T) {
	ts, _ := nodes(t, newMachine(t), 2)
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

// A node kernel that was killed comes back at the same address; its peer still has the old
// connection.
func TestRestart(t *testing.T) {
	m := newMachine(t)
	ts, rs := nodes(t, m, 1)
	l := listen(t, "127.0.0.1:0")
	address := l.Addr().String()
	second := newRecorder()
	t1 := New(l, m.config(t, 1, second))
	ts[0].Meet(1, address)
	t1.Meet(0, ts[0].listener.Addr().String())
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("one")); err != nil {
		t.Fatal(err)
	}
	second.await(t, "frame", func() bool { return len(second.frames) == 1 })
	t1.Close()
	rs[0].await(t, "break", func() bool { return len(rs[0].broken) == 1 })

	again := newRecorder()
	t1 = New(listen(t, address), m.config(t, 1, again))
	defer t1.Close()
	if err := ts[0].Send(t.Context(), 1, fabric.System, []byte("two")); err != nil {
		t.Fatal(err)
	}
	again.await(t, "frame after the restart", func() bool { return len(again.frames) == 1 })
}

func TestUnreachable(t *testing.T) {
	ts, _ := nodes(t, newMachine(t), 1)
	if err := ts[0].Send(t.Context(), 7, fabric.User, []byte("x")); !errors.Is(err, fabric.ErrUnknownNode) {
		t.Errorf("Send to a node never met: %v", err)
	}
	l := listen(t, "127.0.0.1:0")
	ts[0].Meet(7, l.Addr().String())
	l.Close()
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

func TestStrangerIsRefused(t *testing.T) {
	m, other := newMachine(t), newMachine(t)
	ts, rs := nodes(t, m, 1)
	stranger := New(listen(t, "127.0.0.1:0"), other.config(t, 1, newRecorder()))
	defer stranger.Close()
	stranger.Meet(0, ts[0].listener.Addr().String())
	if _, err := stranger.Stream(t.Context(), 0, "echo"); err == nil {
		t.Error("a node of another machine opened a stream")
	}
	raw, err := net.Dial("tcp", ts[0].listener.Addr().String())
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
	rs[0].mu.Lock()
	defer rs[0].mu.Unlock()
	if len(rs[0].frames) > 0 {
		t.Errorf("frames from strangers: %v", rs[0].frames)
	}
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

// Every test checks that nothing leaks; here all kinds of connection are in use when the transports
// are closed.
func TestCloseInUse(t *testing.T) {
	ts, rs := nodes(t, newMachine(t), 3)
	for i := range 3 {
		ts[i].Send(t.Context(), id.Node((i+1)%3), fabric.User, []byte("x"))
	}
	for _, r := range rs {
		r.await(t, "frame", func() bool { return len(r.frames) == 1 })
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
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a stream outlives its transport")
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
	rs[1].await(b, "frames", func() bool { return len(rs[1].frames) >= b.N })
}

// Two nodes that use their connection for the first time at the same moment agree on one, and lose
// nothing.
func TestBothFirst(t *testing.T) {
	m := newMachine(t)
	for range 50 {
		ts, rs := nodes(t, m, 2)
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
			r.await(t, "three frames", func() bool { return len(r.frames) == 3 })
			r.mu.Lock()
			if len(r.broken) > 0 {
				t.Fatalf("a connection broke: %v", r.broken)
			}
			r.mu.Unlock()
		}
		for _, tr := range ts {
			tr.Close()
		}
	}
}
