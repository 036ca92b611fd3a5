package observe_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
	"margay/tools/margay/observe"
)

// mapOf returns what margay nodes --map prints of nodes.
func mapOf(t *testing.T, nodes ...*control.NodeState) string {
	t.Helper()
	status, stdout, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) { return &control.Nodes{Nodes: nodes}, nil }, "nodes", "--map")
	margaytest.Wants(t, status, 0, stderr)
	return stdout
}

// A map has a character for each node, each state another one, and says what they mean.
func TestMap(t *testing.T) {
	with := func(jobs ...uint32) (cores []*control.CoreUse) {
		for _, job := range jobs {
			cores = append(cores, &control.CoreUse{Job: job})
		}
		return cores
	}
	const up = control.NodeHealth_NODE_UP
	nodes := []*control.NodeState{
		{Health: up, Cores: with(0, 0)}, {Health: up, Cores: with(7, 0)}, {Health: up, Cores: with(7, 7)}, {Health: up, Cores: with(3)}, {Health: up, Cores: with(7, 3)},
		{Health: up, Cores: with(7), Drain: &control.Drain{State: control.DrainState_DRAIN_DRAINING}},
		{Health: up, Drain: &control.Drain{State: control.DrainState_DRAIN_DRAINED}}, {Health: up, Ill: "no memory"},
		{Health: control.NodeHealth_NODE_BOOTING}, {Health: control.NodeHealth_NODE_OFF, Waits: true}, {Health: control.NodeHealth_NODE_LATE, Cores: with(7)},
		{Health: control.NodeHealth_NODE_OFF}, {Health: control.NodeHealth_NODE_DEAD}, {Health: control.NodeHealth_NODE_DEAD}, {Health: control.NodeHealth_NODE_REFUSED},
	}
	for i, n := range nodes {
		n.Node = uint32(i)
	}
	nodes[14].Node = 130 // the machine was shrunk
	want := `  0 .aab*/=!:~?_##
 70                                                             %
. idle: 1 of 15 nodes; * several jobs, or one without a letter: 4
jobs: a 7, b 3
/ draining: 5; = drained: 6; ! ill: 7; : booting: 8; ~ waiting: 9; ? late: 10; _
    off: 11; # dead: 12-13; % refused: 130
`
	if got := mapOf(t, nodes...); got != want {
		t.Errorf("the map is\n%s", got)
	}
	if got := mapOf(t); got != "the machine has no nodes\n" {
		t.Errorf("without nodes: %q", got)
	}
	for _, other := range []string{"json", "noise"} {
		status, _, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) { return &control.Nodes{}, nil }, "nodes", "--map", "--"+other)
		margaytest.Wants(t, status, 125, stderr, "map", other)
	}
}

// Each state but up has a sign of its own on the map.
func TestSigns(t *testing.T) {
	signs := observe.Signs()
	for _, state := range observe.States() {
		if sign, is := signs[state]; !is {
			t.Errorf("state %s has no sign", state)
		} else {
			delete(signs, state)
			for other, same := range signs {
				if same == sign {
					t.Errorf("%s and %s have the same sign", state, other)
				}
			}
		}
	}
}

// A thousand nodes, with more jobs than there are letters, fit on a terminal of 25 lines.
func TestMapOfThousand(t *testing.T) {
	var nodes []*control.NodeState
	for i := range uint32(1000) {
		nodes = append(nodes, &control.NodeState{Node: i, Health: control.NodeHealth_NODE_UP, Cores: []*control.CoreUse{{Job: 1000 + i/10}}})
	}
	got := mapOf(t, nodes...)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	for _, line := range lines {
		if len(line) > 80 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if len(lines) > 25 || strings.Count(got, "aaaaaaaaaa") != 1 || strings.Count(got, "*") != 480+1 {
		t.Errorf("%d lines:\n%s", len(lines), got)
	}
}
