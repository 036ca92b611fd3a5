package serve

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
)

// A node with the configuration of one node cannot pose as another.
func TestImposter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		greet := func(node uint32) (*control.Conn, error) {
			conn := m.dial()
			_, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: m.token(0), Node: node, Program: "an imposter"})
			go conn.Serve(func(*control.Frame) {})
			return conn, err
		}
		refused := &control.Failure{Code: control.Code_CODE_REFUSED}
		if _, err := greet(2); !errors.Is(err, refused) || !strings.Contains(err.Error(), "does not show the join token of node2") {
			t.Errorf("node0 greets as node2: %v", err)
		}
		conn, err := greet(0)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := conn.Call(t.Context(), m.played[2].register()); !errors.Is(err, refused) || err.Error() != "node0: node0 registers as node2" {
			t.Errorf("node0 registers as node2: %v, %v", answer, err)
		}
		if answer, err := conn.Call(t.Context(), m.played[0].register()); err != nil {
			t.Errorf("node0 registers as itself after that: %v, %v", answer, err)
		}
		if answer, err := conn.Call(t.Context(), m.played[2].register()); !errors.Is(err, refused) {
			t.Errorf("node0 registers as node2 after that: %v, %v", answer, err)
		}
		for node := range uint32(3) {
			if state := m.client().node(node); state.Health != control.NodeHealth_NODE_UP {
				t.Errorf("node%d is %v", node, state)
			}
		}
		if m.played[2].conn.Err() != nil {
			t.Error("the true node2 was disconnected")
		}
	})
}

// Neither the machine's secret nor the token of another machine admits a node.
func TestTokensOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 1)
		for _, token := range []string{m.config.Secret, trust.NodeToken(trust.NewToken(), 0, 1), m.token(1)} {
			_, err := m.dial().Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: token, Program: "an imposter"})
			if !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) {
				t.Errorf("%s is admitted: %v", token, err)
			}
		}
	})
}

// A node's messages about a job in which it has no part change nothing.
func TestWordsAboutJobsOfOthers(t *testing.T) {
	about := map[string]func(job uint32) proto.Message{
		"fault": func(job uint32) proto.Message {
			return &control.JobFault{Job: job, Error: control.FromError(control.Failf(control.Code_CODE_FAILED, "said by an imposter").At(0).Of(0))}
		},
		"loaded": func(job uint32) proto.Message {
			return &control.Loaded{Job: job, Error: control.FromError(control.Failf(control.Code_CODE_FAILED, "said by an imposter"))}
		},
		"output": func(job uint32) proto.Message {
			return &control.Record{Job: job, Seq: 1, Stream: control.Stream_STREAM_STDOUT, Data: []byte("x")}
		},
		"exit": func(job uint32) proto.Message {
			return &control.Record{Job: job, Seq: 1, Stream: control.Stream_STREAM_EXIT, Exit: &control.ExitStatus{Code: 7}}
		},
		"stdin": func(job uint32) proto.Message { return &control.StdinTaken{Job: job, Offset: 1 << 40} },
		"files": func(job uint32) proto.Message { return &control.FileTaken{Job: job, Offset: 1 << 40} },
	}
	for name, word := range about {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 3)
				c := m.client()
				job := c.run(spec(2)) // on node 0
				take[proto.Message](&c.recorder)
				m.played[2].tell(word(job))
				if got := take[proto.Message](&c.recorder); len(got) > 0 {
					t.Errorf("the client is told %v", got)
				}
				if s := c.summary(job); s.Phase != control.JobPhase_JOB_RUNNING {
					t.Errorf("the job is %v", s)
				}
				if _, err := m.played[2].conn.Call(t.Context(), word(job)); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
					t.Errorf("asked for an answer: %v", err)
				}
			})
		})
	}
}

// A node of a job speaks for itself and its ranks only.
func TestNodeSpeaksForItself(t *testing.T) {
	fault := control.FromError(control.Failf(control.Code_CODE_FAILED, "said by an imposter").At(0).Of(1))
	cases := map[string]func(c *playedClient, n *playedNode){
		"fault": func(c *playedClient, n *playedNode) { n.tell(&control.JobFault{Job: c.run(spec(4)), Error: fault}) },
		"loaded": func(c *playedClient, n *playedNode) {
			reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(4)})
			n.tell(&control.Loaded{Job: reply.Job, Error: fault})
		},
	}
	for name, say := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				say(c, m.played[1])
				if state := c.ended(); state.Error.Err().Error() != "node1: said by an imposter" {
					t.Errorf("it ended as %v", state)
				}
			})
		})
	}
	t.Run("progress of others", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			m := up(t, 2)
			c := m.client()
			job := c.run(spec(4))
			take[proto.Message](&c.recorder)
			m.played[1].tell(&control.StdinTaken{Job: job, Rank: 0, Offset: 1})
			m.played[1].tell(&control.StdinTaken{Job: job, Rank: 99, Offset: 1})
			m.played[1].tell(&control.FileTaken{Job: job, Offset: 1})
			if got := take[proto.Message](&c.recorder); len(got) > 0 {
				t.Errorf("the client is told %v", got)
			}
			m.played[1].tell(&control.StdinTaken{Job: job, Rank: 3, Offset: 1})
			m.played[0].tell(&control.FileTaken{Job: job, Offset: 1})
			if got := take[proto.Message](&c.recorder); len(got) != 2 {
				t.Errorf("the client is told %v", got)
			}
		})
	})
}

// The number of a node determines its address, whatever the node reports, now and later.
func TestAddressOfNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 2, func(c *Config) {
			c.Address = func(node id.Node) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(node)}) }
		})
		conn := m.dial()
		if _, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: m.token(1), Node: 1, Program: "test"}); err != nil {
			t.Fatal(err)
		}
		go conn.Serve(func(*control.Frame) {})
		for _, address := range []string{"10.0.0.0:1", "10.0.0.1", "serve:1", ""} {
			r := m.played[1].register()
			r.Info.Address = address
			if _, err := conn.Call(t.Context(), r); !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) {
				t.Errorf("node1 registers at %q: %v", address, err)
			}
		}
		m.played[1].connect()
		info := m.played[1].register().Info
		info.Address, info.Version = "10.0.0.0:1", "changed"
		m.played[1].tell(&control.Heartbeat{Info: info})
		if got := m.client().node(1).Info; got.Address != "10.0.0.1:1" || got.Version != "changed" {
			t.Errorf("node1 is %v", got)
		}
	})
}
