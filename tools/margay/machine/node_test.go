package machine_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// The requests have all nodes that the arguments name, in order. Only -v prints the result.
func TestDrainAndResume(t *testing.T) {
	for _, c := range []struct {
		args   string
		want   proto.Message
		answer proto.Message
		stderr string
	}{
		{"node drain 2", &control.DrainNodes{Nodes: []uint32{2}, User: client.UserName()}, &control.NodesDrained{}, ""},
		{"node drain node[1-2,10] 4..5 node1 --reason fan -v", &control.DrainNodes{Nodes: []uint32{1, 2, 4, 5, 10}, Reason: "fan", User: client.UserName()},
			&control.NodesDrained{Busy: []uint32{4, 5}},
			"margay: node1-2,4-5,10: out of service\nmargay: node4-5: draining, until its jobs have ended (margay nodes)\n"},
		{"node resume node3,1", &control.ResumeNodes{Nodes: []uint32{1, 3}, User: client.UserName()}, &control.Done{}, ""},
		{"node resume -v 1-2", &control.ResumeNodes{Nodes: []uint32{1, 2}, User: client.UserName()}, &control.Done{}, "margay: node1-2: in service again\n"},
	} {
		got := make(chan proto.Message, 1)
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			got <- question
			return c.answer, nil
		}, strings.Fields(c.args)...)
		if status != 0 || stdout != "" || stderr != c.stderr {
			t.Errorf("%s: status %d, %q, %q", c.args, status, stdout, stderr)
		}
		if question := <-got; !proto.Equal(question, c.want) {
			t.Errorf("%s: serve is asked %v", c.args, question)
		}
	}
	for args, want := range map[string]string{
		"node drain":              "node drain: NODE is missing: ",
		"node drain x":            `"x" is not a node: nodes are called node0 or 0, node1 or 1, and so on (margay nodes)`,
		"node drain 1 --reason=":  "node drain: --reason is empty",
		"node drain 4-1":          "the range 4-1 runs backwards",
		"node resume node[1-3":    "its brackets do not match: node[1-4,10]",
		"node":                    "node needs a command: approve, dmesg, drain, evict, power, reboot, resume, token, update (margay node --help)",
		"node undrain 1":          "did you mean margay node resume?",
		"node drain 1 -v --quiet": "node drain: -q and -v exclude each other",
	} {
		status, _, stderr := margaytest.Margay("", strings.Fields(args)...)
		margaytest.Wants(t, status, 125, stderr, "margay: ", want)
	}
	status, _, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "node1 is not drained")
	}, "node", "resume", "1")
	margaytest.Wants(t, status, 125, stderr, "margay: node1 is not drained\n")
}

// reboot asks for the nodes and waits until they are up, or reports that one is not.
func TestReboot(t *testing.T) {
	const booting, up, dead = control.NodeHealth_NODE_BOOTING, control.NodeHealth_NODE_UP, control.NodeHealth_NODE_DEAD
	for _, c := range []struct {
		args   string
		want   *control.RebootNodes
		lists  [][3]control.NodeHealth // of node0 to node2, one after the other; the last one goes on
		status int
		stderr string
	}{
		{"node reboot 1-2 -v", &control.RebootNodes{Nodes: []uint32{1, 2}}, [][3]control.NodeHealth{{dead, booting, up}, {dead, up, up}}, 0,
			"margay: node1-2: rebooted\nmargay: node1-2: up\n"},
		{"node reboot --force 1", &control.RebootNodes{Nodes: []uint32{1}, Force: true}, [][3]control.NodeHealth{{up, booting, up}, {up, dead, up}}, 125,
			"margay: node1 did not come up: it fell over\n"},
		{"node reboot 1 --no-wait", &control.RebootNodes{Nodes: []uint32{1}}, nil, 0, ""},
	} {
		c.want.User = client.UserName()
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			if _, ok := question.(*control.ListNodes); !ok {
				if !proto.Equal(question, c.want) {
					t.Errorf("%s: serve is asked %v", c.args, question)
				}
				return &control.Done{}, nil
			}
			list := new(control.Nodes)
			for node, health := range c.lists[0] {
				list.Nodes = append(list.Nodes, &control.NodeState{Node: uint32(node), Health: health, Reason: "it fell over"})
			}
			if len(c.lists) > 1 {
				c.lists = c.lists[1:]
			}
			return list, nil
		}, strings.Fields(c.args)...)
		margaytest.Wants(t, status, c.status, stdout+stderr, c.stderr)
	}
}

// The status of a machine counts nodes that are out of service.
func TestStatusWithDrainedNodes(t *testing.T) {
	status, stdout, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) {
		return &control.MachineStatus{Machine: "m", Substrate: "hosted", Nodes: 4, Up: 3, Drained: 2, Cores: 6, FreeCores: 4, Jobs: 1}, nil
	}, "machine", "status")
	margaytest.Wants(t, status, 0, stdout+stderr, "machine m (hosted): 3 of 4 nodes up, 2 drained, 4 of 6 application cores free, 1 job\n")
}
