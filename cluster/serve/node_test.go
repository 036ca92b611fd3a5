package serve

import (
	"crypto/tls"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
)

// node returns a node's entry in the list of nodes.
func (c *playedClient) node(number uint32) *control.NodeState {
	c.m.t.Helper()
	for _, n := range must[*control.Nodes](c, &control.ListNodes{}).Nodes {
		if n.Node == number {
			return n
		}
	}
	c.m.t.Fatalf("there is no node%d", number)
	return nil
}

// A node that makes progress with its boot over the network has longer to register, but not
// forever. After that the reason names its last stage.
func TestBootOverNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 2)
		h, c := m.local(control.Role_ROLE_HOLDER), m.client()
		for _, node := range []uint32{0, 1} {
			h.tell(&control.NodeBoot{Node: node, Boots: 1})
		}
		for range 3 {
			time.Sleep(time.Minute + 59*time.Second)
			h.tell(&control.NodeStage{Node: 1, Stage: "it fetches the kernel", Percent: 40})
			if state := c.node(1); state.Health != control.NodeHealth_NODE_BOOTING || state.Percent != 40 {
				t.Fatalf("node 1 is %v", state)
			}
		}
		if state := c.node(0); state.Health != control.NodeHealth_NODE_DEAD || strings.Contains(state.Reason, "last news") {
			t.Errorf("node 0, which does not get on, is %v", state)
		}
		for range 10 {
			time.Sleep(time.Minute)
			h.tell(&control.NodeStage{Node: 1, Stage: "it fetches the kernel", Percent: 50})
		}
		const want = "it did not register within 2m0s after the last news of its boot (it fetches the kernel, 50 %)"
		if state := c.node(1); state.Health != control.NodeHealth_NODE_DEAD || !strings.HasPrefix(state.Reason, want) || state.Stage != "it fetches the kernel" {
			t.Errorf("node 1, which begins again and again, is %v", state)
		}
	})
}

func TestHealth(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 2, func(c *Config) {
			c.Console = func(node id.Node, lines int) []string {
				return map[id.Node][]string{1: {fmt.Sprint("console of ", node), "Oops"}}[node]
			}
		})
		c := m.client()
		n := m.played[0]
		is := func(health control.NodeHealth, reason string) {
			t.Helper()
			if state := c.node(0); state.Health != health || state.Reason != reason {
				t.Errorf("after %v node 0 is %v, %q", time.Since(m.server.started), state.Health, state.Reason)
			}
		}
		is(control.NodeHealth_NODE_BOOTING, "")
		n.connect()
		is(control.NodeHealth_NODE_UP, "")
		time.Sleep(time.Hour)
		is(control.NodeHealth_NODE_UP, "")
		if state := c.node(0); state.FreeMemory != 32<<20 || state.UpMs < time.Hour.Milliseconds() || len(state.Cores) != 2 || state.SilentMs > 500 {
			t.Errorf("node 0 is %v", state)
		}
		if state := c.node(1); state.Health != control.NodeHealth_NODE_DEAD ||
			state.Reason != "it did not register within 2m0s (machine up --boot-timeout gives a slow or busy host longer); the last lines of its console:\n    console of 1\n    Oops" {
			t.Errorf("a node that never came is %v", state)
		}

		n.silence()
		time.Sleep(3 * time.Second)
		is(control.NodeHealth_NODE_LATE, "it is silent")
		n.tell(&control.Heartbeat{Number: 1})
		is(control.NodeHealth_NODE_UP, "")
		info := n.register().Info
		info.Scheduler = "sched_ext"
		n.tell(&control.Heartbeat{Number: 2, Info: info})
		if state := c.node(0); state.Info.Scheduler != "sched_ext" || len(state.Cores) != 2 {
			t.Errorf("after its scheduler has been started node 0 is %v", state)
		}
		n.tell(&control.Heartbeat{Number: 3})
		if state := c.node(0); state.Info.Scheduler != "sched_ext" {
			t.Errorf("then node 0 is %v", state)
		}
		time.Sleep(3 * time.Second)
		is(control.NodeHealth_NODE_LATE, "it is silent")
		time.Sleep(8 * time.Second)
		is(control.NodeHealth_NODE_DEAD, "it has been silent for 10s")
		<-n.conn.Done() // serve closes the connection

		n.connect()
		is(control.NodeHealth_NODE_UP, "")
		if !m.logged("node0 is back") {
			t.Error("nobody says that the node is back")
		}
		if c.node(0).UpMs < time.Hour.Milliseconds() {
			t.Error("the same boot of a node counts anew")
		}
		n.boot = "another boot"
		n.connect()
		if c.node(0).UpMs > 1000 {
			t.Error("another boot of a node counts on")
		}
	})
}

// The end of a node ends its jobs, and the reason names the node. Other jobs continue.
func TestNodeDies(t *testing.T) {
	cases := []struct {
		name string
		die  func(m *machine, n *playedNode)
		want string
	}{
		{"silence", func(_ *machine, n *playedNode) {
			n.silence()
			time.Sleep(13 * time.Second)
		}, "node1: it has been silent for 10s; if it stays silent, margay node reboot -m m node1 reboots it; machine up --dead-after waits longer on a busy host"},
		{"exit", func(m *machine, _ *playedNode) {
			m.local(control.Role_ROLE_HOLDER).tell(&control.NodeExit{Node: 1, Reason: "it was killed", Console: []string{"a", "b"}})
		}, "node1: it was killed; the last lines of its console:\n    a\n    b\nit stays down: margay node reboot -m m node1 reboots it"},
		{"retry", func(m *machine, _ *playedNode) {
			m.local(control.Role_ROLE_HOLDER).tell(&control.NodeExit{Node: 1, Reason: "it was killed", Console: []string{"a"}, Retry: true})
		}, "node1: it was killed; it is being restarted"},
		{"boot", func(_ *machine, n *playedNode) {
			n.boot = "another boot"
			n.connect()
		}, "node1: it was restarted and has lost the job"},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 3)
				c, other := m.client(), m.client()
				small := spec(2)
				survivor := other.run(small)
				c.run(spec(4))
				k.die(m, m.played[1])
				if state := c.ended(); state.Error.Err().Error() != k.want || state.ExitCode != 125 {
					t.Errorf("it ended as %v", state)
				}
				one[*control.Forget](t, &m.played[2].recorder)
				if s := other.summary(survivor); s.Phase != control.JobPhase_JOB_RUNNING {
					t.Errorf("another job is %v", s)
				}
			})
		})
	}
}

// A node whose ranks have ended and whose output is safe may die.
func TestNodeDiesTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(4))
		m.played[1].exits(job, 1, 2, 0, 0)
		m.played[1].exits(job, 2, 3, 0, 0)
		c.ackAll()
		m.played[1].silence()
		time.Sleep(13 * time.Second)
		m.played[0].exits(job, 1, 0, 0, 0)
		m.played[0].exits(job, 2, 1, 0, 0)
		c.ackAll()
		if state := c.ended(); state.ExitCode != 0 || state.Error != nil {
			t.Errorf("it ended as %v", state)
		}
	})
}

// Standard input that was in flight to a node that has reconnected, or arrived while the node was
// away, is sent again: by the client, to the ranks on this node, if one of them reads.
func TestNodeLacksInput(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		s := spec(3)
		s.Stdin = control.StdinMode_STDIN_ALL
		job := c.run(s)
		back := func(n *playedNode) {
			n.hosts(job, control.JobPhase_JOB_RUNNING)
			n.connect()
		}
		m.played[0].conn.Close()
		synctest.Wait()
		c.tell(&control.Stdin{Job: job, Data: []byte("lost"), Eof: true})
		back(m.played[0])
		if r := one[*control.Rewind](t, &c.recorder); r.Job != job || r.Node != 0 {
			t.Errorf("the client is to send again %v", r)
		}
		take[*control.Stdin](&m.played[1].recorder)
		c.tell(&control.Stdin{Job: job, Data: []byte("lost"), Eof: true, Only: []uint32{0, 77}})
		if in := take[*control.Stdin](&m.played[0].recorder); len(in) != 2 || in[0].Rank != 0 || in[1].Rank != 1 || string(in[1].Data) != "lost" || !in[1].Eof {
			t.Errorf("node 0 gets %v", in)
		}
		none[*control.Stdin](t, &m.played[1].recorder, "it lacks nothing")
		m.played[1].exits(job, 1, 2, 0, 0)
		back(m.played[1])
		none[*control.Rewind](t, &c.recorder, "its rank has ended")
	})
}

// Only a node with a rank that reads standard input can lack some of it.
func TestNodeOfNoReader(t *testing.T) {
	for mode, reads := range map[control.StdinMode][]uint32{control.StdinMode_STDIN_NONE: nil, control.StdinMode_STDIN_FIRST: {0}, control.StdinMode_STDIN_ALL: {0, 1}} {
		bubble(t, func(t *testing.T) {
			m := up(t, 2)
			c := m.client()
			s := spec(4)
			s.Stdin = mode
			job := c.run(s)
			for _, n := range m.played {
				n.hosts(job, control.JobPhase_JOB_RUNNING)
				n.connect()
			}
			var nodes []uint32
			for _, r := range take[*control.Rewind](&c.recorder) {
				nodes = append(nodes, r.Node)
			}
			if !slices.Equal(nodes, reads) {
				t.Errorf("%v: the nodes %v lack input", mode, nodes)
			}
		})
	}
}

func TestRefusedNodes(t *testing.T) {
	cases := []struct {
		name  string
		hello func(m *machine) *control.Hello
		code  control.Code
		want  string
		known bool // the node's state has the reason
	}{
		{"token", func(*machine) *control.Hello {
			return &control.Hello{Role: control.Role_ROLE_NODE, Token: trust.NewToken(), Program: "a stranger"}
		}, control.Code_CODE_REFUSED, "a stranger does not show the join token of node0 of machine m", false},
		{"no token", func(*machine) *control.Hello {
			return &control.Hello{Role: control.Role_ROLE_NODE, Program: "a stranger"}
		}, control.Code_CODE_REFUSED, "a stranger does not show the join token of node0 of machine m", false},
		{"role", func(m *machine) *control.Hello {
			return &control.Hello{Role: control.Role_ROLE_CLIENT, Token: m.token(9), Node: 9, Program: "a client"}
		}, control.Code_CODE_REFUSED, "a client does not show the join token of node9 of machine m", false},
		{"version", func(m *machine) *control.Hello {
			return &control.Hello{Version: 99, Role: control.Role_ROLE_NODE, Token: m.token(0), Program: "node image 9"}
		}, control.Code_CODE_VERSION, "node image 9 speaks version 99 of the control protocol, this machine's serve speaks version 7: " +
			"use the margay and the node image of one build", true},
		{"version without token", func(m *machine) *control.Hello {
			return &control.Hello{Version: 99, Role: control.Role_ROLE_NODE, Program: "x"}
		}, control.Code_CODE_VERSION, "x speaks version 99 of the control protocol, this machine's serve speaks version 7: " +
			"use the margay and the node image of one build", false},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := newMachine(t, 1)
				_, err := m.dial().Greet(k.hello(m))
				if !errors.Is(err, &control.Failure{Code: k.code}) || err.Error() != k.want {
					t.Errorf("refused with %v", err)
				}
				synctest.Wait()
				state := m.client().node(0)
				if refused := state.Health == control.NodeHealth_NODE_REFUSED; refused != k.known || refused && state.Reason != k.want {
					t.Errorf("the node is %v", state)
				}
			})
		})
	}
}

// A node that returns with an image that does not fit no longer has its jobs.
func TestRefusedNodeHadJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		c.run(spec(4))
		m.played[0].conn.Close()
		hello := &control.Hello{Version: 99, Role: control.Role_ROLE_NODE, Token: m.token(0), Program: "node image 9"}
		if _, err := m.dial().Greet(hello); !errors.Is(err, &control.Failure{Code: control.Code_CODE_VERSION}) {
			t.Fatalf("refused with %v", err)
		}
		time.Sleep(15 * time.Second)
		c.ackAll()
		if e := c.ended().Error; e.GetCode() != control.Code_CODE_NODE_LOST || !strings.Contains(e.GetText(), "node image 9 speaks version 99") {
			t.Errorf("the job ended with %v", e)
		}
		if state := m.client().node(0); state.Health != control.NodeHealth_NODE_REFUSED {
			t.Errorf("the node is %v", state)
		}
	})
}

// A node that describes itself without end does not make serve write without end; its last
// description is recorded.
func TestNodeTellsMuch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		n, s := m.played[0], m.server.store
		synctest.Wait()
		before := s.db.Stats()
		for i := range 100 {
			info := n.register().Info
			info.Version = fmt.Sprint(i)
			n.tell(&control.Heartbeat{Info: info})
		}
		if stats := s.db.Stats(); stats.TxStats.GetWrite() != before.TxStats.GetWrite() {
			t.Errorf("%d writes, then %d", before.TxStats.GetWrite(), stats.TxStats.GetWrite())
		}
		time.Sleep(time.Second)
		if nodes, err := s.nodes(); err != nil || nodes[0].Info.Version != "99" {
			t.Errorf("recorded is %v, %v", nodes, err)
		}
		recorded := s.db.Stats()
		n.tell(&control.Heartbeat{Info: m.client().node(0).Info})
		time.Sleep(time.Second)
		if stats := s.db.Stats(); stats.TxStats.GetWrite() != recorded.TxStats.GetWrite() {
			t.Error("what has not changed is recorded again")
		}
	})
}

func TestRegistration(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 1)
		greet := func() *control.Conn {
			conn := m.dial()
			if _, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: m.token(0), Program: "test"}); err != nil {
				t.Fatal(err)
			}
			go conn.Serve(func(*control.Frame) {})
			return conn
		}
		conn := greet()
		if _, err := conn.Call(t.Context(), &control.Heartbeat{}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("a heartbeat before Register: %v", err)
		}
		r := m.played[0].register()
		r.Info = nil
		if _, err := conn.Call(t.Context(), r); err == nil {
			t.Error("a node that says nothing about itself was taken")
		}
		answer, err := conn.Call(t.Context(), m.played[0].register())
		if err != nil {
			t.Fatal(err)
		}
		if a := answer.(*control.Registered); len(a.Certificate) == 0 || a.HeartbeatMs != 500 {
			t.Errorf("registered as %v", a)
		}
		if _, err := conn.Call(t.Context(), &control.Status{}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("a node asks what clients ask: %v", err)
		}
		// A key that cannot be certified leaves the node without one, and serve reports that.
		r = m.played[0].register()
		r.PublicKey = []byte("no key")
		answer, err = greet().Call(t.Context(), r)
		if err != nil || len(answer.(*control.Registered).Certificate) != 0 || !m.logged("public key of node0") {
			t.Errorf("a bad key: %v, %v", answer, err)
		}
	})
}

// A node gets no request before it knows that it is a member of the machine.
func TestRegisteredComesFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 1)
		config, err := trust.ToServe(m.config.Authority.Certificate())
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			conn := tls.Client(m.nodes.Dial(t), config)
			send := func(f *control.Frame) {
				t.Helper()
				if err := control.WriteFrame(conn, f); err != nil {
					t.Fatal(err)
				}
			}
			receive := func() *control.Frame {
				t.Helper()
				f, err := control.ReadFrame(conn)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			send(control.NewFrame(&control.Hello{Version: control.Version, Role: control.Role_ROLE_NODE, Token: m.token(0)}))
			receive()
			asked := make(chan error, 1)
			go func() {
				for {
					_, err := m.server.call(t.Context(), 0, new(control.ListExtensions))
					if err == nil || err.Error() != "node0: it is not connected" {
						asked <- err
						return
					}
				}
			}()
			register := control.NewFrame(m.played[0].register())
			register.Call = 7
			send(register)
			if f := receive(); f.Answer != 7 {
				t.Fatalf("first comes %v", f)
			}
			answer := control.NewFrame(new(control.Done))
			answer.Answer = receive().Call
			send(answer)
			if err := <-asked; err != nil {
				t.Fatal(err)
			}
			conn.Close()
			synctest.Wait()
		}
	})
}

func TestLocalRoles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 1)
		conn := control.NewConn(m.clients.Dial(t))
		defer conn.Close()
		_, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: m.token(0), Program: "test"})
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) {
			t.Errorf("a node on the clients' socket: %v", err)
		}
		old := control.NewConn(m.clients.Dial(t))
		defer old.Close()
		if _, err := old.Greet(&control.Hello{Version: 99, Role: control.Role_ROLE_CLIENT, Program: "an old margay"}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_VERSION}) {
			t.Errorf("an old client: %v", err)
		}
	})
}

// A panic on the console of a node explains why the node is silent, or has not come up. It ends
// nothing, because others can forge it, and it is of one boot.
func TestPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 2)
		h, c := m.local(control.Role_ROLE_HOLDER), m.client()
		m.played[1].connect()
		const says = "; its console says that its Linux has panicked: no\u009binit"
		for number, want := range []string{"it has not registered yet", ""} {
			h.tell(&control.NodePanic{Node: uint32(number), Reason: "no\u009binit"})
			if want != "" {
				want += strings.ReplaceAll(says, "\u009b", "?")
			}
			if state := c.node(uint32(number)); state.Reason != want || (state.Health == control.NodeHealth_NODE_UP) != (number == 1) {
				t.Errorf("node%d is %v", number, state)
			}
		}
		// The holder connects again, and reports another panic.
		forged := func(reason string) { h.tell(&control.NodePanic{Node: 0, Reason: reason}) }
		h.tell(&control.NodeBoot{Node: 0, Boots: 2})
		forged("no\u009binit")
		forged("VFS")
		forged("VFS")
		if state := c.node(0); state.Reason != "it has not registered yet; its console says that its Linux has panicked: VFS" {
			t.Errorf("node0 is %v", state)
		}
		m.played[1].conn.Close()
		time.Sleep(time.Minute)
		if state := c.node(1); state.Health != control.NodeHealth_NODE_DEAD || !strings.HasPrefix(state.Reason, "it has been silent for ") || !strings.HasSuffix(state.Reason, strings.ReplaceAll(says, "\u009b", "?")) {
			t.Errorf("node1 is %v", state)
		}
		h.tell(&control.NodeBoot{Node: 1, Boots: 1})
		if state := c.node(1); state.Reason != "" {
			t.Errorf("node1, which boots again, is %v", state)
		}
	})
}

// The holder reports the state of the nodes' substrates, and is notified of nodes that have come
// up.
func TestHolder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 2)
		m.played[1].connect()
		h := m.local(control.Role_ROLE_HOLDER)
		c := m.client()
		if u := one[*control.NodeUp](t, &h.recorder); u.Node != 1 {
			t.Errorf("the holder is told %v", u)
		}
		h.tell(&control.NodeExit{Node: 0, Reason: "it fell over", Retry: true})
		if state := c.node(0); state.Health != control.NodeHealth_NODE_DEAD || state.Reason != "it fell over; it is being restarted" || !state.Retry {
			t.Errorf("node 0 is %v", state)
		}
		if remedy := c.node(0).Remedy; remedy != "" {
			t.Errorf("for a node that is started once more there is %q to be done", remedy)
		}
		h.tell(&control.NodeBoot{Node: 0, Boots: 2})
		if state := c.node(0); state.Health != control.NodeHealth_NODE_BOOTING || !state.Retry {
			t.Errorf("node 0, which boots again, is %v", state)
		}
		h.tell(&control.NodeStage{Node: 0, Stage: "it fetches the kernel", Percent: 40})
		if state := c.node(0); state.Stage != "it fetches the kernel" || state.Percent != 40 {
			t.Errorf("node 0, which boots over the network, is %v", state)
		}
		h.tell(&control.NodeStage{Node: 1, Stage: "it fetches the kernel"})
		if state := c.node(1); state.Stage != "" {
			t.Errorf("node 1, which is up, is %v", state)
		}
		h.tell(&control.NodeBoot{Node: 7, Boots: 2})
		h.tell(&control.NodeExit{Node: 7})
		h.tell(&control.NodeStage{Node: 7})
		h.tell(&control.NodePanic{Node: 7})
		if state := c.node(0); state.Health != control.NodeHealth_NODE_BOOTING || state.Boots != 2 || !strings.HasPrefix(state.Reason, "it fell over") {
			t.Errorf("node 0 is %v", state)
		}
		h.tell(&control.NodeBoot{Node: 1, Boots: 1})
		if state := c.node(1); state.Health != control.NodeHealth_NODE_UP {
			t.Errorf("node 1 is %v", state)
		}
		m.played[0].connect()
		if u := one[*control.NodeUp](t, &h.recorder); u.Node != 0 {
			t.Errorf("the holder is told %v", u)
		}
		if state := c.node(0); state.Stage != "" {
			t.Errorf("node 0, which is up, is %v", state)
		}
		// Another holder connection replaces the first, whose end changes nothing.
		again := m.local(control.Role_ROLE_HOLDER)
		h.conn.Close()
		synctest.Wait()
		take[*control.NodeUp](&again.recorder)
		m.played[0].connect()
		one[*control.NodeUp](t, &again.recorder)
	})
}

func TestNodeLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.played[0].tell(&control.LogLine{Level: "warning", Text: "it is hot"})
		if !m.logged("node0: warning: it is hot") {
			t.Error("the line is not in the log")
		}
	})
}

func TestQuestionsToNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c := m.client()
		for _, n := range m.played {
			n.answers = map[string]proto.Message{
				"Noise":           &control.NoiseReport{Cores: []*control.CoreNoise{{Node: n.number, Core: 2}, {Node: n.number, Core: 1}}},
				"ListExtensions":  &control.Extensions{Extensions: []*control.ExtensionState{{Handle: 4}, {Handle: 3}}},
				"ReadEvents":      &control.Events{Lost: uint64(n.number)},
				"ReadClock":       &control.Clock{TimeNs: int64(n.number)},
				"ReadKernelLog":   &control.KernelLog{Records: []*control.KernelRecord{{Sequence: uint64(n.number), Text: []byte("\x1b[2J\n\xff")}}},
				"TakeSamples":     &control.Samples{Nodes: []*control.NodeSample{{Node: 77}}},
				"InsertExtension": &control.Extensions{Extensions: []*control.ExtensionState{{Handle: 9}}},
			}
		}
		var order []string
		for _, core := range must[*control.NoiseReport](c, &control.Noise{DurationMs: 10, Node: control.None}).Cores {
			order = append(order, fmt.Sprint(core.Node, ".", core.Core))
		}
		if !slices.Equal(order, []string{"0.1", "0.2", "1.1", "1.2", "2.1", "2.2"}) {
			t.Errorf("noise is reported in the order %v", order)
		}
		if _, err := c.ask(&control.Noise{DurationMs: 60_001, Node: control.None}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("noise for more than a minute: %v", err)
		}
		if _, err := c.ask(&control.ListExtensions{Node: 3}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
			t.Errorf("extensions of a node that is not: %v", err)
		}
		if list := must[*control.Extensions](c, &control.ListExtensions{Node: 1}).Extensions; len(list) != 2 || list[0].Handle != 3 || list[0].Node != 1 {
			t.Errorf("extensions of node 1: %v", list)
		}
		if _, err := c.ask(&control.InsertExtension{Job: 1, Node: control.None}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
			t.Errorf("an extension for no job: %v", err)
		}
		job := c.run(spec(4))
		if list := must[*control.Extensions](c, &control.InsertExtension{Job: job, Node: control.None}).Extensions; len(list) != 2 || list[1].Node != 1 {
			t.Errorf("inserted: %v", list)
		}
		if list := must[*control.Extensions](c, &control.InsertExtension{Node: control.None}).Extensions; len(list) != 3 {
			t.Errorf("inserted into the machine: %v", list)
		}
		if list := must[*control.Extensions](c, &control.InsertExtension{Node: 2}).Extensions; len(list) != 1 || list[0].Node != 2 {
			t.Errorf("inserted into the machine on node 2: %v", list)
		}
		must[*control.Done](c, &control.RemoveExtension{Node: 1, Handle: 9})
		if r := one[*control.RemoveExtension](t, &m.played[1].recorder); r.Handle != 9 {
			t.Errorf("removed: %v", r)
		}
		none[*control.RemoveExtension](t, &m.played[0].recorder, "another node was asked")

		// A change of cores' duties takes effect at once, and also holds for the next serve.
		m.played[2].answers["SetDuties"] = &control.DutiesSet{Info: &control.NodeInfo{Arch: runtime.GOARCH, Cores: []uint32{0, 1}, AllCores: true, MessageCore: 2}}
		must[*control.Done](c, &control.SetDuties{Node: 2, AllCores: control.Switch_SWITCH_ON})
		if info := c.node(2).Info; !info.AllCores || info.MessageCore != 2 || len(c.node(2).Cores) != 2 {
			t.Errorf("node 2 is %v", info)
		}
		m.played[0].refused["SetDuties"] = errors.New("job 7 has it")
		if _, err := c.ask(&control.SetDuties{Node: control.None}); err == nil || !strings.Contains(err.Error(), "node0: job 7 has it") {
			t.Errorf("a change that node 0 refuses: %v", err)
		}

		if x := must[*control.Events](c, &control.ReadEvents{Node: 2, Reader: 5, Positions: []uint64{6}}); x.Lost != 2 {
			t.Errorf("events of node 2: %v", x)
		}
		if r := one[*control.ReadEvents](t, &m.played[2].recorder); r.Reader != 5 || len(r.Positions) != 1 {
			t.Errorf("node 2 was asked %v", r)
		}
		if x := must[*control.Clock](c, &control.ReadClock{Node: 1}); x.TimeNs != 1 {
			t.Errorf("clock of node 1: %v", x)
		}
		if x := must[*control.KernelLog](c, &control.ReadKernelLog{Node: 1, Boot: []byte("b"), From: 7}); len(x.Records) != 1 || x.Records[0].Sequence != 1 || string(x.Records[0].Text) != "\x1b[2J\n\xff" {
			t.Errorf("log of the kernel of node 1: %v", x)
		}
		if r := one[*control.ReadKernelLog](t, &m.played[1].recorder); string(r.Boot) != "b" || r.From != 7 {
			t.Errorf("node 1 was asked %v", r)
		}
		m.played[1].slow = map[string]time.Duration{"ReadKernelLog": control.KernelLogWait + gatherTimeout - time.Second} // it waits for a record, and is slow besides
		must[*control.KernelLog](c, &control.ReadKernelLog{Node: 1, WaitMs: uint32(control.KernelLogWait.Milliseconds())})
		for _, q := range []proto.Message{&control.ReadEvents{Node: 3}, &control.ReadClock{Node: ^uint32(0)}, &control.TakeSamples{Node: 3}, &control.ReadKernelLog{Node: 3}} {
			if _, err := c.ask(q); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
				t.Errorf("%T to a node that is not: %v", q, err)
			}
		}
		if x := must[*control.Samples](c, &control.TakeSamples{Node: control.None}); len(x.Nodes) != 3 || x.Nodes[1].Node != 1 || x.Trouble != "" {
			t.Errorf("samples: %v", x)
		}
		m.played[1].refused["TakeSamples"] = errors.New("not now")
		if x := must[*control.Samples](c, &control.TakeSamples{Node: control.None}); len(x.Nodes) != 2 || x.Trouble != "node1: not now" {
			t.Errorf("samples of two: %v", x)
		}
		if _, err := c.ask(&control.TakeSamples{Node: 1}); err == nil || err.Error() != "node1: not now" {
			t.Errorf("samples of none: %v", err)
		}
		delete(m.played[1].refused, "TakeSamples")
		late := func(health control.NodeHealth, reason string) {
			m.server.mu.Lock()
			defer m.server.mu.Unlock()
			m.server.nodes[1].health, m.server.nodes[1].reason = health, reason
		}
		late(control.NodeHealth_NODE_LATE, "it is silent")
		if x := must[*control.Samples](c, &control.TakeSamples{Node: control.None}); len(x.Nodes) != 2 || x.Trouble != "node1: it is silent" {
			t.Errorf("samples while one is late: %v", x)
		}
		late(control.NodeHealth_NODE_UP, "")

		// The error of one node does not hide the answers of others, and names the node. The same
		// holds for silence.
		m.played[1].refused["RestartKernel"] = errors.New("not now")
		if _, err := c.ask(&control.RestartKernel{Node: 1}); err == nil || err.Error() != "node1: not now" {
			t.Errorf("an error of node 1: %v", err)
		}
		m.played[2].mute["ListExtensions"] = true
		if _, err := c.ask(&control.ListExtensions{Node: control.None}); err == nil || !strings.HasPrefix(err.Error(), "node2: no answer to ListExtensions") {
			t.Errorf("silence of node 2: %v", err)
		}
		if _, err := c.ask(&control.RestartKernel{Node: ^uint32(0)}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
			t.Errorf("there is a node that stands for all: %v", err)
		}
		if _, err := c.ask(&control.Prepare{}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("a client asks what serve asks: %v", err)
		}
	})
}

// A client that restarts the kernel of a node gets the answer when the next kernel has registered,
// and does not wait forever without an answer.
func TestRestartOfKernel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		restarted := make(chan error, 1)
		restart := func() {
			_, err := c.ask(&control.RestartKernel{Node: 1})
			restarted <- err
		}
		go restart()
		time.Sleep(time.Second) // the kernel still runs
		m.played[1].conn.Close()
		time.Sleep(time.Second)
		select {
		case err := <-restarted:
			t.Fatalf("while the node is away: %v", err)
		default:
		}
		m.played[1].connect()
		if err := <-restarted; err != nil {
			t.Error(err)
		}
		go restart()
		if err := <-restarted; err == nil || err.Error() != "node1: its kernel has not come back within 30s (margay nodes)" {
			t.Errorf("the kernel goes on: %v", err)
		}
	})
}

// The error of a request to a node that is not up names the machine, the node and where to look.
func TestNoNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		if _, err := c.ask(&control.ListExtensions{Node: 9}); err == nil || err.Error() != "the machine has no node9: its nodes are node0-1 (margay nodes)" {
			t.Errorf("no node: %v", err)
		}
		m.played[1].silence()
		time.Sleep(time.Minute)
		_, err := c.ask(&control.RestartKernel{Node: 1})
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NODE_LOST}) || !strings.HasPrefix(err.Error(), "node1: it is not up: ") {
			t.Errorf("a dead node: %v", err)
		}
	})
}

// The description of a dead node also names the remedy.
func TestRemedy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		m.local(control.Role_ROLE_HOLDER).tell(&control.NodeExit{Node: 1, Reason: "it was killed"})
		const remedy = "it stays down: margay node reboot -m m node1 reboots it"
		if state := c.node(1); state.Reason != "it was killed" || state.Remedy != remedy {
			t.Errorf("node 1 is %v", state)
		}
		const want = "node1: it is not up: it was killed; " + remedy + " (margay nodes)"
		if _, err := c.ask(&control.RestartKernel{Node: 1}); err == nil || err.Error() != want {
			t.Errorf("%v instead of %s", err, want)
		}
		m.played[1].connect()
		if state := c.node(1); state.Reason != "" || state.Remedy != "" {
			t.Errorf("when it is back, node 1 is %v", state)
		}
	})
}

// serve has missed the time beyond one check interval.
func TestAbsence(t *testing.T) {
	const every = 200 * time.Millisecond
	for since, want := range map[time.Duration]time.Duration{0: 0, every: 0, 399 * time.Millisecond: 0, 2 * every: every, time.Minute: time.Minute - every} {
		if got := absence(since, every); got != want {
			t.Errorf("after %v it was away for %v, not %v", since, got, want)
		}
	}
}

// The times of heartbeats grow with a machine of many nodes, so that these do not load serve, and
// with them its judgement of silent ones.
func TestPace(t *testing.T) {
	timing := Timing{Space: 4 * time.Millisecond}.withDefaults()
	for nodes, want := range map[int]time.Duration{1: 1, 125: 1, 126: 2, 250: 2, 1000: 8} {
		if got := timing.pace(nodes); got != want {
			t.Errorf("%d nodes: %d times as long, want %d", nodes, got, want)
		}
	}
	bubble(t, func(t *testing.T) {
		m := up(t, 2, func(c *Config) { c.Timing.Space = time.Second }) // four times as long
		m.played[1].silence()
		health := func(after time.Duration) control.NodeHealth {
			time.Sleep(after)
			return must[*control.Nodes](m.client(), &control.ListNodes{}).Nodes[1].Health
		}
		timing := m.server.config.Timing
		for _, want := range []struct {
			after  time.Duration
			health control.NodeHealth
		}{
			{timing.Dead / 2, control.NodeHealth_NODE_UP},
			{2 * timing.Dead, control.NodeHealth_NODE_LATE},
			{2 * timing.Dead, control.NodeHealth_NODE_DEAD},
		} {
			if got := health(want.after); got != want.health {
				t.Errorf("after further %v of silence it is %v, want %v", want.after, got, want.health)
			}
		}
	})
}

// Nodes that the holder has not started yet are not dead as long as others come up.
func TestManyBoot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 3)
		boot := m.server.config.Timing.Boot
		time.Sleep(boot / 2)
		m.played[0].connect()
		time.Sleep(boot * 3 / 4)
		m.played[1].connect()
		if got := must[*control.Nodes](m.client(), &control.ListNodes{}).Nodes[2].Health; got != control.NodeHealth_NODE_BOOTING {
			t.Errorf("a node whose turn has not come is %v", got)
		}
		time.Sleep(boot * 5 / 4)
		if got := must[*control.Nodes](m.client(), &control.ListNodes{}).Nodes[2].Health; got != control.NodeHealth_NODE_DEAD {
			t.Errorf("when no other comes up, it is %v", got)
		}
	})
}

// A time of one's own after which nodes are dead grows with the intervals of heartbeats only as far
// as it has no room for them.
func TestDeadAfter(t *testing.T) {
	for _, c := range []struct{ dead, pace, want time.Duration }{
		{0, 1, 10 * time.Second}, {0, 8, 80 * time.Second}, {time.Minute, 1, time.Minute}, {time.Minute, 8, 80 * time.Second},
		{5 * time.Minute, 8, 5 * time.Minute}, {2 * time.Second, 1, 2 * time.Second}, {2 * time.Second, 8, 16 * time.Second},
	} {
		if got := (Timing{Dead: c.dead}).withDefaults().deadAfter(c.pace); got != c.want {
			t.Errorf("%v, %d times as long: %v, want %v", c.dead, c.pace, got, c.want)
		}
	}
}

// A node that the holder does not get to start is dead after a time in which others come up.
func TestNeverStarted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 2)
		boot := m.server.config.Timing.Boot
		for range 2 * bootExtension {
			time.Sleep(boot / 2)
			m.played[0].connect()
		}
		time.Sleep(boot / 2)
		if got := must[*control.Nodes](m.client(), &control.ListNodes{}).Nodes[1].Health; got != control.NodeHealth_NODE_DEAD {
			t.Errorf("it is %v", got)
		}
	})
}
