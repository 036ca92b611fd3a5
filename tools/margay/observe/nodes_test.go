package observe_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// A node that is not up has no free cores, and the remark about a dead one names the remedy.
func TestNodesNotUp(t *testing.T) {
	status, stdout, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) {
		cores := []*control.CoreUse{{Core: 1, Job: 4, Ranks: []uint32{0}}, {Core: 2}}
		info := &control.NodeInfo{Memory: 64 << 20, Profile: "shared", Kernel: "9.9", Fabric: "udp"}
		trusted := proto.CloneOf(info)
		trusted.Fabric = "udp-trusted"
		return &control.Nodes{Nodes: []*control.NodeState{
			{Node: 0, Health: control.NodeHealth_NODE_UP, Info: info, Cores: cores},
			{Node: 1, Health: control.NodeHealth_NODE_LATE, Info: info, Cores: cores, Reason: "it is silent"},
			{Node: 2, Health: control.NodeHealth_NODE_DEAD, Info: trusted, Cores: cores, Reason: "it was killed", Remedy: "do something"},
			{Node: 3, Health: control.NodeHealth_NODE_DEAD, Reason: "it did not register", Remedy: "do something"},
		}}, nil
	}, "nodes")
	want := `NODE   STATE  CORES  FREE  MEMORY  PROFILE  SHARING  FABRIC       KERNEL  JOBS
node0  up     2      1     64 MiB  shared   -        udp          9.9     4.0
node1  late   2      0     64 MiB  shared   -        udp          9.9     4.0
node2  dead   2      0     64 MiB  shared   -        udp-trusted  9.9     4.0
node3  dead   -      -     -       -        -        -            -       -
node1: it is silent
node2: it was killed
node2-3: do something
node2 sends messages to other nodes that are neither encrypted nor authenticated
node3: it did not register
`
	if status != 0 || stdout != want {
		t.Errorf("status %d, %s\n%s", status, stderr, stdout)
	}
}

func TestOneNode(t *testing.T) {
	nodes := &control.Nodes{Nodes: []*control.NodeState{{Node: 0}, {Node: 1, Reason: "no power"}, {Node: 2}}}
	list := func(args ...string) (status int, stdout, stderr string) {
		return margaytest.Played(t, func(proto.Message) (proto.Message, error) { return nodes, nil }, args...)
	}
	status, stdout, stderr := list("nodes", "--node", "node1")
	margaytest.Wants(t, status, 0, stderr)
	if strings.Contains(stdout, "node0") || strings.Contains(stdout, "node2") || !strings.Contains(stdout, "node1: no power") {
		t.Errorf("it lists\n%s", stdout)
	}
	if _, stdout, _ := list("nodes", "--node", "1", "--json"); strings.Count(stdout, `"health"`) != 1 || !strings.Contains(stdout, "no power") {
		t.Errorf("it lists\n%s", stdout)
	}
	status, _, stderr = list("nodes", "--node", "7")
	margaytest.Wants(t, status, 125, stderr, "the machine has no node7")
}
