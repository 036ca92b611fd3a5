package serve

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/cluster/records"
)

// A client that takes nothing for a while keeps its connection, however many nodes have output for
// it: the output stays on the nodes. Then the client gets all of it, each record once and in order.
func TestSlowClient(t *testing.T) {
	const nodes, each = 12, 2 // records of 1 MiB, more than serve queues for a client
	bubble(t, func(t *testing.T) {
		m := up(t, nodes)
		c := &playedClient{m: m, conn: control.NewConn(m.clients.Dial(t))}
		t.Cleanup(c.conn.Close)
		if _, err := c.conn.Greet(&control.Hello{Role: control.Role_ROLE_CLIENT, Program: "a slow client"}); err != nil {
			t.Fatal(err)
		}
		takes := make(chan struct{})
		go c.conn.Serve(func(f *control.Frame) {
			if f.GetRecord() != nil {
				<-takes
			}
			c.add(f.Message())
		})
		job := c.run(spec(2 * nodes))
		line := strings.Repeat("x", 1<<20)
		tell := func(n *playedNode) { // the records that serve has not released
			for seq := n.ackedOf(job) + 1; seq <= each; seq++ {
				n.says(job, seq, 2*n.number, fmt.Sprint(n.number, ".", seq, line))
			}
		}
		for _, n := range m.played {
			tell(n)
		}
		time.Sleep(5 * time.Minute)
		if err := c.conn.Err(); err != nil {
			t.Fatalf("its connection is lost: %v", err)
		}
		m.server.mu.Lock()
		queued := m.server.jobs[job].client.Queued()
		m.server.mu.Unlock()
		if queued < clientQueue || queued > clientQueue+2<<20 {
			t.Errorf("%d bytes are queued for it, of %d records of 1 MiB", queued, nodes*each)
		}
		close(takes)
		reader := records.NewReader()
		for wait := 0; ; wait++ {
			for _, r := range c.ackAll() {
				if !reader.Next(r.Node, r.Seq) {
					continue // a repetition
				}
				if want := fmt.Sprint(r.Node, ".", r.Seq, "x"); !strings.HasPrefix(string(r.Data), want) {
					t.Fatalf("record %d of node %d is %.10q", r.Seq, r.Node, r.Data)
				}
				reader.Done(r.Node)
			}
			left := 0
			for _, n := range m.played {
				if n.ackedOf(job) < each {
					left++
				}
				if len(take[*control.Rewind](&n.recorder)) > 0 {
					tell(n)
				}
			}
			if left == 0 {
				break
			}
			if wait == 1000 {
				t.Fatalf("%d nodes still have records", left)
			}
			time.Sleep(200 * time.Millisecond)
		}
		for _, n := range m.played {
			n.exits(job, each+1, 2*n.number, 0, 0)
			n.exits(job, each+2, 2*n.number+1, 0, 0)
		}
		c.ackAll()
		if state := c.ended(); state.ExitCode != 0 || state.Error != nil {
			t.Errorf("it ended as %v", state)
		}
	})
}
