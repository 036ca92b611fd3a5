package machine_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// A single number is how many nodes leave, and everything else names nodes. The command waits until
// they have left.
func TestShrink(t *testing.T) {
	for args, want := range map[string][]uint32{
		"machine shrink 2":            {2, 3},
		"machine shrink 2 3":          {2, 3},
		"machine shrink node[0,2] 1":  {0, 1, 2},
		"machine shrink node1 --now":  {1},
		"machine shrink 1..2 --quiet": {1, 2},
	} {
		var leaving []uint32
		lists := 0
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			if m, ok := question.(*control.ShrinkMachine); ok {
				leaving = m.Nodes
				if m.Now != strings.Contains(args, "--now") {
					t.Errorf("%s: %v", args, m)
				}
				return &control.NodesLeaving{Nodes: m.Nodes, Terms: make([]uint32, len(m.Nodes)), Busy: m.Nodes[:1]}, nil
			}
			list := new(control.Nodes)
			for node := range uint32(4) {
				n := &control.NodeState{Node: node, Health: control.NodeHealth_NODE_UP}
				if slices.Contains(leaving, node) {
					n.Drain = &control.Drain{Leave: true}
				}
				if n.Drain == nil || lists < 3 {
					list.Nodes = append(list.Nodes, n)
				}
			}
			lists++
			return list, nil
		}, strings.Fields(args)...)
		if quiet := strings.Contains(args, "quiet"); status != 0 || !slices.Equal(leaving, want) || quiet != (stdout+stderr == "") ||
			!quiet && (!strings.Contains(stderr, ": leaving when its jobs have ended") || !strings.Contains(stderr, ": out of machine ")) {
			t.Errorf("%s: status %d, nodes %v, %s%s", args, status, leaving, stdout, stderr)
		}
	}
	for args, want := range map[string]string{
		"machine shrink":                 "machine shrink: COUNT|NODE is missing",
		"machine shrink 0":               "machine shrink: it is a number of nodes from 1, or nodes: node0 names one",
		"machine shrink nod1":            "is not a node",
		"machine grow":                   "machine grow: COUNT is missing",
		"machine grow 0":                 `machine grow: "0" is not a number of nodes, from 1`,
		"machine grow -- -1":             `machine grow: "-1" is not a number of nodes, from 1`,
		"machine grow 4294967296":        "is not a number of nodes",
		"machine logs node0":             "machine logs node0: the daemons are serve and holder",
		"machine up --fitness memory":    "it is a number of MiB",
		"machine up --fitness clock=1":   "it is a time with its unit, such as 2s",
		"run --spares 1 --no-retry true": "run: --spares is for another try, and --no-retry allows none",
		"run --spares=-1 true":           "run: --spares -1: it is a number of nodes, 0 to 1000",
		"node evict 1 --reason=":         "node evict: --reason is empty",
	} {
		status, _, stderr := margaytest.Margay("", strings.Fields(args)...)
		margaytest.Wants(t, status, 125, stderr, "margay: ", want)
	}
}
