package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A rank with several cores keeps them when its node kernel is killed, or serve, or both: its
// threads may run where they could before, no other job gets one of the cores, and the cores beside
// them are free as before.
func TestKernelsKilledUnderWideRank(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 1, 4)
	held := m.start("run", "-c", "2", "--stdin", "none", probe(), "sleep")
	held.awaitRanks("sleeping", 1)
	job := m.onlyJob()
	before := m.allowed()
	holder, _ := m.status()
	for _, name := range []string{"node kernel", "serve", "serve and node kernel"} {
		var killed []int
		if strings.Contains(name, "node kernel") {
			killed = m.nodeKernels()
		}
		if strings.Contains(name, "serve") {
			killed = append(killed, m.serve())
		}
		for _, pid := range killed {
			kill(t, pid)
		}
		eventually(t, "machine without the killed "+name, func() bool {
			kernels, status := nodeKernelsOf(t, holder), m.margay("machine", "status")
			return len(kernels) == 1 && !slices.Contains(killed, kernels[0]) && status.code == 0 &&
				!slices.ContainsFunc(killed, func(pid int) bool { return strings.Contains(status.stdout, fmt.Sprintf("serve: process %d,", pid)) })
		}, func() string { return m.margay("machine", "status").String() })
		m.awaitUp()
		// serve may not have noticed yet that the connection of the killed node kernel is gone.
		top := func() result { return m.margay("top", "--once", "--interval=100ms") }
		eventually(t, "answer of the node", func() bool { return top().code == 0 }, func() string { return top().String() })
		m.sharedBy("priority")
		if after := m.allowed(); !slices.Equal(after, before) {
			t.Errorf("%s: the rank may use the CPUs %v, before %v", name, after, before)
		}
		var uses []string
		for _, core := range m.listNodes()[0].Cores {
			uses = append(uses, fmt.Sprint(core.Core, core.Job, core.Ranks))
		}
		if want := []string{"1 " + job + " [0]", "2 " + job + " [0]", "3 0 []", "4 0 []"}; !slices.Equal(uses, want) {
			t.Errorf("%s: the cores are used by %q, not %q", name, uses, want)
		}
		for _, top := range m.topView().Cores {
			if wide := top.Core <= 2; wide != (len(top.Ranks) == 1) {
				t.Errorf("%s: margay top has core %d with %d ranks", name, top.Core, len(top.Ranks))
			}
		}
		if r := m.run(125, "-c", "3", probe(), "hello"); !strings.Contains(r.stderr, "node0 has 2 of 4 free") {
			t.Errorf("%s: a job without room: %v", name, r)
		}
		m.run(0, "-n", "4", "--per-core", "2", probe(), "hello")
		m.run(0, "-c", "2", probe(), "hello")
	}
	waits := m.start("run", "--wait", "-c", "4", "--stdin", "none", probe(), "hello")
	waits.awaitErrors("waiting for cores")
	held.signal(unix.SIGTERM)
	if r := held.wait(); r.code != 143 {
		t.Errorf("the job that held the cores: %v", r)
	}
	if r := waits.wait(); r.code != 0 {
		t.Errorf("the job that waited for them: %v", r)
	}
	m.usable()
}

// allowed returns on which CPUs, and by which policy, the threads of the ranks of a hosted machine
// may run.
func (m *machine) allowed() (all []string) {
	m.t.Helper()
	for _, tid := range m.rankThreads() {
		var set unix.CPUSet
		attr, err := unix.SchedGetAttr(tid, 0)
		if err := errors.Join(err, unix.SchedGetaffinity(tid, &set)); err != nil {
			m.t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("CPUs %x, policy %d", set[0], attr.Policy))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// serve returns the process of serve.
func (m *machine) serve() int {
	m.t.Helper()
	_, pid := m.status()
	return pid
}
