package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// numbers returns the numbers of the machine's nodes.
func (m *machine) numbers() (numbers []int) {
	m.t.Helper()
	for _, n := range m.listNodes() {
		numbers = append(numbers, n.Node)
	}
	return numbers
}

// awaitNumbers waits until the machine has these nodes and no others.
func (m *machine) awaitNumbers(want ...int) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("machine with the nodes %v", want), func() bool { return slices.Equal(m.numbers(), want) }, m.margay("nodes").String)
}

// A machine grows and shrinks beside a job, while serve is killed.
func TestGrowAndShrink(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 1)
	job := m.start("run", "-w", "node1", probe(), "sleep")
	job.awaitRanks("sleeping", 1)
	_, serve := m.status()
	grow := m.start("machine", "grow", "2")
	kill(t, serve)
	if r := grow.wait(); r.code != 0 || !strings.Contains(r.stderr, "node2-3: added to machine "+m.name+"\n") {
		t.Fatal(r)
	}
	m.awaitNumbers(0, 1, 2, 3)
	if r := m.run(0, "-w", "0,2..3", "-N", "3", "hostname"); strings.Count(r.stdout, "node") != 3 {
		t.Error(r)
	}
	if r := m.margay("machine", "list", "--json"); !strings.Contains(r.stdout, `"nodes": 4`) {
		t.Error(r)
	}
	if r := m.margay("machine", "grow", "997"); r.code != 125 || !strings.Contains(r.stderr, "a machine has 1000 nodes at most, and this one has 4 already: grow by less, take nodes out") {
		t.Error(r)
	}
	if r := m.margay("machine", "shrink", "node0-3"); r.code != 125 || !strings.Contains(r.stderr, "at least one node stays in machine "+m.name) {
		t.Error(r)
	}

	shrink := m.start("machine", "shrink", "node1,3")
	shrink.awaitErrors("node1: leaving when its jobs have ended")
	_, serve = m.status()
	kill(t, serve)
	m.awaitNumbers(0, 1, 2)
	if r := m.margay("kill", "--force", "1"); r.code != 0 {
		t.Error(r)
	}
	if r := job.wait(); r.code != 137 {
		t.Error(r)
	}
	if r := shrink.wait(); r.code != 0 || !strings.Contains(r.stderr, "node1,3: out of machine ") {
		t.Error(r)
	}
	m.awaitNumbers(0, 2)

	// The next node1 is another one, and messages reach it.
	m.nodes = 3
	if r := m.margay("machine", "grow", "-q", "1"); r.code != 0 || r.stderr != "" {
		t.Error(r)
	}
	m.awaitNumbers(0, 1, 2)
	m.usable()
	if r := m.margay("machine", "logs"); r.code != 0 || !strings.Contains(r.stdout, "node1 has left the machine") {
		t.Error(r)
	}
	if r := m.margay("machine", "shrink", "2"); r.code != 0 {
		t.Error(r)
	}
	m.awaitNumbers(0)
	var left []os.DirEntry
	eventually(t, "removal of the files of nodes that have left", func() bool {
		left, _ = os.ReadDir(m.file("nodes"))
		return len(left) == 2 // its file and its root
	}, func() string { return fmt.Sprint(left) })
}
