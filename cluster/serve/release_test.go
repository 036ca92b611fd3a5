package serve

import (
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
)

// A node gets one acknowledgement of the ends of its ranks, and no other one each time that ranks
// of other nodes end.
func TestAcknowledgedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(4)) // two ranks on each node
		acks := func(node int) int {
			time.Sleep(2 * recordPause)
			synctest.Wait()
			return len(take[*control.Ack](&m.played[node].recorder))
		}
		m.played[0].exits(job, 1, 0, 0, 0)
		c.tell(&control.Ack{Job: job, Node: 0, Seq: 1})
		if n := acks(0); n != 1 {
			t.Errorf("node0 gets %d acknowledgements", n)
		}
		m.played[1].exits(job, 1, 2, 0, 0)
		c.tell(&control.Ack{Job: job, Node: 1, Seq: 1})
		if zero, one := acks(0), acks(1); zero != 0 || one != 1 {
			t.Errorf("after an end on node1, node0 gets %d acknowledgements, and node1 %d", zero, one)
		}
		c.tell(&control.Ack{Job: job, Node: 0, Seq: 1}) // again, as after a record that was sent again
		if n := acks(0); n != 1 {
			t.Errorf("node0, which may have missed the first one, gets %d acknowledgements", n)
		}
	})
}
