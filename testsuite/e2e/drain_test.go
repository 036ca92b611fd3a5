package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A node is drained while it has a job, across a kill of serve, and put back into service.
func TestDrain(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2)
	job := strings.TrimSpace(m.run(0, "--detach", "-w", "node1", probe(), "sleep").stdout)
	m.awaitJobs(1)
	if r := m.margay("node", "drain", "-v", "node[1]", "--reason", "fan is broken"); r.code != 0 || r.stderr != "margay: node1: out of service\nmargay: node1: draining, until its jobs have ended (margay nodes)\n" {
		t.Errorf("node drain: %v", r)
	}
	shows := func(row, note string) {
		t.Helper()
		var r result
		eventually(t, fmt.Sprintf("nodes with %q and %q", row, note), func() bool { // on a busy host a node may be late
			r = m.margay("nodes")
			return strings.Contains(r.stdout, "\nnode0  up ") && strings.Contains(r.stdout, row) && strings.Contains(r.stdout, note)
		}, func() string { return r.String() })
	}
	shows("\nnode1  draining  2      0 ", "\nnode1 is draining (since ")
	for _, flags := range [][]string{{"-w", "1"}, {"-x", "node0"}, {"-n", "3"}} {
		if r := m.run(125, append(flags, "/bin/true")...); !strings.Contains(r.stderr, "; node1 is drained: fan is broken (2 of 2 nodes are up; see margay nodes)") {
			t.Errorf("%v: %v", flags, r)
		}
	}
	_, serve := m.status()
	kill(t, serve)
	m.awaitUp()
	shows("\nnode1  draining  2      0 ", ": fan is broken\n")

	waits := m.start("run", "--wait", "-N", "2", "--stdin", "none", "hostname")
	waits.awaitErrors("but only 1 node can be used: node0 has 2 of 2 free; node1 is drained: fan is broken")
	if r := m.run(0, "--wait=1m", "-n", "2", "hostname"); r.stdout != "node0\nnode0\n" {
		t.Errorf("a job behind one that waits for node1: %v", r)
	}
	m.margay("kill", "--force", job)
	eventually(t, "node1 drained", func() bool { return strings.Contains(m.margay("nodes").stdout, "\nnode1  drained ") }, m.margay("nodes").String)
	shows("\nnode1  drained  2      0 ", "\nnode1 is drained (since ")
	if r := m.margay("node", "resume", "node1"); r.code != 0 || r.stdout+r.stderr != "" {
		t.Errorf("node resume: %v", r)
	}
	if r := waits.wait(); r.code != 0 || !strings.Contains(r.stdout, "node1\n") {
		t.Errorf("the job that waited: %v", r)
	}
	if r := m.margay("nodes"); strings.Contains(r.stdout, "drain") {
		t.Errorf("nodes in service: %v", r)
	}
	for line, want := range map[string]string{
		"node drain 0,7":        "the machine has no node7: its nodes are node0-1 (margay nodes)",
		"node resume 0..1":      "node0-1 are not drained, so nothing is changed (margay nodes)",
		"run -w node[0,7] true": "the machine has no node7: its nodes are node0-1 (margay nodes)",
		"run -x 1..2 true":      "the machine has no node2: its nodes are node0-1 (margay nodes)",
	} {
		if r := m.margay(strings.Fields(line)...); r.code != 125 || !strings.Contains(r.stderr, want) {
			t.Errorf("margay %s: %v", line, r)
		}
	}
}
