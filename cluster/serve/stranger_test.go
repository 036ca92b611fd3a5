package serve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
	"margay/cluster/trust"
)

// Strangers at the nodes' port take up neither connections nor the log, however many they are and
// whatever they send, and nodes are served again when they are gone.
func TestStrangers(t *testing.T) {
	tooLong := binary.BigEndian.AppendUint32(nil, control.MaxFrame)
	cases := map[string]func(m *machine){
		"silent": func(m *machine) { m.nodes.Dial(m.t) },
		"no TLS": func(m *machine) { go m.nodes.Dial(m.t).Write([]byte("GET / HTTP/1.0\r\n\r\n")) },
		"nothing but a length": func(m *machine) {
			c := m.dial()
			go c.NetConn().Write(tooLong)
		},
		"hang up": func(m *machine) { m.nodes.Dial(m.t).Close() },
		"no token": func(m *machine) {
			c := m.dial()
			go c.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Program: strings.Repeat("\x1b[2J", 5000)})
		},
	}
	for name, knock := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := newMachine(t, 1)
				for range 100 {
					knock(m)
				}
				synctest.Wait()
				time.Sleep(30 * time.Second)
				m.played[0].connect()
				m.mu.Lock()
				defer m.mu.Unlock()
				text := strings.Join(m.log, "\n")
				if len(m.log) > 60 || len(text) > 20_000 || strings.Contains(text, "\x1b") {
					t.Errorf("%d lines, %d bytes: %s", len(m.log), len(text), text)
				}
				if name == "silent" && !strings.Contains(text, "others from there have not authenticated") {
					t.Errorf("it does not say why connections are closed: %s", text)
				}
				if name != "hang up" && !strings.Contains(text, "more such lines in the last 5s were left out") {
					t.Errorf("it does not say what is left out: %s", text)
				}
			})
		})
	}
}

// A node that repeatedly shows its token, or repeatedly registers, gets neither additional
// connections nor more of the log.
func TestNodeThatRepeatsItself(t *testing.T) {
	greet := func(m *machine) *control.Conn {
		conn := m.dial()
		if _, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: m.token(0), Node: 0, Program: "test"}); err != nil {
			m.t.Fatal(err)
		}
		go conn.Serve(func(*control.Frame) {})
		return conn
	}
	cases := map[string]struct {
		repeat func(m *machine, conn *control.Conn) *control.Conn
		open   int // connections, besides the first
	}{
		"tokens": {func(m *machine, _ *control.Conn) *control.Conn { return greet(m) }, 1},
		"registrations": {func(m *machine, conn *control.Conn) *control.Conn {
			if answer, err := conn.Call(m.t.Context(), m.played[0].register()); !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) {
				m.t.Errorf("it registers again: %v, %v", answer, err)
			}
			return nil
		}, 0},
		"tokens and registrations": {func(m *machine, _ *control.Conn) *control.Conn {
			conn := greet(m)
			if _, err := conn.Call(m.t.Context(), m.played[0].register()); err != nil {
				m.t.Error(err)
			}
			return conn
		}, 1},
		"nonsense": {func(m *machine, _ *control.Conn) *control.Conn {
			conn := greet(m)
			go conn.NetConn().Write([]byte("\xff\xff\xff\xff"))
			return conn
		}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				m.mu.Lock()
				before := len(m.log)
				m.mu.Unlock()
				var made []*control.Conn
				for range 60 {
					if conn := c.repeat(m, m.played[0].conn); conn != nil {
						made = append(made, conn)
					}
				}
				synctest.Wait()
				open := 0
				for _, conn := range made {
					if conn.Err() == nil {
						open++
					}
				}
				m.mu.Lock()
				lines := m.log[before:]
				m.mu.Unlock()
				if open != c.open || len(lines) > 50 {
					t.Errorf("%d connections are open, %d lines are in the log: %.300q", open, len(lines), lines)
				}
				m.played[0].connect()
				for node := range uint32(2) {
					if state := m.client().node(node); state.Health != control.NodeHealth_NODE_UP {
						t.Errorf("node%d is %v", node, state)
					}
				}
			})
		})
	}
}

// The first frame of a stranger is small, or not read.
func TestFirstFrameIsSmall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		conn := control.NewConn(near)
		defer conn.Close()
		go func() {
			far.Write(binary.BigEndian.AppendUint32(nil, 64<<10+1))
			_, _ = io.Copy(io.Discard, far)
		}()
		if _, err := conn.Meet(); err == nil || !strings.Contains(err.Error(), "frame of 65537 bytes, at most 65536 are allowed") {
			t.Errorf("it is taken: %v", err)
		}
	})
}

// A line of a node's log remains one line in serve's log, and does not fill it.
func TestLogOfHostileNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		for i := range 2000 {
			m.played[0].conn.Send(&control.LogLine{Level: "in\nfo", Text: fmt.Sprint(i, "\nnode7 is dead\x1b[2J", strings.Repeat("x", 10_000))})
		}
		synctest.Wait()
		time.Sleep(10 * time.Second)
		if !m.logged("node0: in; fo: 0; node7 is dead?[2Jxxx") || !m.logged("xxx... (10") || !m.logged("more such lines") {
			t.Error("its lines are not told as they are to be")
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, line := range m.log {
			if strings.ContainsAny(line, "\n\x1b") || len(line) > 1200 {
				t.Errorf("it says %.100q", line)
			}
		}
		if len(m.log) > 200 {
			t.Errorf("there are %d lines", len(m.log))
		}
	})
}

// A node that claims more jobs than it can have is asked to end as many as it can have.
func TestJobsWithoutEnd(t *testing.T) {
	authority, err := trust.NewAuthority("m")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := runningJob(t, authority)
	claim := new(control.Register)
	for job := range uint32(2 * maxHosted) {
		claim.Jobs = append(claim.Jobs, &control.HostedJob{Job: 100 + job})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconcile(s.nodes[0], claim); s.nodes[0].owes != maxHosted {
		t.Errorf("it is asked to end %d jobs", s.nodes[0].owes)
	}
}
