package observe_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

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
			{Node: 4, Health: control.NodeHealth_NODE_BOOTING, Stage: "it fetches the kernel", Percent: 40},
			{Node: 5, Health: control.NodeHealth_NODE_BOOTING, Stage: "it has got its address"},
			{Node: 6, Health: control.NodeHealth_NODE_OFF, Waits: true, Reason: "waiting until it is switched on"},
		}, Guests: &control.Guests{Guests: []*control.Guest{{Mac: "52:54:00:00:00:01"}, {Mac: "52:54:00:00:00:02", Doubt: "its image is for another machine"}}, Notices: []string{"eth1: another DHCP server"}}}, nil
	}, "nodes")
	stdout = regexp.MustCompile(`since [-0-9]+ [:0-9]+`).ReplaceAllString(stdout, "since then")
	want := `NODE               STATE    CORES  FREE  MEMORY  PROFILE  SHARING  FABRIC       KERNEL  JOBS
node0              up       2      1     64 MiB  shared   -        udp          9.9     4.0
node1              late     2      0     64 MiB  shared   -        udp          9.9     4.0
node2              dead     2      0     64 MiB  shared   -        udp-trusted  9.9     4.0
node3              dead     -      -     -       -        -        -            -       -
node4              booting  -      -     -       -        -        -            -       -
node5              booting  -      -     -       -        -        -            -       -
node6              waiting  -      -     -       -        -        -            -       -
52:54:00:00:00:01  waiting  -      -     -       -        -        -            -       -
52:54:00:00:00:02  waiting  -      -     -       -        -        -            -       -
node1: it is silent
node2: it was killed
node2-3: do something
node2 sends messages to other nodes that are neither encrypted nor authenticated
node3: it did not register
node4: boot over the network: it fetches the kernel (40 %)
node5: boot over the network: it has got its address
node6: waiting until it is switched on
eth1: another DHCP server
52:54:00:00:00:01 waits since then until it is made a node: margay node approve -m m 52:54:00:00:00:01
52:54:00:00:00:02 waits since then, and would not join: its image is for another machine
`
	if status != 0 || stdout != want {
		t.Errorf("status %d, %s\n%s", status, stderr, stdout)
	}
}

// A node that is out of service has no free cores. Its state is draining or drained while it is up,
// and a remark has the reason.
func TestNodesDrained(t *testing.T) {
	since := time.Date(2026, 11, 25, 13, 40, 5, 0, time.Local).UnixNano()
	drain := func(state control.DrainState, reason string) *control.Drain {
		return &control.Drain{State: state, Reason: reason, User: "op", SinceNs: since}
	}
	nodes := &control.Nodes{}
	for i, d := range []*control.Drain{
		drain(control.DrainState_DRAIN_DRAINING, "fan"), drain(control.DrainState_DRAIN_DRAINED, "fan"), drain(control.DrainState_DRAIN_DRAINED, ""),
		drain(control.DrainState_DRAIN_DRAINED, "fan"), nil,
	} {
		cores := []*control.CoreUse{{Core: 1}, {Core: 2}}
		if d.GetState() == control.DrainState_DRAIN_DRAINING {
			cores[0] = &control.CoreUse{Core: 1, Job: 4, Ranks: []uint32{0}}
		}
		nodes.Nodes = append(nodes.Nodes, &control.NodeState{
			Node: uint32(i), Health: control.NodeHealth_NODE_UP, Drain: d, Cores: cores,
			Info: &control.NodeInfo{Memory: 64 << 20, Profile: "shared", Kernel: "9.9", Fabric: "tcp"},
		})
	}
	nodes.Nodes[3].Health, nodes.Nodes[3].Reason = control.NodeHealth_NODE_LATE, "it is silent"
	list := func(args ...string) (status int, stdout, stderr string) {
		return margaytest.Played(t, func(proto.Message) (proto.Message, error) { return nodes, nil }, args...)
	}
	status, stdout, stderr := list("nodes")
	want := `NODE   STATE     CORES  FREE  MEMORY  PROFILE  SHARING  FABRIC  KERNEL  JOBS
node0  draining  2      0     64 MiB  shared   -        tcp     9.9     4.0
node1  drained   2      0     64 MiB  shared   -        tcp     9.9
node2  drained   2      0     64 MiB  shared   -        tcp     9.9
node3  late      2      0     64 MiB  shared   -        tcp     9.9
node4  up        2      2     64 MiB  shared   -        tcp     9.9
node0 is draining (since 2026-11-25 13:40:05, by op): fan
node1,3 are drained (since 2026-11-25 13:40:05, by op): fan
node2 is drained (since 2026-11-25 13:40:05, by op)
node3: it is silent
`
	if status != 0 || stdout != want {
		t.Errorf("status %d, %s\n%s", status, stderr, stdout)
	}
	if _, stdout, _ := list("nodes", "--json"); strings.Count(stdout, `"state": "drained"`) != 3 || strings.Count(stdout, `"state": "draining"`) != 1 ||
		strings.Count(stdout, `"drain": null`) != 1 || !strings.Contains(stdout, `"reason": "fan"`) || !strings.Contains(stdout, `"user": "op"`) {
		t.Errorf("for programs:\n%s", stdout)
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
