package machine_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// margay node approve names machines by their network cards, and waits until they are up, also for
// one that has not been switched on yet, which it says.
func TestApprove(t *testing.T) {
	const first, second = "52:54:00:00:00:01", "52:54:00:00:00:02"
	for _, more := range []string{"", "--no-wait"} {
		lists := 0
		var macs []string
		args := strings.Fields("node approve " + first + " " + second + " " + more)
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			if m, ok := question.(*control.ApproveGuests); ok {
				macs = m.Macs
				return &control.NodesAdded{Nodes: []uint32{4, 7}}, nil
			}
			lists++
			late := &control.NodeState{Node: 7, Health: control.NodeHealth_NODE_OFF, Waits: true}
			if lists > 2 {
				late = &control.NodeState{Node: 7, Health: control.NodeHealth_NODE_UP}
			}
			return &control.Nodes{Guests: &control.Guests{Guests: []*control.Guest{{Mac: first}}}, Nodes: []*control.NodeState{{Node: 4, Health: control.NodeHealth_NODE_UP}, late}}, nil
		}, args...)
		if status != 0 || !slices.Equal(macs, []string{first, second}) || stdout != "" || (more == "") != strings.Contains(stderr, "node7 is up") ||
			!strings.Contains(stderr, first+" is node4\n") || !strings.Contains(stderr, second+" is node7, but no machine with this network card waits: it comes when it boots from the network; margay machine shrink -m m node7 takes a wrong one back\n") {
			t.Errorf("%v: status %d, %v, %s", args, status, macs, stderr)
		}
	}
	for args, want := range map[string]string{
		"node approve":                                                 "MAC is missing",
		"node approve 52:54":                                           `"52:54" is not the address of a network card`,
		"node approve ff:ff:ff:ff:ff:ff":                               "is not the address of one network card",
		"machine up --interface eth1":                                  "--interface is for --substrate metal",
		"machine up --card-firmware nonfree":                           "--card-firmware is for --substrate metal",
		"machine up --substrate metal --cores 3":                       "--cores is all or nothing here",
		"machine up --substrate metal --nodes 3":                       "--nodes has no meaning here",
		"machine up --substrate metal --range 10.8.0.0":                `--range "10.8.0.0" is not a range`,
		"machine up --substrate metal --boot bios":                     "--boot is for virtual nodes",
		"machine up --substrate metal --kernel-args margay.token=3-0a": "put the token on a disk",
		"machine up --substrate metal --interface x --file=":           "--file is empty",
	} {
		status, _, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) { return new(control.Done), nil }, strings.Fields(args)...)
		if status == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %s", args, status, stderr)
		}
	}
}
