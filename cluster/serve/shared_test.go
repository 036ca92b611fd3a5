package serve

import (
	"io"
	"net"
	"testing"
	"testing/synctest"

	"margay/cluster/control"
)

// files opens a side of a stream of shared files. The error is the refusal.
func (m *machine) files(job, node uint32, conn *control.Conn, token string) (net.Conn, error) {
	m.t.Helper()
	_, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_FILES, Program: "a played side", Job: job, Node: node, Token: token})
	if err != nil {
		return nil, err
	}
	return conn.Stream(), nil
}

// says sends a word over a side, and expects it at the other one.
func says(t *testing.T, from, to net.Conn, word string) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write([]byte(word))
		sent <- err
	}()
	b := make([]byte, len(word))
	if _, err := io.ReadFull(to, b); err != nil || string(b) != word {
		t.Errorf("%q arrives as %q, %v", word, b, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// over expects the end of a side.
func over(t *testing.T, side net.Conn) {
	t.Helper()
	if n, err := side.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes come", n)
	}
}

// serve connects a node with a job's client, for the files of this job alone, until one side or the
// job ends.
func TestSharedFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		s := spec(1)
		s.Shared = []*control.SharedFolder{{Path: []byte("/shared")}}
		job, other := c.run(s), c.run(spec(1))
		client := func(job, number uint32) (net.Conn, error) {
			conn := control.NewConn(m.clients.Dial(t))
			t.Cleanup(conn.Close)
			return m.files(job, number, conn, "")
		}
		node := func(job, number uint32, token string) (net.Conn, error) { return m.files(job, number, m.dial(), token) }
		for name, refused := range map[string]func() (net.Conn, error){
			"no job":            func() (net.Conn, error) { return client(99, 0) },
			"no files":          func() (net.Conn, error) { return client(other, 0) },
			"not on this node":  func() (net.Conn, error) { return client(job, 1) },
			"no token":          func() (net.Conn, error) { return node(job, 0, "") },
			"another's token":   func() (net.Conn, error) { return node(job, 0, m.token(1)) },
			"node without rank": func() (net.Conn, error) { return node(job, 1, m.token(1)) },
		} {
			if _, err := refused(); err == nil {
				t.Errorf("%s: a stream is opened", name)
			}
		}
		open := func(stream net.Conn, err error) net.Conn {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return stream
		}
		early := open(node(job, 0, m.token(0)))
		synctest.Wait()
		near := open(node(job, 0, m.token(0))) // in place of the first
		synctest.Wait()
		over(t, early)
		far := open(client(job, 0))
		says(t, near, far, "request")
		says(t, far, near, "answer")
		// The node's connection is lost, and it comes again before serve sees that.
		again := open(node(job, 0, m.token(0)))
		synctest.Wait()
		over(t, near)
		over(t, far)
		far = open(client(job, 0))
		says(t, again, far, "request")
		far.Close()
		over(t, again)
		waiting := open(client(job, 0))
		synctest.Wait()
		m.played[0].exits(job, 1, 0, 0, 0)
		c.ackAll()
		synctest.Wait()
		over(t, waiting)
	})
}
