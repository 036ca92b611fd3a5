package gate

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lines is a log that a test reads.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf(format, args...))
}

func (l *lines) read() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.all...)
}

// caller is a connection from an address.
type caller struct {
	net.Conn
	from string
}

func (c caller) RemoteAddr() net.Addr { return c }
func (c caller) Network() string      { return "tcp" }
func (c caller) String() string       { return c.from }

// port is a listener that tests call.
type port struct{ calls chan net.Conn }

func (p port) Accept() (net.Conn, error) {
	c, ok := <-p.calls
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p port) Close() error   { return nil }
func (p port) Addr() net.Addr { return caller{from: "here"} }

// call makes a connection from an address and reports whether it stands.
func (p port) call(from string) (theirs net.Conn, stands bool) {
	near, far := net.Pipe()
	p.calls <- caller{near, from}
	synctest.Wait()
	return far, !closed(far)
}

// closed reports whether the other side has closed a connection.
func closed(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Nanosecond))
	_, err := c.Read(make([]byte, 1))
	c.SetReadDeadline(time.Time{})
	return err == io.EOF
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		g := New(Config{Most: 5, MostEach: 2, Wait: 10 * time.Second, Log: NewLog(log.printf, 100, 1)})
		p := port{make(chan net.Conn)}
		l := g.Listener(p)
		accepted := make(chan net.Conn, 100)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		}()
		defer close(p.calls)
		call := func(from string, want bool) net.Conn {
			t.Helper()
			c, stands := p.call(from)
			if stands != want {
				t.Fatalf("a connection from %s stands: %v", from, stands)
			}
			return c
		}
		var hostile []net.Conn
		hostile = append(hostile, call("10.0.0.1:1", true), call("10.0.0.1:2", true))
		call("10.0.0.1:3", false) // two from there wait
		first := <-accepted
		Admit(tls.Server(first, &tls.Config{}))
		if !Admitted(first) {
			t.Error("an admitted connection is not")
		}
		hostile = append(hostile, call("10.0.0.1:4", true))
		first.Close() // it no longer counts
		call("10.0.0.1:5", false)
		for i := range 3 {
			hostile = append(hostile, call(fmt.Sprintf("10.0.1.%d:1", i), true))
		}
		call("10.0.2.1:1", false) // five wait in all
		if n := len(log.read()); n != 3 {
			t.Errorf("it says %q", log.read())
		}
		second := <-accepted
		second.Close()
		hostile = append(hostile, call("10.0.2.1:1", true)) // in the room of that
		if Admitted(second) {
			t.Error("a connection was admitted by being closed")
		}
		time.Sleep(11 * time.Second)
		for i, c := range hostile {
			if !closed(c) {
				t.Errorf("connection %d is still there", i)
			}
		}
		for len(accepted) > 0 {
			(<-accepted).Close() // like a reader of them
		}
		if g.room.all != 0 || len(g.room.each) != 0 {
			t.Errorf("%d wait, %v", g.room.all, g.room.each)
		}
		call("10.0.0.1:9", true)
		(<-accepted).Close()
	})
}

// An admitted connection lives on.
func TestAdmittedStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Most: 1, MostEach: 1, Wait: time.Second, Log: NewLog(t.Logf, 1, 1)})
		near, far := net.Pipe()
		defer far.Close()
		c := g.enter(near)
		defer c.Close()
		Admit(c)
		time.Sleep(time.Minute)
		if closed(far) {
			t.Error("it is closed")
		}
	})
	if !Admitted(new(net.TCPConn)) {
		t.Error("a connection without a gate has to be admitted")
	}
	Admit(new(net.TCPConn))
}

// A host can have all addresses of a network of IPv6.
func TestNetwork(t *testing.T) {
	for host, want := range map[string]string{
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64", "10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "::ffff:10.0.0.1", "@": "@",
	} {
		if got := network(host); got != want {
			t.Errorf("%s: %s", host, got)
		}
	}
}

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got lines
		l := NewLog(got.printf, 3, 1)
		for i := range 1000 {
			l.Printf("line %d", i)
		}
		time.Sleep(omissionPause + time.Second)
		want := "line 0|line 1|line 2|997 more such lines in the last 5s were left out"
		if text := strings.Join(got.read(), "|"); text != want {
			t.Errorf("it says %s", text)
		}
		l.Printf("later")
		if all := got.read(); len(all) != 5 || all[4] != "later" {
			t.Errorf("it says %q", all)
		}
	})
}

// A closed log reports the omitted lines and then writes nothing: its owner may have ended.
func TestClosedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got lines
		l := NewLog(got.printf, 1, 1)
		for i := range 10 {
			l.Printf("line %d", i)
		}
		l.Close()
		l.Close()
		time.Sleep(omissionPause + time.Second)
		l.Printf("later")
		want := "line 0|9 more such lines in the last 5s were left out"
		if text := strings.Join(got.read(), "|"); text != want {
			t.Errorf("it says %s", text)
		}
	})
}
