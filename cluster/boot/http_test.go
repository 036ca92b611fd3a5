package boot

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
)

// local makes this host node 0 of the services.
func local(c *Config) {
	c.Server = netip.MustParsePrefix("127.0.0.2/8")
	c.Hosts[0].Address = netip.MustParseAddr("127.0.0.1")
	c.Hosts[1].Address = netip.MustParseAddr("127.0.0.3")
}

func fetch(t *testing.T, method, url, rang string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if rang != "" {
		r.Header.Set("Range", rang)
	}
	return answered(t, r)
}

// answered returns the answer to a request.
func answered(t *testing.T, r *http.Request) (status int, body string) {
	t.Helper()
	client := &http.Client{Timeout: patience}
	defer client.CloseIdleConnections()
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestFetch(t *testing.T) {
	s, r := services(t, local)
	_, _, url := serve(t, s)
	const want = `#!ipxe
kernel --name linux.efi http://127.0.0.2/kernel initrd=image console=ttyS0 || goto failed
initrd --name image http://127.0.0.2/image || goto failed
boot || goto failed
:failed
echo The boot over the network has failed
reboot
`
	if status, body := fetch(t, "GET", url+ScriptPath, ""); status != 200 || body != want {
		t.Errorf("status %d, script %q", status, body)
	}
	if status, body := fetch(t, "GET", url+KernelPath, ""); status != 200 || body != strings.Repeat("k", 100<<10) {
		t.Errorf("status %d, kernel of %d bytes", status, len(body))
	}
	if status, body := fetch(t, "HEAD", url+ImagePath, ""); status != 200 || body != "" {
		t.Errorf("status %d, %d bytes", status, len(body))
	}
	if status, body := fetch(t, "GET", url+ImagePath, "bytes=0-99"); status != 206 || body != strings.Repeat("i", 100) {
		t.Errorf("status %d, %d bytes", status, len(body))
	}
	if status, body := fetch(t, "GET", url+"/ipxe.efi", ""); status != 200 || body != strings.Repeat("u", 5000) {
		t.Errorf("status %d, iPXE of %d bytes", status, len(body))
	}
	if strings.Contains(r.all(), "fetched everything") {
		t.Errorf("reports:\n%s", r.all())
	}
	if status, body := fetch(t, "GET", url+ImagePath, "bytes=307190-"); status != 206 || body != strings.Repeat("i", 10) {
		t.Errorf("status %d, %d bytes", status, len(body))
	}
	for _, report := range []string{
		"node0: it fetches the script 100", "node0: it fetches the kernel 32", "node0: it fetches the kernel 100", "node0: it fetches the node image 0",
		"node0: it has fetched everything, and starts Linux 100",
	} {
		if !strings.Contains(r.all(), report+"\n") && !strings.HasSuffix(r.all(), report) {
			t.Errorf("no report %q in:\n%s", report, r.all())
		}
	}
}

// A node that has an image of its own gets a script for it, and its files while it has it. Other
// nodes get neither.
func TestOwnImage(t *testing.T) {
	folder := t.TempDir()
	own := Own{Name: "0a", Cmdline: "quiet margay.image=0a", Kernel: filepath.Join(folder, "kernel"), Image: filepath.Join(folder, "image")}
	if err := errors.Join(os.WriteFile(own.Kernel, []byte("new kernel"), 0o600), os.WriteFile(own.Image, []byte("new image"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var has atomic.Bool
	var broken atomic.Bool
	s, r := services(t, func(c *Config) {
		local(c)
		c.Own = func(n id.Node) (Own, bool, error) {
			if broken.Load() {
				return Own{}, false, errors.New("no record")
			}
			return own, n == 0 && has.Load(), nil
		}
	})
	_, _, url := serve(t, s)
	wants := func(path string, status int, text string) {
		t.Helper()
		if got, body := fetch(t, "GET", url+path, ""); got != status || status == 200 && !strings.Contains(body, text) {
			t.Errorf("%s: status %d, %q", path, got, body)
		}
	}
	const kernel, image = "/images/0a/kernel", "/images/0a/image"
	wants(ScriptPath, 200, "http://127.0.0.2/kernel initrd=image console=ttyS0 ||")
	wants(kernel, 404, "")
	has.Store(true)
	wants(ScriptPath, 200, "http://127.0.0.2/images/0a/kernel initrd=image quiet margay.image=0a || goto failed\ninitrd --name image http://127.0.0.2/images/0a/image ||")
	wants(kernel, 200, "new kernel")
	wants(image, 200, "new image")
	for _, report := range []string{"node0: it fetches the kernel 100", "node0: it has fetched everything, and starts Linux 100"} {
		if !strings.Contains(r.all(), report) {
			t.Errorf("no report %q in:\n%s", report, r.all())
		}
	}
	for _, path := range []string{"/images/0b/kernel", "/images/0a/", "/images/0a", "/images/", "/images/../images/0a/kernel", "/images/0a/kernel/", "/images/0a/image.json"} {
		wants(path, 404, "")
	}
	if status, _ := fetch(t, "POST", url+kernel, ""); status != 405 {
		t.Errorf("a kernel is sent to: status %d", status)
	}
	own.Cmdline = "quiet; $x"
	wants(ScriptPath, 500, "")
	broken.Store(true)
	wants(ScriptPath, 500, "")
	if !strings.Contains(r.all(), "special in an iPXE script") || !strings.Contains(r.all(), `node0 asks for "/boot.ipxe": no record`) {
		t.Errorf("the log:\n%s", r.all())
	}
	wants(KernelPath, 200, "kkk") // as all nodes do
}

// Requests for several ranges, which are read beside the answer, do not disturb the percentage.
func TestRanges(t *testing.T) {
	s, _ := services(t, local)
	_, _, url := serve(t, s)
	if status, body := fetch(t, "GET", url+KernelPath, "bytes=0-50000,50010-90000"); status != 206 || strings.Count(body, "k") < 89992 {
		t.Errorf("status %d, %d bytes", status, len(body))
	}
}

func TestRefusedRequests(t *testing.T) {
	s, _ := services(t, local)
	_, _, url := serve(t, s)
	for _, path := range []string{
		"/", "", "/boot.ipxe/", "//kernel", "/../kernel", "/x/../kernel", "/%2e%2e/etc/passwd", "/../../../etc/passwd", "/kernel%00", "/etc/passwd",
		"/KERNEL", "/undionly.kpxe", "/machine.json", "/nodes/node0.json",
	} {
		if status, body := raw(t, url, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); status != 404 && status != 400 {
			t.Errorf("%s: status %d, %.80q", path, status, body)
		}
	}
	for text, want := range map[string]int{
		"POST /kernel HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n":                     405,
		"GET /kernel HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx":                     400,
		"GET /kernel HTTP/1.1\r\nHost: x\r\nConnection: close\r\nRange: bytes=999999-\r\n\r\n":                   416,
		"GET /kernel HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n": 431,
		"\x16\x03\x01\x00\r\n\r\n": 400,
	} {
		if status, body := raw(t, url, text); status != want {
			t.Errorf("%.80q: status %d, %.80q", text, status, body)
		}
	}
}

// raw sends a text, which need not be a request, and returns the answer. It tries again when its
// connection is reset: the last ones of this station count until the services have seen their end.
func raw(t *testing.T, url, text string) (status int, body string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		status, body, err := once(strings.TrimPrefix(url, "http://"), text)
		if err == nil {
			return status, body
		}
		if !errors.Is(err, syscall.ECONNRESET) || time.Now().After(deadline) {
			t.Fatalf("%.80q: %v", text, err)
		}
	}
}

func once(address, text string) (status int, body string, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0, "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	go io.WriteString(c, text)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(all), err
}

// A station that is not a node gets nothing.
func TestStranger(t *testing.T) {
	s, _ := services(t, func(c *Config) {
		local(c)
		c.Hosts[0].Address = netip.MustParseAddr("127.0.0.4")
	})
	_, _, url := serve(t, s)
	if status, body := fetch(t, "GET", url+KernelPath, ""); status != 403 || strings.Contains(body, "kkk") {
		t.Errorf("status %d, %.80q", status, body)
	}
}

// pipe is a connection from an address.
type pipe struct {
	net.Conn
	from string
}

func (p pipe) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(p.from)) }

// dial connects from an address.
func dial(t *testing.T, p *check.Pipes, from string) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	p.Deliver(t, pipe{far, from})
	return near
}

// halfPipe is a pipe whose end an answer may be in while it is closed, as in a socket.
type halfPipe struct{ pipe }

func (halfPipe) CloseWrite() error { return nil }

// A connection that the server ends counts until its client has ended it, too, and for a while at
// most.
func TestAnswerToTake(t *testing.T) {
	inBubble(t, func(t *testing.T, p *check.Pipes) {
		var held []net.Conn
		for range maxPerAddr {
			near, far := net.Pipe()
			p.Deliver(t, halfPipe{pipe{far, "127.0.0.1:1000"}})
			if _, err := io.WriteString(near, "GET /kernel HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(near), nil)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, answer.Body); err != nil || n != 100<<10 {
				t.Fatal(n, err)
			}
			held = append(held, near)
		}
		synctest.Wait()
		if c := dial(t, p, "127.0.0.1:2000"); !ended(c) {
			t.Error("connections whose answers may be on their way do not count")
		}
		held[0].Close()
		synctest.Wait()
		if c := dial(t, p, "127.0.0.1:2001"); ended(c) {
			t.Error("a connection counts that both sides have ended")
		} else {
			c.Close()
		}
		time.Sleep(stallWait)
		synctest.Wait()
		for _, c := range held {
			if !ended(c) {
				t.Error("a client that does not end its connection keeps it")
			}
		}
	})
}

// inBubble runs a test with services whose time passes when nothing else happens.
func inBubble(t *testing.T, f func(t *testing.T, p *check.Pipes)) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := services(t, local)
		ctx, cancel := context.WithCancel(context.Background())
		p := check.NewPipes()
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, Sockets{DHCP: play(), TFTP: play(), HTTP: p}) }()
		f(t, p)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// ended reports whether the other side has ended a connection, after what it had sent.
func ended(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// A client that does not read loses its connection, and one that reads slowly does not.
func TestSlowReader(t *testing.T) {
	inBubble(t, func(t *testing.T, p *check.Pipes) {
		stalled, slow := dial(t, p, "127.0.0.1:1000"), dial(t, p, "127.0.0.3:1000")
		for _, c := range []net.Conn{stalled, slow} {
			if _, err := io.WriteString(c, "GET /image HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		answer, err := http.ReadResponse(bufio.NewReaderSize(slow, 4096), nil)
		if err != nil {
			t.Fatal(err)
		}
		for got := 0; got < 300<<10; {
			time.Sleep(stallWait / 10)
			n, err := answer.Body.Read(make([]byte, 4096))
			if err != nil && (err != io.EOF || got+n != 300<<10) {
				t.Fatalf("after %d bytes: %v", got+n, err)
			}
			got += n
		}
		if !ended(stalled) {
			t.Error("a connection that nobody reads lasts")
		}
		if ended(slow) {
			t.Error("the connection of a slow reader was closed")
		}
		slow.Close()
	})
}

// A request that does not arrive in time ends its connection, and so does an idle client.
func TestTruncatedRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, p *check.Pipes) {
		var all []net.Conn
		for i, text := range []string{"", "GET /ker", "GET /kernel HTTP/1.1\r\nHost: x\r\n", "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"} {
			c := dial(t, p, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(1000+i)).String())
			all = append(all, c)
			go io.Copy(io.Discard, c)
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(headerWait + idleWait + time.Second)
		for i, c := range all {
			if _, err := io.WriteString(c, "x"); err == nil {
				t.Errorf("connection %d lasts", i)
			}
		}
	})
}

// An address has a bounded number of connections, and a place is free again when one has ended.
func TestConnectionsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, p *check.Pipes) {
		var held []net.Conn
		for range maxPerAddr {
			held = append(held, dial(t, p, "127.0.0.1:1000"))
		}
		if c := dial(t, p, "127.0.0.1:2000"); !ended(c) {
			t.Error("one connection too many lasts")
		}
		other := dial(t, p, "127.0.0.3:1000")
		if ended(other) {
			t.Error("another address has no connection left")
		}
		held[0].Close()
		synctest.Wait()
		again := dial(t, p, "127.0.0.1:3000")
		if ended(again) {
			t.Error("a connection that has ended takes a place")
		}
		for _, c := range append(held, other, again) {
			c.Close()
		}
	})
}

// However many connections strangers hold, hosts have theirs. Strangers lose them after a while,
// whatever they do, and so do connections of theirs beyond their places.
func TestStrangersHoldNoPlaces(t *testing.T) {
	inBubble(t, func(t *testing.T, p *check.Pipes) {
		stranger := func(n int) net.Conn {
			return dial(t, p, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}), 1000).String())
		}
		var held []net.Conn
		for n := range maxStrangers {
			held = append(held, stranger(n))
		}
		for n := range 100 {
			if c := stranger(maxStrangers + n); !ended(c) {
				t.Fatal("strangers have more connections than places")
			}
		}
		for _, address := range []string{"127.0.0.1:1000", "127.0.0.3:1000"} {
			for range maxPerAddr {
				c := dial(t, p, address)
				if ended(c) {
					t.Fatal("strangers hold the place of a host")
				}
				defer c.Close()
			}
		}
		busy := held[0] // it asks again and again
		go io.Copy(io.Discard, busy)
		for range int(strangerWait/time.Second) - 1 {
			if _, err := io.WriteString(busy, "GET /kernel HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, err := io.WriteString(busy, "x"); err == nil {
			t.Error("a stranger that asks again and again keeps its connection")
		}
		for _, c := range held[1:] {
			if !ended(c) {
				t.Error("a stranger that asks nothing keeps its connection")
			}
		}
		if c := stranger(1); ended(c) {
			t.Error("the places of strangers are not free again")
		} else {
			c.Close()
		}
	})
}
