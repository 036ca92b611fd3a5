package netstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"margay/qemu/ether"
	"margay/qemu/vswitch"
)

// patience bounds every wait of a test for something that must happen.
const patience = 30 * time.Second

func mac(n int) ether.MAC      { return ether.MAC{0x52, 0x54, 0, 0, 0, byte(n)} }
func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 64, 0, byte(n)}) }
func endpoint(n int, port int) netip.AddrPort {
	return netip.AddrPortFrom(address(n), uint16(port))
}

func config(n int) Config { return Config{MAC: mac(n), Address: netip.PrefixFrom(address(n), 24)} }

// pair returns the two ends of a unix stream connection.
func pair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

func start(t testing.TB, conn net.Conn, cfg Config) *Stack {
	t.Helper()
	s, err := New(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// couple returns two stacks, stations 1 and 2, with a direct link.
func couple(t testing.TB, mtu int) (*Stack, *Stack) {
	t.Helper()
	c1, c2 := pair(t)
	cfg1, cfg2 := config(1), config(2)
	cfg1.MTU, cfg2.MTU = mtu, mtu
	return start(t, c1, cfg1), start(t, c2, cfg2)
}

// network returns n stacks, stations 1 to n, on a switch with ports "1" to "n".
func network(t testing.TB, n, mtu int) ([]*Stack, *vswitch.Switch) {
	t.Helper()
	cfg := vswitch.Config{Seed: 1}
	dir := t.TempDir()
	for i := 1; i <= n; i++ {
		name := fmt.Sprint(i)
		cfg.Ports = append(cfg.Ports, vswitch.PortConfig{Name: name, MAC: mac(i), Socket: filepath.Join(dir, name)})
	}
	sw, err := vswitch.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sw.Close() })
	var stacks []*Stack
	for i, p := range sw.Ports() {
		conn, err := net.Dial("unix", p.Socket())
		if err != nil {
			t.Fatal(err)
		}
		c := config(i + 1)
		c.MTU = mtu
		stacks = append(stacks, start(t, conn, c))
	}
	return stacks, sw
}

func listen(t testing.TB, s *Stack, port uint16) net.Listener {
	t.Helper()
	l, err := s.Listen(port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t testing.TB, s *Stack, to netip.AddrPort) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := s.DialContext(ctx, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// connect returns the two ends of a connection from a to b.
func connect(t testing.TB, a, b *Stack) (client, server net.Conn) {
	t.Helper()
	l := listen(t, b, 0)
	client = dial(t, a, l.Addr().(*net.TCPAddr).AddrPort())
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// exchange sends data both ways at once and compares what arrives.
func exchange(t *testing.T, a, b net.Conn, data []byte) {
	t.Helper()
	end := make(chan error, 4)
	for _, c := range []net.Conn{a, b} {
		c.SetDeadline(time.Now().Add(patience))
		go func() {
			_, err := c.Write(data)
			end <- err
		}()
		go func() {
			got := make([]byte, len(data))
			_, err := io.ReadFull(c, got)
			if err == nil && !bytes.Equal(got, data) {
				err = errors.New("other bytes arrived")
			}
			end <- err
		}()
	}
	for range 4 {
		if err := <-end; err != nil {
			t.Fatal(err)
		}
	}
}

func TestTransfer(t *testing.T) {
	// Packets of all sizes cost the same: thousands take seconds with the race detector.
	for mtu, size := range map[int]int{MinMTU: 1 << 19, 0: 1 << 20, 9000: 2 << 20, MaxMTU: 4 << 20} {
		t.Run(fmt.Sprintf("mtu=%d", mtu), func(t *testing.T) {
			a, b := couple(t, mtu)
			client, server := connect(t, a, b)
			exchange(t, client, server, noise(size))
			if got, want := server.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), address(1); got != want {
				t.Errorf("client's address %v, want %v", got, want)
			}
			client.Close()
			if _, err := server.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("after the client closed: %v, want EOF", err)
			}
			if a.Malformed() != 0 || b.Malformed() != 0 {
				t.Errorf("malformed: %d, %d", a.Malformed(), b.Malformed())
			}
		})
	}
}

func TestTransferThroughALossySwitch(t *testing.T) {
	stacks, sw := network(t, 2, 0)
	if err := sw.Port("2").SetFault(vswitch.Fault{Loss: 0.005, Delay: 100 * time.Microsecond}); err != nil {
		t.Fatal(err)
	}
	client, server := connect(t, stacks[0], stacks[1])
	exchange(t, client, server, noise(1<<20))
	if sw.Port("2").Stats().Drops.Lost == 0 {
		t.Error("no frame was lost")
	}
}

func TestTransferSurvivesACut(t *testing.T) {
	stacks, sw := network(t, 2, 0)
	client, server := connect(t, stacks[0], stacks[1])
	sw.Port("1").SetFault(vswitch.Fault{Cut: true})
	go func() {
		time.Sleep(500 * time.Millisecond)
		sw.Port("1").SetFault(vswitch.Fault{})
	}()
	exchange(t, client, server, noise(1<<20))
}

func TestManyConnections(t *testing.T) {
	stacks, _ := network(t, 3, 0)
	l := listen(t, stacks[0], 700)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	end := make(chan error)
	const each = 30
	data := noise(50_000)
	for i := range 2 * each {
		c := dial(t, stacks[1+i%2], endpoint(1, 700))
		c.SetDeadline(time.Now().Add(patience))
		go func() { c.Write(data) }()
		go func() {
			got := make([]byte, len(data))
			_, err := io.ReadFull(c, got)
			if err == nil && !bytes.Equal(got, data) {
				err = errors.New("other bytes came back")
			}
			end <- err
		}()
	}
	for range 2 * each {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
}

func TestDialErrors(t *testing.T) {
	a, _ := couple(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	cases := []struct {
		name, want string
		ctx        context.Context
		to         netip.AddrPort
	}{
		{"nobody listens", "refused", t.Context(), endpoint(2, 9)},
		{"outside the subnet", "10.65.0.1:9", t.Context(), netip.MustParseAddrPort("10.65.0.1:9")},
		{"no such station", "deadline", soon, endpoint(77, 9)},
		{"cancelled", "canceled", ctx, endpoint(2, 9)},
		{"IPv6", "not an IPv4 address", t.Context(), netip.MustParseAddrPort("[fe80::1]:9")},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := a.DialContext(c.ctx, c.to)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.to.String()) {
				t.Errorf("got %v, want ...%s...", err, c.want)
			}
		})
	}
}

func TestListen(t *testing.T) {
	a, _ := couple(t, 0)
	l := listen(t, a, 700)
	if _, err := a.Listen(700); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second listener: %v", err)
	}
	c := dial(t, a, endpoint(1, 700)) // to itself
	if _, err := l.Accept(); err != nil {
		t.Error(err)
	}
	c.Close()
	end := make(chan error)
	go func() {
		_, err := l.Accept()
		end <- err
	}()
	time.Sleep(10 * time.Millisecond)
	l.Close()
	if err := <-end; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

// With Reset, nothing is left of a connection that the stack closes, whatever its peer has not
// taken and whichever side has ended it before.
func TestReset(t *testing.T) {
	c1, c2 := pair(t)
	cfg := config(2)
	cfg.Reset, cfg.SendBuffer = true, 64<<10
	a, b := start(t, c1, config(1)), start(t, c2, cfg)
	l := listen(t, b, 0)
	idle := len(b.ip.RegisteredEndpoints())
	for name, end := range map[string]func(client, server *gonet.TCPConn) error{
		"open":         func(_, _ *gonet.TCPConn) error { return nil },
		"server ended": func(_, server *gonet.TCPConn) error { return server.CloseWrite() },
		"client ended": func(client, server *gonet.TCPConn) error {
			if err := client.CloseWrite(); err != nil {
				return err
			}
			server.SetReadDeadline(time.Now().Add(patience))
			if _, err := server.Read(make([]byte, 1)); err != io.EOF {
				return fmt.Errorf("read: %w", err)
			}
			return server.CloseWrite()
		},
	} {
		// On a busy host the server may wait for the stack instead of the client, which has taken
		// everything then.
		for stuck := false; !stuck; {
			client := dial(t, a, l.Addr().(*net.TCPAddr).AddrPort())
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			sent := fill(t, server)
			if err := end(client.(*gonet.TCPConn), server.(*gonet.TCPConn)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			server.Close()
			if left := len(b.ip.RegisteredEndpoints()); left != idle {
				t.Errorf("%s: %d endpoints are left", name, left-idle)
			}
			client.SetReadDeadline(time.Now().Add(patience))
			taken, err := io.Copy(io.Discard, client)
			stuck = err != nil || taken < sent
			if stuck && (err == nil || isTimeout(err)) {
				t.Errorf("%s: the client reads %d of %d bytes, to %v", name, taken, sent, err)
			}
			client.Close()
		}
	}
}

// fill sends until a connection takes nothing for a moment, which it does after some megabytes that
// its peer does not read, and returns how many bytes it took.
func fill(t *testing.T, c net.Conn) (sent int64) {
	t.Helper()
	for data := make([]byte, 64<<10); sent < 64<<20; {
		c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := c.Write(data)
		if sent += int64(n); err != nil {
			return sent
		}
	}
	t.Fatal("its peer takes everything")
	return sent
}

func isTimeout(err error) bool {
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}

func TestCloseEndsEverything(t *testing.T) {
	a, b := couple(t, 0)
	client, server := connect(t, a, b)
	l := listen(t, a, 700)
	end := make(chan error, 2)
	go func() {
		_, err := l.Accept()
		end <- err
	}()
	go func() {
		_, err := client.Read(make([]byte, 1))
		end <- err
	}()
	time.Sleep(10 * time.Millisecond)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		select {
		case err := <-end:
			if err == nil {
				t.Error("no error after Close")
			}
		case <-time.After(patience):
			t.Fatal("still blocked after Close")
		}
	}
	// The other side learns of it: its connection by a reset, its stack by the end of the link.
	server.SetReadDeadline(time.Now().Add(patience))
	if _, err := server.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the other side's connection: %v", err)
	}
	<-b.Done()
	if !errors.Is(b.Err(), io.EOF) || !errors.Is(a.Err(), net.ErrClosed) {
		t.Errorf("a: %v, b: %v", a.Err(), b.Err())
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestLinkLoss(t *testing.T) {
	conn, far := pair(t)
	s := start(t, conn, config(1))
	if s.Err() != nil {
		t.Error(s.Err())
	}
	far.Write([]byte{0xff, 0xff, 0xff, 0xff})
	<-s.Done()
	if !errors.Is(s.Err(), ether.ErrLength) {
		t.Error(s.Err())
	}
}

// A link whose peer reads nothing must not keep Close.
func TestCloseWithAStoppedPeer(t *testing.T) {
	a, b := couple(t, 0)
	client, _ := connect(t, a, b)
	b.conn.SetReadDeadline(time.Unix(0, 1)) // b stops reading
	b.reader.Wait()
	go client.Write(noise(8 << 20))
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	a.Close()
	if d := time.Since(began); d > closeGrace+patience/2 {
		t.Errorf("Close took %v", d)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no MAC":    func(c *Config) { c.MAC = ether.MAC{} },
		"group MAC": func(c *Config) { c.MAC = ether.Broadcast },
		"no prefix": func(c *Config) { c.Address = netip.Prefix{} },
		"IPv6":      func(c *Config) { c.Address = netip.MustParsePrefix("fe80::1/64") },
		"small MTU": func(c *Config) { c.MTU = MinMTU - 1 },
		"large MTU": func(c *Config) { c.MTU = MaxMTU + 1 },
		"buffer":    func(c *Config) { c.SendBuffer = minBuffer - 1 },
		"neighbor":  func(c *Config) { c.Neighbors = map[netip.Addr]ether.MAC{netip.MustParseAddr("fe80::1"): mac(2)} },
	} {
		conn, far := pair(t)
		cfg := config(1)
		spoil(&cfg)
		if _, err := New(conn, cfg); err == nil {
			t.Errorf("%s was accepted", name)
		}
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: the connection is open: %v", name, err)
		}
	}
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		a, b := couple(t, 0)
		client, server := connect(t, a, b)
		exchange(t, client, server, noise(1000))
		go a.DialContext(t.Context(), endpoint(77, 9)) // waits for ARP
		time.Sleep(10 * time.Millisecond)
		a.Close()
		b.Close()
	}
	for end := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}
