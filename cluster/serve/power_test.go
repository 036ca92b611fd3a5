package serve

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
)

// playHolder connects a holder, which switches nodes off and on, passes each order to reboot a node
// to obey, and answers with its error.
func (m *machine) playHolder(obey func(h *playedClient, o *control.RebootNode) error) *playedClient {
	m.t.Helper()
	h := &playedClient{m: m, conn: control.NewConn(m.clients.Dial(m.t))}
	m.t.Cleanup(h.conn.Close)
	if _, err := h.conn.Greet(&control.Hello{Role: control.Role_ROLE_HOLDER, Program: "a played holder"}); err != nil {
		m.t.Fatal(err)
	}
	go h.conn.Serve(func(f *control.Frame) {
		h.add(f.Message())
		switch o := f.Message().(type) {
		case *control.RebootNode:
			go func() { h.conn.Answer(f, &control.Done{}, obey(h, o)) }()
		case *control.StageImage:
			var err error
			if h.staged == nil {
				err = control.Failf(control.Code_CODE_REFUSED, "hosted")
			}
			answer := func() { h.conn.Answer(f, h.staged, err) }
			if h.staging == nil {
				answer()
			} else {
				h.staging(answer)
			}
		case *control.KeepImage:
			h.conn.Answer(f, &control.Done{}, nil)
		case *control.ApproveGuests:
			h.conn.Answer(f, &control.NodesAdded{Nodes: []uint32{7}}, nil)
		case *control.SwitchNode:
			done := new(control.Done)
			if o.On {
				done.Notices = []string{fmt.Sprintf("node%d has begun to boot", o.Node)}
				_ = h.conn.Send(&control.NodeBoot{Node: o.Node, Boots: 2})
			} else {
				_ = h.conn.Send(&control.NodeExit{Node: o.Node, Reason: o.Why, Off: true})
			}
			h.conn.Answer(f, done, nil)
		}
	})
	synctest.Wait()
	return h
}

func reboots(force bool, nodes ...uint32) *control.RebootNodes {
	return &control.RebootNodes{Nodes: nodes, Force: force, User: "op"}
}

// The holder reboots a node. Until that is complete the node's old boot cannot return; then its new
// boot registers like any other. Its jobs end, which needs force.
func TestReboot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c, other := m.client(), m.client()
		other.refused(reboots(false, 1), control.Code_CODE_RESTARTED, "holder is not connected")
		var ordered []uint32
		m.playHolder(func(h *playedClient, o *control.RebootNode) error {
			if o.Why != "ended by order of op" {
				t.Errorf("the order is %v", o)
			}
			// A node that loses its connection reconnects at once.
			conn := m.dial()
			if _, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: m.token(o.Node), Node: o.Node, Program: "a played node"}); err != nil {
				t.Error(err)
			}
			go conn.Serve(func(*control.Frame) {})
			if _, err := conn.Call(t.Context(), m.played[o.Node].register()); !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) {
				t.Errorf("the old boot of node%d registers: %v", o.Node, err)
			}
			ordered = append(ordered, o.Node)
			_ = h.conn.Send(&control.NodeExit{Node: o.Node, Reason: o.Why, Retry: true})
			_ = h.conn.Send(&control.NodeBoot{Node: o.Node, Boots: 2})
			return nil
		})
		c.run(spec(1)) // on node0
		other.refused(reboots(false, 1, 9), control.Code_CODE_NOT_FOUND, "no node9")
		other.refused(reboots(false, 1, 0), control.Code_CODE_REFUSED, "it has job 1: drain it and wait, or end them with --force")
		if len(ordered) > 0 {
			t.Fatalf("node%d are rebooted although one is refused", ordered)
		}
		must[*control.Done](other, reboots(false, 2))
		if n := other.node(2); n.Health != control.NodeHealth_NODE_BOOTING || n.Boots != 2 {
			t.Errorf("node2 is %v", n)
		}
		m.played[2].boot = "another boot"
		m.played[2].connect()
		if n := other.node(2); n.Health != control.NodeHealth_NODE_UP || n.Boots != 2 {
			t.Errorf("then node2 is %v", n)
		}
		must[*control.Done](other, reboots(true, 0))
		if s := c.ended(); s.Error == nil || s.Error.Text != "ended by order of op; it is being restarted" || s.Error.Node != 0 {
			t.Errorf("the job of node0 ends as %v", s)
		}
		if !slices.Equal(ordered, []uint32{2, 0}) || !m.logged("node0: rebooted by op") {
			t.Errorf("rebooted are %v", ordered)
		}
	})
}

// If the holder cannot reboot a node, the caller gets the reason, and a node that still runs
// returns.
func TestRebootFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		m.playHolder(func(_ *playedClient, o *control.RebootNode) error {
			if o.Node == 1 {
				time.Sleep(2 * holderTimeout)
			}
			return errors.New("it does not end")
		})
		c.refused(reboots(false, 0, 1), control.Code_CODE_NODE_LOST, "node0 is not rebooted: it does not end\nnode1 is not rebooted: ")
		for _, n := range m.played {
			n.connect()
		}
		if n := c.node(0); n.Health != control.NodeHealth_NODE_UP {
			t.Errorf("node0 is %v", n)
		}
		m.end(c, c.run(spec(1)), 1)
		time.Sleep(holderTimeout) // the holder's late answer has no receiver
	})
}

// switched is an order to switch nodes off or on.
func switched(on, force bool, nodes ...uint32) *control.SwitchNodes {
	return &control.SwitchNodes{Nodes: nodes, On: on, Force: force, User: "op"}
}

// A node that was switched off is not dead, but its jobs end as if it were. It stays off when serve
// restarts and when others are rebooted, until it is switched on.
func TestSwitchOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c, other := m.client(), m.client()
		other.refused(switched(false, false, 1), control.Code_CODE_RESTARTED, "holder is not connected")
		m.playHolder(nil)
		c.run(on(spec(1), 1))
		other.refused(switched(false, false, 0, 1), control.Code_CODE_REFUSED, "it has job 1: drain it and wait, or end them with --force")
		if n := other.node(0); n.Health != control.NodeHealth_NODE_UP {
			t.Errorf("node0 is %v, although node1 was refused", n)
		}
		must[*control.Done](other, switched(false, true, 1))
		const remedy = "margay node power on -m m node1 starts it"
		isOff := func() {
			t.Helper()
			n := other.node(1)
			if n.Health != control.NodeHealth_NODE_OFF || n.Power != control.NodePower_POWER_OFF || n.Reason != "switched off by op" || n.Remedy != remedy {
				t.Errorf("node1 is %v", n)
			}
			if s := must[*control.MachineStatus](other, &control.Status{}); s.Off != 1 || s.Up != 1 {
				t.Errorf("the machine is %v", s)
			}
		}
		isOff()
		if s := c.ended(); s.Error == nil || s.Error.Text != "switched off by op; "+remedy || s.Error.Node != 1 {
			t.Errorf("its job ends as %v", s)
		}
		time.Sleep(time.Hour) // a node that does not run cannot be late
		m.played[0].connect()
		isOff()
		other.refused(reboots(true, 0, 1), control.Code_CODE_REFUSED, "it is switched off by op; "+remedy)
		other.refused(&control.RunRequest{Spec: on(spec(1), 1)}, control.Code_CODE_NO_ROOM, "; node1 is switched off by op (1 of 2 nodes are up; see margay nodes)")
		must[*control.Done](other, switched(false, false, 1))

		m.restart()
		other = m.client()
		if n := other.node(1); n.Power != control.NodePower_POWER_UNKNOWN {
			t.Errorf("without news of the holder node1 is %v", n)
		}
		m.played[0].connect()
		h := m.playHolder(nil)
		h.tell(&control.NodeExit{Node: 1, Reason: "switched off by op", Off: true})
		isOff()
		if done := must[*control.Done](other, switched(true, false, 0, 1)); !slices.Equal(done.Notices, []string{"node0 has begun to boot", "node1 has begun to boot"}) {
			t.Errorf("the order to switch them on says %q", done.Notices)
		}
		if n := other.node(1); n.Health != control.NodeHealth_NODE_BOOTING || n.Power != control.NodePower_POWER_ON || n.Reason != "" || n.Boots != 2 {
			t.Errorf("then node1 is %v", n)
		}
		m.played[1].boot = "another boot"
		m.played[1].connect()
		if n := other.node(1); n.Health != control.NodeHealth_NODE_UP {
			t.Errorf("then node1 is %v", n)
		}
	})
}

// A job that waits for a node that is off does not hold up the jobs behind it, and has its turn
// when the node is on.
func TestSwitchOffAndQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		m.playHolder(nil)
		operator, large, small := m.client(), m.client(), m.client()
		first := m.client()
		job := first.run(on(spec(1), 0))
		four := large.begin(&control.RunRequest{Spec: patient(4)})
		one := small.begin(&control.RunRequest{Spec: patient(1)})
		waits(t, one)
		must[*control.Done](operator, switched(false, false, 1))
		started(t, one)
		m.end(first, job, 1)
		must[*control.Done](operator, switched(true, false, 1))
		late := m.client()
		late.refused(&control.RunRequest{Spec: spec(1)}, control.Code_CODE_NO_ROOM, "1 job came first")
		m.played[1].boot = "another boot"
		m.played[1].connect()
		waits(t, four)
		late.refused(&control.RunRequest{Spec: spec(1)}, control.Code_CODE_NO_ROOM, "1 job came first")
	})
}

// The holder cannot reboot a node that is switched by hand: an order to do so touches no node. When
// such a node is up it is on, otherwise nothing is known of its power.
func TestSwitchedByHand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		h := m.playHolder(nil)
		const why = "it has no entry below power in the machine file"
		h.tell(&control.NodeBoot{Node: 1, Boots: 1, ByHand: why})
		c.refused(reboots(true, 0, 1), control.Code_CODE_REFUSED, "node1: it can be rebooted by hand alone: "+why)
		if n := c.node(0); n.Health != control.NodeHealth_NODE_UP {
			t.Errorf("node0 is %v, although node1 was refused", n)
		}
		if n := c.node(1); n.Health != control.NodeHealth_NODE_UP || n.Power != control.NodePower_POWER_ON {
			t.Errorf("node1 was refused, and is %v", n)
		}
		h.tell(&control.NodeExit{Node: 1, Reason: "it has begun to boot again", ByHand: why})
		if n := c.node(1); !strings.Contains(n.Remedy, "margay node power on -m m node1, and a reset by hand, reboot it") {
			t.Errorf("it stays down: %v", n)
		}
		h.tell(&control.NodeExit{Node: 1, Reason: "waiting until it is switched on by hand", Off: true, Waits: true, ByHand: why})
		if n := c.node(1); n.Power != control.NodePower_POWER_UNKNOWN {
			t.Errorf("down: %v", n)
		}
	})
}

// A node that is off or boots has no memory and no vitals: the last ones were of its last boot.
func TestNoVitalsWhileOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		m.playHolder(nil)
		m.played[1].tell(&control.Heartbeat{Number: 1, FreeMemory: 5 << 20, Vitals: &control.Vitals{Space: 7 << 20}})
		if n := c.node(1); n.Vitals.GetSpace() != 7<<20 || n.FreeMemory != 5<<20 {
			t.Errorf("up: %v", n)
		}
		for _, on := range []bool{false, true} {
			must[*control.Done](c, switched(on, false, 1))
			if n := c.node(1); n.Vitals != nil || n.FreeMemory != 0 || n.Ill != "" {
				t.Errorf("switched on %v: %v", on, n)
			}
		}
	})
}
