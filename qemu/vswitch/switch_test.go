package vswitch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/internal/check"
	"margay/qemu/ether"
)

// patience bounds every wait of a test for something that must happen.
const patience = 20 * time.Second

func mac(n int) ether.MAC { return ether.MAC{0x52, 0x54, 0, 0, byte(n >> 8), byte(n)} }

// lab is a switch with n ports "p0", "p1", ...
type lab struct {
	*Switch
	t   testing.TB
	log *check.Buffer
}

func newLab(t testing.TB, n int, adjust ...func(*Config)) *lab {
	t.Helper()
	dir := t.TempDir()
	log := &check.Buffer{}
	cfg := Config{Log: slog.New(slog.NewTextHandler(log, nil))}
	for i := range n {
		cfg.Ports = append(cfg.Ports, PortConfig{
			Name:   fmt.Sprintf("p%d", i),
			MAC:    mac(i),
			Socket: filepath.Join(dir, fmt.Sprintf("p%d.sock", i)),
		})
	}
	for _, f := range adjust {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &lab{s, t, log}
}

// peer is plugged into a port.
type peer struct {
	t    testing.TB
	conn *net.UnixConn
	r    *ether.Reader
	mac  ether.MAC
}

// plug connects a new peer and waits until the port has it.
func (l *lab) plug(i int) *peer {
	l.t.Helper()
	port := l.Ports()[i]
	before := port.Stats().Connections
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: port.Socket(), Net: "unix"})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	check.AwaitFor(l.t, patience, "the port to accept", func() bool { return port.Stats().Connections > before })
	return &peer{l.t, conn, ether.NewReader(conn), port.MAC()}
}

func frame(dst, src ether.MAC, payload string) []byte {
	f := append(append([]byte(nil), dst[:]...), src[:]...)
	return append(append(f, 0x88, 0xb5), payload...)
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) send(dst ether.MAC, payload string) {
	p.t.Helper()
	p.write(ether.Append(nil, frame(dst, p.mac, payload)))
}

// expect reads the next frame and compares source and payload.
func (p *peer) expect(src ether.MAC, payload string) {
	p.t.Helper()
	p.conn.SetReadDeadline(time.Now().Add(patience))
	f, err := p.r.Next()
	if err != nil {
		p.t.Fatalf("wait for %q: %v", payload, err)
	}
	if ether.Source(f) != src || string(f[ether.HeaderLen:]) != payload {
		p.t.Fatalf("got %q from %v, want %q from %v", f[ether.HeaderLen:], ether.Source(f), payload, src)
	}
}

// expectEnd waits for the switch to close the connection.
func (p *peer) expectEnd() {
	p.t.Helper()
	p.conn.SetReadDeadline(time.Now().Add(patience))
	for {
		if _, err := p.r.Next(); errors.Is(err, os.ErrDeadlineExceeded) {
			p.t.Fatal("the connection is still open")
		} else if err != nil {
			return
		}
	}
}

func TestForwarding(t *testing.T) {
	l := newLab(t, 3)
	a, b, c := l.plug(0), l.plug(1), l.plug(2)

	a.send(b.mac, "unicast")
	b.expect(a.mac, "unicast")
	b.send(a.mac, "answer")
	a.expect(b.mac, "answer")
	c.send(ether.Broadcast, "to all")
	a.expect(c.mac, "to all")
	b.expect(c.mac, "to all")
	b.send(ether.MAC{0x33, 0x33, 0, 0, 0, 1}, "to a group")
	a.expect(b.mac, "to a group")
	c.expect(b.mac, "to a group")

	big := strings.Repeat("x", ether.MaxFrame-ether.HeaderLen)
	a.send(c.mac, big)
	c.expect(a.mac, big)

	want := Stats{Connected: true, Connections: 3, RxFrames: 5, TxFrames: 7}
	check.AwaitFor(t, patience, "the counters", func() bool { return l.Stats().TxFrames == want.TxFrames })
	got := l.Stats()
	if got.RxBytes == 0 || got.TxBytes <= got.RxBytes {
		t.Errorf("bytes: received %d, sent %d", got.RxBytes, got.TxBytes)
	}
	if got.RxBytes, got.TxBytes = 0, 0; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestDropsAreCounted(t *testing.T) {
	l := newLab(t, 3)
	a, b := l.plug(0), l.plug(1)
	a.write(ether.Append(nil, []byte("runt")))
	a.write(ether.Append(nil, frame(b.mac, b.mac, "a forged source")))
	a.write(ether.Append(nil, frame(b.mac, ether.Broadcast, "a forged source")))
	a.send(mac(77), "unknown destination")
	a.send(a.mac, "own address")
	a.send(mac(2), "nobody there")
	a.send(ether.Broadcast, "one of two is there")
	b.expect(a.mac, "one of two is there")

	if got, want := l.Port("p0").Stats().Drops, (Drops{Runt: 1, Source: 2, Unknown: 2}); got != want {
		t.Errorf("p0: got %+v, want %+v", got, want)
	}
	check.AwaitFor(t, patience, "the last copy's drop", func() bool { return l.Port("p2").Stats().Drops == Drops{Absent: 2} })
	if got := l.Port("p1").Stats().Drops; got != (Drops{}) {
		t.Errorf("p1: got %+v, want none", got)
	}
}

func TestMalformedLengthEndsOneConnection(t *testing.T) {
	for name, length := range map[string]uint32{"zero": 0, "too long": ether.MaxFrame + 1, "text": 0x47455420} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 2)
			a, b := l.plug(0), l.plug(1)
			a.write(binary.BigEndian.AppendUint32(nil, length))
			a.expectEnd()
			check.AwaitFor(t, patience, "the reason", func() bool {
				return strings.Contains(l.log.String(), "port=p0") && strings.Contains(l.log.String(), ether.ErrLength.Error())
			})
			a = l.plug(0)
			b.send(a.mac, "still here")
			a.expect(b.mac, "still here")
		})
	}
}

func TestPeersComeAndGo(t *testing.T) {
	l := newLab(t, 2)
	b := l.plug(1)
	for i := range 3 {
		a := l.plug(0)
		want := fmt.Sprintf("to peer %d", i)
		b.send(a.mac, want)
		a.expect(b.mac, want)
		a.conn.Close()
		check.AwaitFor(t, patience, "the port to be free", func() bool { return !l.Port("p0").Stats().Connected })
	}
	old := l.plug(0)
	young := l.plug(0)
	old.expectEnd()
	b.send(young.mac, "to the newer one")
	young.expect(b.mac, "to the newer one")
	if !strings.Contains(l.log.String(), errReplaced.Error()) {
		t.Errorf("the log does not tell of the replacement:\n%s", l.log)
	}
}

func TestStoppedPeerLosesOnlyItsOwnFrames(t *testing.T) {
	const queue = 256 << 10
	l := newLab(t, 3, func(c *Config) { c.Queue = queue })
	a, stopped, c := l.plug(0), l.plug(1), l.plug(2)
	payload := strings.Repeat("x", 1000)
	burst := bytes.Repeat(ether.Append(nil, frame(stopped.mac, a.mac, payload)), 100)
	for range 100 {
		a.write(burst)
	}
	a.send(c.mac, "past the stopped peer")
	c.expect(a.mac, "past the stopped peer")
	full := l.Port("p1").Stats().Drops.Full
	if full == 0 || full >= 10000 {
		t.Fatalf("%d of 10000 frames dropped", full)
	}
	// The oldest frames are the ones that are kept, whole and in order.
	for range 10000 - full {
		stopped.expect(a.mac, payload)
	}
	a.send(stopped.mac, "after it went on")
	stopped.expect(a.mac, "after it went on")
}

// A peer that sends more than another takes leaves room for what others send to it.
func TestFloodLeavesRoom(t *testing.T) {
	const queue, frames = 256 << 10, 10
	l := newLab(t, 4, func(c *Config) { c.Queue = queue })
	flooder, second, honest, slow := l.plug(0), l.plug(1), l.plug(2), l.plug(3)
	payload := strings.Repeat("x", 1000)
	flood := func(p *peer) {
		p.write(bytes.Repeat(ether.Append(nil, frame(slow.mac, p.mac, payload)), 4000))
		check.AwaitFor(t, patience, "the flood to come", func() bool { return l.table.Load().byMAC[p.mac].Stats().RxFrames == 4000 })
	}
	flood(flooder)
	flood(second)
	before := l.Port("p3").Stats().Drops.Full
	for i := range frames {
		honest.send(slow.mac, fmt.Sprint(i, payload))
	}
	check.AwaitFor(t, patience, "the frames to come", func() bool { return l.Port("p2").Stats().RxFrames == frames })
	if full := l.Port("p3").Stats().Drops.Full; before == 0 || full != before {
		t.Fatalf("%d frames of the floods and %d others were dropped", before, full-before)
	}
	for next := 0; next < frames; {
		slow.conn.SetReadDeadline(time.Now().Add(patience))
		f, err := slow.r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ether.Source(f) != honest.mac {
			continue
		}
		if got := string(f[ether.HeaderLen:]); got != fmt.Sprint(next, payload) {
			t.Fatalf("%.10q came, want frame %d", got, next)
		}
		next++
	}
	// Written frames no longer take room.
	out := l.Port("p3").session.Load().out
	check.AwaitFor(t, patience, "the queue to be written", func() bool {
		slow.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		slow.r.Next() // the second's frame
		out.mu.Lock()
		defer out.mu.Unlock()
		return out.bytes == 0
	})
	for source, waiting := range out.waiting {
		if *waiting != 0 {
			t.Errorf("%d bytes of %v wait in an empty queue", *waiting, source)
		}
	}
}

func TestFramesOfAGonePeerAreCounted(t *testing.T) {
	l := newLab(t, 2)
	a, gone := l.plug(0), l.plug(1)
	one := ether.Append(nil, frame(gone.mac, a.mac, strings.Repeat("x", 1000)))
	const sent = 2000 // more than a socket holds
	a.write(bytes.Repeat(one, sent))
	check.AwaitFor(t, patience, "the frames to arrive", func() bool { return l.Port("p0").Stats().RxFrames == sent })
	gone.conn.Close()
	check.AwaitFor(t, patience, "each frame to be accounted for", func() bool {
		s := l.Port("p1").Stats()
		return s.TxFrames+s.Drops.Total() == sent && s.Drops.Unsent > 0
	})
}

func TestConcurrentPeers(t *testing.T) {
	const ports, each = 8, 2000
	l := newLab(t, ports, func(c *Config) { c.Queue = 64 << 20 })
	var peers []*peer
	for i := range ports {
		peers = append(peers, l.plug(i))
	}
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			for k := range each {
				// To the others in turn, never to oneself.
				p.send(mac((i+1+k%(ports-1))%ports), fmt.Sprint(k))
			}
		})
		wg.Go(func() {
			last := map[ether.MAC]int{}
			p.conn.SetReadDeadline(time.Now().Add(patience))
			for range each {
				f, err := p.r.Next()
				if err != nil {
					t.Error(err)
					return
				}
				var k int
				fmt.Sscan(string(f[ether.HeaderLen:]), &k)
				if prev, seen := last[ether.Source(f)]; seen && k <= prev {
					t.Errorf("frame %d after %d", k, prev)
				}
				last[ether.Source(f)] = k
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			l.Stats()
			l.Port("p3").SetFault(l.Port("p3").Fault())
			time.Sleep(time.Millisecond)
		}
	})
	wg.Wait()
	if d := l.Stats().Drops; d != (Drops{}) {
		t.Errorf("dropped: %+v", d)
	}
}

func TestConfigIsChecked(t *testing.T) {
	dir := t.TempDir()
	sock := func(n string) string { return filepath.Join(dir, n) }
	file := sock("file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ok := PortConfig{Name: "a", MAC: mac(1), Socket: sock("a")}
	cases := []struct {
		name, want string
		second     PortConfig
	}{
		{"no name", "no name", PortConfig{MAC: mac(2), Socket: sock("b")}},
		{"name twice", "used twice", PortConfig{Name: "a", MAC: mac(2), Socket: sock("b")}},
		{"no address", "not the address of one station", PortConfig{Name: "b", Socket: sock("b")}},
		{"group address", "not the address of one station", PortConfig{Name: "b", MAC: ether.Broadcast, Socket: sock("b")}},
		{"address twice", `port "a"'s`, PortConfig{Name: "b", MAC: mac(1), Socket: sock("b")}},
		{"path too long", "at most 107", PortConfig{Name: "b", MAC: mac(2), Socket: sock(strings.Repeat("b", 108))}},
		{"no directory", "no such file", PortConfig{Name: "b", MAC: mac(2), Socket: sock("none/b")}},
		{"not a socket", "in use", PortConfig{Name: "b", MAC: mac(2), Socket: file}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(Config{Ports: []PortConfig{ok, c.second}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ...%s...", err, c.want)
			}
			if _, err := os.Stat(ok.Socket); !os.IsNotExist(err) {
				t.Errorf("the first port's socket is left: %v", err)
			}
		})
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	l := newLab(t, 1, func(c *Config) {
		old, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Ports[0].Socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		old.SetUnlinkOnClose(false)
		old.Close()
	})
	l.plug(0)
	if info, err := os.Stat(l.Port("p0").Socket()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	cycle(t, dir) // opens what the process keeps, such as the poller
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range 5 {
		cycle(t, dir)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v %v", left, err)
	}
	check.AwaitFor(t, patience, "goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
	check.AwaitFor(t, patience, "descriptors to be closed", func() bool { return openFiles(t) <= files })
}

// cycle closes a switch with free, used, delayed and stopped ports.
func cycle(t *testing.T, dir string) {
	cfg := Config{}
	for i := range 4 {
		cfg.Ports = append(cfg.Ports, PortConfig{Name: fmt.Sprint(i), MAC: mac(i), Socket: filepath.Join(dir, fmt.Sprint(i))})
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{s, t, nil}
	a, delayed, stopped := l.plug(0), l.plug(1), l.plug(2)
	if err := s.Port("1").SetFault(Fault{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	a.send(delayed.mac, "never arrives")
	for range 20 {
		a.send(stopped.mac, strings.Repeat("x", 60000))
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	a.expectEnd()
	for _, p := range []*peer{a, delayed, stopped} {
		p.conn.Close()
	}
}

func openFiles(t *testing.T) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc to count descriptors: ", err)
	}
	return len(d)
}

func TestFaultsOnTheSwitch(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.plug(0), l.plug(1)
	set := func(f Fault) {
		t.Helper()
		if err := l.Port("p1").SetFault(f); err != nil || l.Port("p1").Fault() != f {
			t.Fatal(err, l.Port("p1").Fault())
		}
	}
	set(Fault{Cut: true})
	a.send(b.mac, "cut")
	b.send(a.mac, "cut")
	check.AwaitFor(t, patience, "both to be cut", func() bool { return l.Port("p1").Stats().Drops.Cut == 2 })

	set(Fault{Loss: 1})
	a.send(b.mac, "lost")
	check.AwaitFor(t, patience, "the loss", func() bool { return l.Port("p1").Stats().Drops.Lost == 1 })

	const delay = 30 * time.Millisecond
	set(Fault{Delay: delay})
	start := time.Now()
	a.send(b.mac, "late")
	b.expect(a.mac, "late")
	b.send(a.mac, "late too")
	a.expect(b.mac, "late too")
	if d := time.Since(start); d < 2*delay {
		t.Errorf("there and back took %v, want %v or more", d, 2*delay)
	}

	set(Fault{})
	a.send(b.mac, "sound")
	b.expect(a.mac, "sound")
	for _, bad := range []Fault{{Loss: -0.1}, {Loss: 1.1}, {Delay: -1}, {Rate: -1}} {
		if l.Port("p1").SetFault(bad) == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestOnlyTheOwnUserMayConnect(t *testing.T) {
	for _, c := range []struct {
		peer, own int
		want      bool
	}{{1000, 1000, true}, {0, 1000, true}, {0, 0, true}, {1001, 1000, false}, {1000, 0, false}} {
		if got := mayConnect(c.peer, c.own); got != c.want {
			t.Errorf("user %d to a switch of %d: %v", c.peer, c.own, got)
		}
	}
}

// Peers that drop the connection at once must not disturb the port.
func TestConnectStorm(t *testing.T) {
	l := newLab(t, 2)
	b := l.plug(1)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				c, err := net.Dial("unix", l.Port("p0").Socket())
				if err != nil {
					t.Error(err)
					return
				}
				c.Write(ether.Append(nil, frame(b.mac, mac(0), "hello")))
				c.Close()
			}
		})
	}
	go io.Copy(io.Discard, b.conn)
	wg.Wait()
	check.AwaitFor(t, patience, "the last one to go", func() bool {
		s := l.Port("p0").Stats()
		return s.Connections == 400 && !s.Connected
	})
}

// Ports come and go beside others, whose traffic goes on.
func TestAddAndRemove(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.plug(0), l.plug(1)
	third := PortConfig{Name: "p2", MAC: mac(2), Socket: filepath.Join(t.TempDir(), "p2.sock")}
	for range 2 {
		if _, err := l.Add(third); err != nil {
			t.Fatal(err)
		}
		c := l.plug(2)
		a.send(c.mac, "to the third")
		c.expect(a.mac, "to the third")
		c.send(ether.Broadcast, "to all")
		a.expect(c.mac, "to all")
		b.expect(c.mac, "to all")
		if _, err := l.Add(third); err == nil {
			t.Error("a name is added twice")
		}
		if err := errors.Join(l.Remove("p2"), l.Remove("p2")); err != nil {
			t.Error(err)
		}
		c.expectEnd()
		if _, err := os.Stat(third.Socket); !errors.Is(err, os.ErrNotExist) || l.Port("p2") != nil || len(l.Ports()) != 2 {
			t.Errorf("the port is still there: %v", err)
		}
		a.send(c.mac, "to a port that has left")
		a.send(b.mac, "to the second")
		b.expect(a.mac, "to the second")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Add(third); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a port is added to a switch that is closed: %v", err)
	}
}
