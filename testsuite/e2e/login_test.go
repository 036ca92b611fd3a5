package e2e

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// badRoad passes connections on to an address, and can break them.
type badRoad struct {
	net.Listener
	mu    sync.Mutex
	conns []*net.TCPConn
	over  bool // no connection is passed on any more
}

func newBadRoad(t *testing.T, to string) *badRoad {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &badRoad{Listener: l}
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			b.mu.Lock()
			over := b.over
			b.conns = append(b.conns, near.(*net.TCPConn), far.(*net.TCPConn))
			b.mu.Unlock()
			if over {
				b.breakAll()
				return
			}
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				passing.Go(func() {
					io.Copy(way[0], way[1])
					way[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		b.mu.Lock()
		b.over = true
		b.mu.Unlock()
		b.breakAll()
		passing.Wait()
	})
	return b
}

// breakAll has both ends of every connection see a reset.
func (b *badRoad) breakAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.SetLinger(0)
		c.Close()
	}
	b.conns = nil
}

// A user with folders of its own, as on another host, uses a machine by TLS and a token: programs,
// input, output and exit status travel; a broken connection ends nothing; a revoked token does.
func TestLogin(t *testing.T) {
	ownMachine(t, "own")
	m := upAs(t, nil, "hosted", 1, 2, "--listen", "127.0.0.1:0")
	listen := regexp.MustCompile(`(?m)^other hosts: (\S+)$`).FindStringSubmatch(m.margay("machine", "status").stdout)
	if listen == nil {
		t.Fatal(m.margay("machine", "status"))
	}
	home := t.TempDir()
	away := func(c *exec.Cmd) {
		c.Env = append(os.Environ(), "MARGAY_DIR="+filepath.Join(home, "machines"), "MARGAY_STATE="+filepath.Join(home, "state"), "MARGAY_MACHINE=far")
	}
	do := func(want int, stdin string, args ...string) result {
		t.Helper()
		r := start(t, func(c *exec.Cmd) { away(c); c.Stdin = strings.NewReader(stdin) }, args...).wait()
		if r.code != want {
			t.Errorf("status %d expected: %v", want, r)
		}
		return r
	}
	road := newBadRoad(t, listen[1])
	token := m.margay("machine", "token", "create").stdout
	do(0, token, "login", road.Addr().String(), "-m", "far")
	if r := do(0, "", "machine", "list"); !strings.Contains(r.stdout, "far") || !strings.Contains(r.stdout, "remote") {
		t.Error(r)
	}
	if r := do(0, "typed\n", "run", "-n", "2", "--stdin", "all", probe(), "stdin"); strings.Count(r.stdout, "read 1 lines, 6 bytes") != 2 {
		t.Error(r)
	}
	do(7, "", "run", "/bin/sh", "-c", "exit 7")
	for _, args := range [][]string{{"machine", "down"}, {"machine", "logs"}, {"machine", "up"}, {"history"}} {
		if r := do(125, "", args...); !strings.Contains(r.stderr, "far") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v: %v", args, r)
		}
	}
	detached := strings.TrimSpace(do(0, "", "run", "--detach", "-q", "/bin/sh", "-c", "kill -STOP $$").stdout)
	do(0, "", "kill", "--force", detached)
	c, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	job := start(t, func(cmd *exec.Cmd) { away(cmd); cmd.Stdin = c }, "run", probe(), "stdin")
	c.Close()
	ps := func() string { return do(0, "", "ps").stdout }
	eventually(t, "job that runs", func() bool { return strings.Contains(ps(), "running") }, ps)
	feed.WriteString("before\n")
	road.breakAll()
	feed.WriteString("after\n")
	feed.Close()
	if r := job.wait(); r.code != 0 || !strings.Contains(r.stdout, "read 2 lines, 13 bytes") {
		t.Error(r)
	}
	if r := m.margay("machine", "token", "revoke", "1"); r.code != 0 {
		t.Error(r)
	}
	if r := do(125, "", "run", "/bin/true"); !strings.Contains(r.stderr, "the token is not valid") {
		t.Error(r)
	}
	if r := m.margay("machine", "logs", "serve"); !strings.Contains(r.stdout, "wrong token 1: ") {
		t.Error(r)
	}
	do(0, "", "logout")
	do(125, "", "logout")
	if left, _ := os.ReadDir(filepath.Join(home, "state")); len(left) > 0 {
		t.Errorf("left is %v", left)
	}
}
