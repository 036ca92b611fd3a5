package serve

import (
	"slices"
	"testing"
	"testing/synctest"

	"margay/cluster/control"
)

// serve shows the machines that wait, and orders the holder to make them nodes. A node that waits
// for a hand is off, needs no command, and boots when the holder says so.
func TestGuests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		approve := &control.ApproveGuests{Macs: []string{"52:54:00:00:00:01"}, User: "op"}
		c.refused(approve, control.Code_CODE_RESTARTED, "holder is not connected")
		h := m.playHolder(nil)
		c.refused(&control.ApproveGuests{}, control.Code_CODE_BAD_REQUEST, "0 machines are named")
		added := must[*control.NodesAdded](c, approve)
		if !slices.Equal(added.Nodes, []uint32{7}) || !m.logged("node7: added by op") {
			t.Errorf("added are %v", added)
		}
		_ = h.conn.Send(&control.Guests{Guests: []*control.Guest{{Mac: "52:54:00:00:00:02"}}, Notices: []string{"a notice"}})
		_ = h.conn.Send(&control.NodeExit{Node: 1, Reason: "waiting", Off: true, Waits: true})
		synctest.Wait()
		list := must[*control.Nodes](c, &control.ListNodes{})
		if g := list.Guests; len(g.GetGuests()) != 1 || g.Guests[0].Mac != "52:54:00:00:00:02" || !slices.Equal(g.Notices, []string{"a notice"}) {
			t.Errorf("guests %v", g)
		}
		if n := list.Nodes[1]; n.Health != control.NodeHealth_NODE_OFF || !n.Waits || n.Remedy != "" || n.Reason != "waiting" {
			t.Errorf("node1 is %v", n)
		}
		_ = h.conn.Send(&control.NodeBoot{Node: 1, Boots: 2})
		synctest.Wait()
		if n := c.node(1); n.Health != control.NodeHealth_NODE_BOOTING || n.Waits {
			t.Errorf("node1 is %v", n)
		}
	})
}
