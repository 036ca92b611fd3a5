package serve

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// serve connects a client with the node of a rank that runs, and no other node with it. A node that
// refuses or does not come is an error, and no stream is left.
func TestDebugger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(1))
		client := func(job, rank uint32) (net.Conn, error) {
			conn := control.NewConn(m.clients.Dial(t))
			t.Cleanup(conn.Close)
			if _, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_DEBUG, Program: "a played client", Job: job, Rank: rank}); err != nil {
				return nil, err
			}
			return conn.Stream(), nil
		}
		node := func(number uint32, stream uint64) (net.Conn, error) {
			conn := m.dial()
			_, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_DEBUG, Program: "a played node", Node: number, Stream: stream, Token: m.token(number)})
			return conn.Stream(), err
		}
		for name, k := range map[string]struct {
			job, rank uint32
			want      string
		}{
			"no job":  {99, 0, "job 99 is not running (margay ps)"},
			"no rank": {job, 1, "job 1 has no rank 1: its ranks are 0 to 0"},
		} {
			if _, err := client(k.job, k.rank); err == nil || err.Error() != k.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		played := m.played[0]
		played.answers = map[string]proto.Message{"DebugRank": control.FromError(control.Failf(control.Code_CODE_FAILED, "no way to serve"))}
		if _, err := client(job, 0); err == nil {
			t.Error("a stream is opened that the node has refused")
		}
		played.answers = map[string]proto.Message{"DebugRank": &control.Done{}}
		begun := time.Now()
		if _, err := client(job, 0); err == nil || time.Since(begun) != debugTimeout {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		var far net.Conn
		opened := make(chan error, 1)
		go func() {
			var err error
			far, err = client(job, 0)
			opened <- err
		}()
		synctest.Wait()
		asked := take[*control.DebugRank](&played.recorder)
		last := asked[len(asked)-1]
		if len(asked) != 3 || last.Job != job || last.Rank != 0 {
			t.Fatalf("the node is asked %v", asked)
		}
		for _, k := range []struct {
			node   uint32
			stream uint64
		}{{1, last.Stream}, {0, last.Stream - 1}, {0, last.Stream + 1}} {
			if _, err := node(k.node, k.stream); err == nil {
				t.Errorf("node%d gets stream %d", k.node, k.stream)
			}
		}
		near, err := node(0, last.Stream)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
		says(t, near, far, "$OK#9a")
		says(t, far, near, "$g#67")
		if _, err := node(0, last.Stream); err == nil {
			t.Error("a stream has two nodes")
		}
		far.Close()
		over(t, near)
		synctest.Wait()
		m.server.mu.Lock()
		defer m.server.mu.Unlock()
		if len(m.server.debuggers) > 0 {
			t.Errorf("%d streams are left", len(m.server.debuggers))
		}
	})
}
