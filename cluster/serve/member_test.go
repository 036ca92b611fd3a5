package serve

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
	"margay/cluster/fitness"
	"margay/cluster/roster"
	"margay/cluster/trust"
	"margay/internal/check"
	"margay/kernel/abi/id"
)

// playedHolder is a holder with the roster of its machine's config, which the next serve reads.
type playedHolder struct {
	*playedClient
	fails atomic.Bool // it cannot end nodes
}

// rosterHolder connects a holder.
func (m *machine) rosterHolder() *playedHolder {
	m.t.Helper()
	h := &playedHolder{playedClient: &playedClient{m: m, conn: control.NewConn(m.clients.Dial(m.t))}}
	m.t.Cleanup(h.conn.Close)
	if _, err := h.conn.Greet(&control.Hello{Role: control.Role_ROLE_HOLDER, Program: "a played holder"}); err != nil {
		m.t.Fatal(err)
	}
	h.announce()
	go h.conn.Serve(func(f *control.Frame) {
		h.add(f.Message())
		switch order := f.Message().(type) {
		case *control.GrowMachine:
			grown, added, err := m.config.Roster.Grow(int(order.Count))
			if err == nil {
				m.config.Roster = grown
				h.announce()
				for _, number := range added {
					n := m.player(number)
					n.boot = fmt.Sprintf("boot of node%d in term %d", number, grown.Term(number))
					m.played = append(m.played, make([]*playedNode, max(0, int(number)+1-len(m.played)))...)
					m.played[number] = n
				}
			}
			h.conn.Answer(f, &control.NodesAdded{Nodes: added}, err)
		case *control.RemoveNode:
			if h.fails.Load() {
				h.conn.Answer(f, nil, errors.New("the disk is full"))
				return
			}
			if m.config.Roster.Term(order.Node) == order.Term {
				if conn := m.played[order.Node].conn; conn != nil {
					go conn.Close()
				}
				m.config.Roster = m.config.Roster.Without(order.Node)
				h.announce()
			}
			h.conn.Answer(f, &control.Done{}, nil)
		}
	})
	synctest.Wait()
	return h
}

func (h *playedHolder) announce() {
	_ = h.conn.Send(&control.Roster{Nodes: h.m.config.Roster.Nodes, Terms: h.m.config.Roster.Terms})
}

// has fails the test unless the machine has these nodes.
func (c *playedClient) has(nodes ...uint32) {
	c.m.t.Helper()
	var got []uint32
	for _, n := range must[*control.Nodes](c, &control.ListNodes{}).Nodes {
		got = append(got, n.Node)
	}
	if !slices.Equal(got, nodes) {
		c.m.t.Fatalf("the machine has the nodes %v, not %v", got, nodes)
	}
}

func leave(now bool, nodes ...uint32) *control.ShrinkMachine {
	return &control.ShrinkMachine{Nodes: nodes, Now: now, User: "op"}
}

// only is a job of one rank on a node.
func only(node uint32) *control.JobSpec {
	s := spec(1)
	s.Only = []uint32{node}
	return s
}

// New nodes get the lowest free numbers, are expected at once, and run jobs when they are up.
func TestGrow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		c.refused(&control.GrowMachine{Count: 1}, control.Code_CODE_RESTARTED, "holder is not connected")
		m.rosterHolder()
		if added := must[*control.NodesAdded](c, &control.GrowMachine{Count: 2, User: "op"}).Nodes; !slices.Equal(added, []uint32{2, 3}) {
			t.Fatalf("added: %v", added)
		}
		c.has(0, 1, 2, 3)
		if n := c.node(3); n.Health != control.NodeHealth_NODE_BOOTING || n.Term != 1 {
			t.Errorf("node3 is %v", n)
		}
		c.refused(&control.GrowMachine{Count: roster.Most}, control.Code_CODE_FAILED, "1000 nodes at most, and this one has 4")
		s := spec(3)
		s.Only = []uint32{2, 3}
		c.refused(&control.RunRequest{Spec: s}, control.Code_CODE_NO_ROOM, "0 of 0 are free")
		m.played[2].connect()
		m.played[3].connect()
		c.run(s)
		if st := must[*control.MachineStatus](c, &control.Status{}); st.Nodes != 4 || st.Up != 4 || !m.logged("node2-3: added by op") {
			t.Errorf("the status is %v", st)
		}
		m.restart()
		m.client().has(0, 1, 2, 3)
	})
}

// A node that is to leave keeps its jobs, across restarts of serve, and leaves when the last one
// has ended. The next node of its number is another one.
func TestShrink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 4)
		c := m.client()
		m.rosterHolder()
		on1 := detachedSpec(1)
		on1.Only = []uint32{1}
		job := must[*control.RunReply](c, &control.RunRequest{Spec: on1}).Job
		m.played[1].tell(&control.Loaded{Job: job})
		c.refused(leave(false, 0, 1, 2, 3), control.Code_CODE_REFUSED, "at least one node stays in machine m")
		c.refused(leave(false, 7), control.Code_CODE_NOT_FOUND, "the machine has no node7: its nodes are node0-3 (margay nodes)")
		c.refused(leave(false), control.Code_CODE_BAD_REQUEST, "names no node")
		c.has(0, 1, 2, 3)
		if a := must[*control.NodesLeaving](c, leave(false, 1, 2)); !slices.Equal(a.Busy, []uint32{1}) || !slices.Equal(a.Terms, []uint32{1, 1}) {
			t.Errorf("leaving: %v", a)
		}
		synctest.Wait()
		c.has(0, 1, 3)
		c.refused(leave(false, 0, 3), control.Code_CODE_REFUSED, "at least one node stays")
		must[*control.NodesDrained](c, order("fan", 1)) // which does not keep it in the machine
		if n := c.node(1); n.Drain == nil || !n.Drain.Leave || n.Drain.Reason != "fan" || n.Drain.State != control.DrainState_DRAIN_DRAINING {
			t.Errorf("node1 is %v", n)
		}
		c.refused(&control.RunRequest{Spec: on1}, control.Code_CODE_NO_ROOM, "node1 is drained: fan")

		m.restart()
		c = m.client()
		m.played[1].hosts(job, control.JobPhase_JOB_RUNNING)
		for _, n := range []int{0, 1, 3} {
			m.played[n].connect()
		}
		c.has(0, 1, 3)
		h := m.rosterHolder()
		h.fails.Store(true)
		must[*control.Done](c, &control.Kill{Job: job, Force: true})
		m.played[1].exits(job, 1, 0, 0, 9)
		time.Sleep(10 * time.Second)
		c.has(0, 1, 3) // the holder could not
		if !m.logged("node1 cannot leave the machine yet: ") {
			t.Error("why is not in the log")
		}
		h.fails.Store(false)
		time.Sleep(5 * time.Second)
		c.has(0, 3)
		c.refused(&control.RunRequest{Spec: on1}, control.Code_CODE_BAD_REQUEST, "node1 has left the machine: its nodes are node0,3 (margay nodes)")

		must[*control.NodesAdded](c, &control.GrowMachine{Count: 1})
		if n := c.node(1); n.Term != 2 || n.Drain != nil || n.Info != nil {
			t.Errorf("the next node1 is %v", n)
		}
		m.played[1].connect()
		c.run(only(1))
		must[*control.NodesLeaving](c, leave(true, 1))
		if s := c.ended(); s.Error == nil || s.Error.Code != control.Code_CODE_NODE_LOST || s.Error.Text != "it was taken out of the machine by op" {
			t.Errorf("its job ends as %v", s)
		}
	})
}

// What serve recorded of a node that left while serve was away is not the next one's.
func TestLeftWhileServeWasAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c := m.client()
		must[*control.NodesDrained](c, order("fan", 1, 2))
		gone := m.config.Roster.Without(1).Without(2)
		m.config.Roster, _, _ = gone.Grow(1)
		m.restart()
		c = m.client()
		c.has(0, 1)
		if n := c.node(1); n.Drain != nil || n.Info != nil || n.Health != control.NodeHealth_NODE_BOOTING {
			t.Errorf("the next node1 is %v", n)
		}
		m.played[0].connect()
		m.rosterHolder()
		must[*control.NodesAdded](c, &control.GrowMachine{Count: 1})
		if n := c.node(2); n.Drain != nil {
			t.Errorf("the next node2 is %v", n)
		}
	})
}

// A job does not wait for ever for a node that has left while serve was away.
func TestLeftWithJobWhileServeWasAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		job := m.client().run(only(1))
		m.config.Roster = m.config.Roster.Without(1)
		m.restart()
		c := m.attach(job)
		m.played[0].connect()
		if s := c.ended(); !errors.Is(s.Error.Err(), &control.Failure{Code: control.Code_CODE_NODE_LOST}) || !strings.Contains(s.Error.Text, "it has left the machine") {
			t.Errorf("it ends as %v", s)
		}
		c.run(spec(2))
	})
}

// A job that no longer fits on the machine keeps no other from the cores.
func TestQueueOfSmallerMachine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		m.rosterHolder()
		c.run(only(0))
		large := m.client().begin(&control.RunRequest{Spec: patient(4)})
		waits(t, large)
		must[*control.NodesLeaving](c, leave(false, 1))
		synctest.Wait()
		c.has(0)
		started(t, m.client().begin(&control.RunRequest{Spec: patient(1)}))
		waits(t, large)
	})
}

// Whatever its reason is, a connection that shows no valid token gets no further, and the log says
// why.
func TestJoinTokens(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c := m.client()
		m.rosterHolder()
		must[*control.NodesLeaving](c, leave(false, 1, 2))
		time.Sleep(time.Second)
		must[*control.NodesAdded](c, &control.GrowMachine{Count: 1}) // node1
		c.has(0, 1)
		secret := m.config.Secret
		for _, k := range []struct {
			node  uint32
			token string
			why   string
		}{
			{1, "", "does not show the join token of node1 of machine m"},
			{1, secret, "does not show the join token of node1 of machine m"},
			{1, trust.NodeToken(trust.NewToken(), 1, 2), "does not show the join token of node1 of machine m"},
			{1, trust.NodeToken(secret, 0, 1), "does not show the join token of node1 of machine m"},
			{1, trust.NodeToken(secret, 1, 3), "does not show the join token of node1 of machine m"},
			{1, trust.NodeToken(secret, 1, 1), "join token of node1 of machine m: the node that it was made for has left the machine, and another one has its number"},
			{2, trust.NodeToken(secret, 2, 1), "join token of node2 of machine m: that node has left the machine"},
			{9, trust.NodeToken(secret, 9, 1), "join token of node9 of machine m, which has node0-1"},
			{1<<32 - 1, trust.NodeToken(secret, id.Node(1<<32-1), 0), "which has node0-1"},
		} {
			conn := m.dial()
			_, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: k.token, Node: k.node, Program: "a stranger"})
			if !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) || !strings.Contains(err.Error(), k.why) {
				t.Errorf("node%d: %v, not %q", k.node, err, k.why)
			}
			synctest.Wait()
			if !m.logged(k.why) {
				t.Errorf("%q is not in the log", k.why)
			}
		}
	})
}

// While a node is up, no other one can register with its token. One that was reset can, when serve
// has noticed that the last boot is silent.
func TestTokenTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		second := m.player(0)
		second.boot = "another boot"
		attempt := func() error {
			conn := m.dial()
			if _, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: m.token(0), Program: "a second node"}); err != nil {
				return err
			}
			go conn.Serve(func(*control.Frame) {})
			_, err := conn.Call(t.Context(), second.register())
			return err
		}
		if err := attempt(); !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) || !strings.Contains(err.Error(), "a token admits one node") {
			t.Errorf("it is answered %v", err)
		}
		synctest.Wait()
		if n := c.node(0); n.Health != control.NodeHealth_NODE_UP || !m.logged("a token admits one node") {
			t.Errorf("node0 is %v", n)
		}
		m.played[0].silence()
		time.Sleep(3 * time.Second)
		second.connect()
		if n := c.node(0); n.Health != control.NodeHealth_NODE_UP {
			t.Errorf("node0 is %v", n)
		}
	})
}

// evict drains nodes and ends their jobs, and no others.
func TestEvict(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c, other, operator := m.client(), m.client(), m.client()
		job := c.run(spec(3)) // node0 and node1
		kept := other.run(only(2))
		evict := &control.EvictNodes{Nodes: []uint32{1}, Reason: "fan", User: "op"}
		if got := must[*control.NodesEvicted](operator, evict).Jobs; !slices.Equal(got, []uint32{job}) {
			t.Errorf("evicted: %v", got)
		}
		if s := c.ended(); s.Error == nil || s.Error.Text != "evicted by op: fan" || s.Error.Node != 1 {
			t.Errorf("it ends as %v", s)
		}
		if n := operator.node(1); n.Drain == nil || n.Drain.Reason != "fan" {
			t.Errorf("node1 is %v", n)
		}
		if got := must[*control.NodesEvicted](operator, evict).Jobs; len(got) > 0 {
			t.Errorf("evicted then: %v", got)
		}
		if p := other.summary(kept).Phase; p != control.JobPhase_JOB_RUNNING {
			t.Errorf("job %d is %v", kept, p)
		}
		operator.refused(&control.EvictNodes{Nodes: []uint32{1, 7}}, control.Code_CODE_NOT_FOUND, "no node7")
	})
}

// A node without enough memory gets no jobs until it has enough again, and a job that needs it says
// why it waits.
func TestIllNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, func(c *Config) { c.Fitness = fitness.Limits{MemoryMiB: 16, SpaceMiB: 4, Clock: time.Second} })
		c := m.client()
		m.played[1].silence()
		beat := func(free int64, v *control.Vitals) {
			for range 12 {
				m.played[1].tell(&control.Heartbeat{Number: 1, FreeMemory: free, Vitals: v})
				time.Sleep(500 * time.Millisecond)
			}
		}
		good := &control.Vitals{Space: 5 << 20}
		for why, bad := range map[string]*control.Vitals{
			"3 MiB are free in its /tmp, and 4 MiB are needed":              {Space: 3 << 20},
			"its clock is 2s behind the service node's, and 1s are allowed": {Space: -1, ClockNs: -2e9, ClockErrorNs: 9e8},
			"15 MiB of its memory are free, and 16 MiB are needed":          nil,
		} {
			free := int64(64 << 20)
			if bad == nil {
				free = 15 << 20
			}
			beat(free, bad)
			if n := c.node(1); n.Ill != why || n.Health != control.NodeHealth_NODE_UP {
				t.Fatalf("node1 is %v", n)
			}
			c.refused(&control.RunRequest{Spec: only(1)}, control.Code_CODE_NO_ROOM, "node1 is ill: "+why)
			waiting := m.client()
			patient := only(1)
			patient.WaitMs = -1
			answer := waiting.begin(&control.RunRequest{Spec: patient})
			synctest.Wait()
			waits(t, answer)
			beat(64<<20, good)
			if n := c.node(1); n.Ill != "" {
				t.Fatalf("node1 is %v", n)
			}
			must[*control.Done](c, &control.Kill{Job: started(t, answer), Force: true})
			if !m.logged("node1 gets no jobs until it is well: "+why) || !m.logged("node1 is well again: "+why) {
				t.Error("the log does not say so")
			}
		}
	})
}

// A node whose registration shows that it is ill is never given a job before it is well.
func TestIllFromTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, func(c *Config) { c.Fitness = fitness.Limits{SpaceMiB: 4, Clock: time.Second} })
		c := m.client()
		for i, ill := range []*control.Vitals{{Space: 3 << 20, ClockErrorNs: -1}, {Space: 5 << 20, ClockNs: 3e9, ClockErrorNs: 1e9}} {
			p := m.played[1]
			p.boot = fmt.Sprint("boot ", i)
			p.silence()
			register := p.register()
			register.Vitals, register.FreeMemory = ill, 1<<30
			p.conn.Close()
			synctest.Wait()
			p.connectAs(register)
			if n := c.node(1); n.Ill == "" || n.Health != control.NodeHealth_NODE_UP || n.FreeMemory != 1<<30 {
				t.Errorf("node1 is %v", n)
			}
			c.refused(&control.RunRequest{Spec: only(1)}, control.Code_CODE_NO_ROOM, "node1 is ill: ")
		}
	})
}

// membership is a random history of a machine that grows and shrinks, and its expected state.
type membership struct {
	t      *testing.T
	m      *machine
	rng    *rand.Rand
	c      *playedClient
	h      *playedHolder     // nil while it is not connected
	out    map[uint32]bool   // drained nodes: whether they are to leave
	jobs   map[uint32]uint32 // node, by job
	events []string
}

// Random histories of a machine that grows and shrinks, while jobs run, nodes are evicted and serve
// and its connection to the holder are restarted, match a simple model.
func TestMembershipModel(t *testing.T) {
	seed := check.Seed(t)
	histories := uint64(check.Rounds(4, 2000))
	for i := range histories {
		bubble(t, func(t *testing.T) {
			x := &membership{t: t, m: up(t, 2), rng: rand.New(rand.NewPCG(seed, i)), out: make(map[uint32]bool), jobs: make(map[uint32]uint32)}
			defer func() {
				if t.Failed() {
					t.Logf("history %d:\n%s", i, strings.Join(x.events, "\n"))
				}
			}()
			x.c, x.h = x.m.client(), x.m.rosterHolder()
			for range 40 {
				x.event()
				time.Sleep(3 * time.Second)
				x.check()
			}
		})
		if t.Failed() {
			return
		}
	}
}

func (x *membership) note(format string, args ...any) {
	x.events = append(x.events, fmt.Sprintf(format, args...))
}

// some returns one or more of the machine's nodes.
func (x *membership) some() (nodes []uint32) {
	all := x.m.config.Roster.Nodes
	for _, i := range x.rng.Perm(len(all))[:1+x.rng.IntN(len(all))] {
		nodes = append(nodes, all[i])
	}
	return nodes
}

func (x *membership) event() {
	switch p := x.rng.IntN(20); {
	case p < 4:
		x.grow(uint32(1 + x.rng.IntN(2)))
	case p < 8:
		x.shrink(x.some(), x.rng.IntN(3) == 0)
	case p < 10:
		nodes := x.some()
		x.note("evict %v", nodes)
		must[*control.NodesEvicted](x.c, &control.EvictNodes{Nodes: nodes})
		for _, node := range nodes {
			leaves := x.out[node]
			x.out[node] = leaves
			x.lose(node)
		}
	case p < 12:
		node := x.some()[0]
		x.note("resume %d", node)
		_, out := x.out[node]
		if _, err := x.c.ask(&control.ResumeNodes{Nodes: []uint32{node}}); (err == nil) != out {
			x.t.Fatalf("resume: %v", err)
		}
		delete(x.out, node)
	case p < 16:
		node := x.some()[0]
		_, out := x.out[node]
		s := only(node)
		s.Detach = true
		reply, err := x.c.ask(&control.RunRequest{Spec: s})
		x.note("run on %d: %v", node, err)
		if fits := !out && x.jobsOn(node) < 2; (err == nil) != fits {
			x.t.Fatalf("it fits: %v, and is answered with %v", fits, err)
		} else if fits {
			x.m.played[node].tell(&control.Loaded{Job: reply.(*control.RunReply).Job})
			x.jobs[reply.(*control.RunReply).Job] = node
		}
	case p < 18:
		if len(x.jobs) > 0 {
			job := slices.Min(slices.Collect(maps.Keys(x.jobs)))
			x.note("job %d on %d is killed", job, x.jobs[job])
			must[*control.Done](x.c, &control.Kill{Job: job, Force: true})
			delete(x.jobs, job)
		}
	default:
		x.restart()
	}
}

func (x *membership) jobsOn(node uint32) (n int) {
	for _, on := range x.jobs {
		if on == node {
			n++
		}
	}
	return n
}

// lose forgets the jobs of a node.
func (x *membership) lose(node uint32) {
	for job, on := range x.jobs {
		if on == node {
			delete(x.jobs, job)
		}
	}
}

func (x *membership) grow(count uint32) {
	x.note("grow by %d, holder %v", count, x.h != nil)
	if x.h == nil || len(x.m.config.Roster.Nodes) > 5 {
		if x.h == nil {
			x.c.refused(&control.GrowMachine{Count: count}, control.Code_CODE_RESTARTED, "holder is not connected")
		}
		return
	}
	for _, node := range must[*control.NodesAdded](x.c, &control.GrowMachine{Count: count}).Nodes {
		x.m.played[node].connect()
	}
}

func (x *membership) shrink(nodes []uint32, now bool) {
	x.note("shrink by %v, now %v", nodes, now)
	stays := slices.ContainsFunc(x.m.config.Roster.Nodes, func(node uint32) bool { return !x.out[node] && !slices.Contains(nodes, node) })
	if _, err := x.c.ask(leave(now, nodes...)); (err == nil) != stays {
		x.t.Fatalf("shrink: %v", err)
	} else if err != nil {
		return
	}
	for _, node := range nodes {
		if x.out[node] = true; now {
			x.lose(node)
		}
	}
}

// restart restarts serve, the holder's connection, or both. The holder may take its time.
func (x *membership) restart() {
	if x.h != nil && x.rng.IntN(2) == 0 {
		x.note("the holder is away")
		x.h.conn.Close()
		x.h = nil
		return
	}
	x.note("serve is killed, and the holder is there")
	x.m.restart()
	x.c = x.m.client()
	for _, node := range x.m.config.Roster.Nodes {
		n := x.m.played[node]
		n.jobs = nil
		for job, on := range x.jobs {
			if on == node {
				n.jobs = append(n.jobs, &control.HostedJob{Job: job, Phase: control.JobPhase_JOB_RUNNING})
			}
		}
		n.connect()
	}
	x.h = x.m.rosterHolder()
}

func (x *membership) check() {
	x.t.Helper()
	synctest.Wait()
	for node, leaves := range x.out {
		if leaves && x.h != nil && x.jobsOn(node) == 0 {
			if x.m.config.Roster.Has(node) {
				x.t.Fatalf("node%d is still there", node)
			}
			delete(x.out, node)
		}
	}
	list := must[*control.Nodes](x.c, &control.ListNodes{}).Nodes
	var nodes []uint32
	for _, n := range list {
		nodes = append(nodes, n.Node)
		leaves, out := x.out[n.Node]
		busy := 0
		for _, core := range n.Cores {
			if core.Job != 0 {
				busy++
			}
		}
		if n.Health != control.NodeHealth_NODE_UP || n.Term != x.m.config.Roster.Term(n.Node) || out != (n.Drain != nil) || leaves != n.Drain.GetLeave() || busy != x.jobsOn(n.Node) {
			x.t.Fatalf("out %v, leaves %v, %d jobs: %v", out, leaves, x.jobsOn(n.Node), n)
		}
	}
	if !slices.Equal(nodes, x.m.config.Roster.Nodes) {
		x.t.Fatalf("serve has the nodes %v, the holder %v", nodes, x.m.config.Roster)
	}
}
