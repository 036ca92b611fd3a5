package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/rates"
)

// Ranks that share a core continue when their node kernel is killed. After a while in which Linux
// alone schedules them, the next node kernel shares the core as before, by the same extension. The
// last remaining rank continues too. The sizes of the shares are checked on hosted nodes, as in
// TestSchedulers.
func TestNodeKernelKilledWhileSharing(t *testing.T) {
	restart := func(m *machine) {
		if r := m.margay("machine", "restart", "0"); r.code != 0 {
			m.t.Fatal(r)
		}
	}
	var tests []turnOf
	for _, c := range []struct {
		name, sharing string
		turn          *turn
		kill          func(*machine)
	}{
		{"hosted", "priority", expect("own").realTime(), func(m *machine) { kill(m.t, m.nodeKernels()[0]) }},
		{"sched_ext", "sched_ext", expect("sched_ext"), restart},
	} {
		tests = append(tests, turnOf{c.name, c.turn, func(t *testing.T, m *machine) {
			if m == nil {
				m = up(t, "hosted", 1, 1)
			}
			policies := map[string]float64{"infinite": 1}
			if m.hosted() { // where a node's time is also the host's, shares are exact
				policies["weighted"] = 3. / 4
			}
			for policy, share := range policies {
				job := m.start("run", "-n", "2", "--per-core", "2", "-w", "node0", "--keep-going", probe(), "share")
				job.awaitRanks("computes", 2)
				m.killedWhileSharing(policy, share, c.sharing, c.kill)
				job.wait()
				m.awaitIdle()
			}
			m.sharedBy(c.sharing)
		}})
	}
	inTurns(t, tests...)
}

func (m *machine) killedWhileSharing(policy string, share float64, sharing string, kill func(*machine)) {
	t := m.t
	job := m.onlyJob()
	r := m.margay("ext", "insert", job, object(t, "sched/"+policy))
	handle := regexp.MustCompile(`\b0\.\d+\b`).FindString(r.stdout)
	if r.code != 0 || handle == "" {
		t.Fatal(r)
	}
	kills := 1
	if m.hosted() {
		kills = 2
	}
	m.awaitShare(policy, share)
	nodes := func() string { return m.margay("nodes").stdout }
	for range kills {
		kill(m)
		m.awaitShare(policy, share)
		eventually(t, "cores shared by "+sharing, func() bool { return strings.Contains(nodes(), " "+sharing+" ") }, nodes)
		if list := m.margay("ext", "list").stdout; !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(handle) + ` .* active`).MatchString(list) {
			t.Errorf("extension %s of job %s is not in its slot:\n%s", handle, job, list)
		}
	}
	had := m.topView("--interval=500ms").Cores[0].Ranks[0].Rank // the rank that computes more; the other one may be held
	if m.hosted() {                                             // a virtual node takes long to start its kernel
		kill(m)
	}
	end := func(rank uint32) func() bool { // a node kernel that is just starting may miss it
		return func() bool {
			m.margay("kill", "-s", "KILL", "--rank", fmt.Sprint(rank), job)
			return m.computesAlone()
		}
	}
	state := func() string { return m.margay("top", "--once").stdout }
	eventually(t, "end of one rank, computing of the other", end(had), state)
	if r := m.margay("ext", "remove", handle); r.code != 0 {
		t.Error(r)
	}
	eventually(t, "computing without a scheduler", m.computesAlone, state)
	if m.hosted() {
		m.ordinary()
	}
	m.margay("kill", job)
}

// computesAlone reports whether one rank has the core of a machine to itself, and makes progress.
// Its speed depends on the other users of the CPU.
func (m *machine) computesAlone() bool {
	ranks := m.coreFor(500 * time.Millisecond).Ranks
	return len(ranks) == 1 && ranks[0].CPU > 1
}

// core returns the first core of a machine as margay top shows it; nothing while its node is away.
func (m *machine) core() rates.Core {
	m.t.Helper()
	return m.coreFor(2 * time.Second)
}

// coreFor is core with another interval.
func (m *machine) coreFor(interval time.Duration) (c rates.Core) {
	m.t.Helper()
	var v rates.View
	r := m.margay("top", "--once", "--json", "--interval="+interval.String())
	if err := json.Unmarshal([]byte(r.stdout), &v); err == nil && len(v.Cores) > 0 {
		c = v.Cores[0]
	}
	return c
}

// awaitShare waits until two ranks have the core by a policy, and one of them has the share in the
// sum of some looks.
func (m *machine) awaitShare(policy string, share float64) {
	m.t.Helper()
	var first, second float64
	eventually(m.t, fmt.Sprintf("share of %.2f by %s", share, policy), func() bool {
		ranks := m.coreFor(500 * time.Millisecond).Ranks
		if len(ranks) != 2 || !strings.Contains(ranks[0].Why+ranks[1].Why, "("+policy+")") {
			return false
		}
		first, second = first+ranks[0].CPU, second+ranks[1].CPU
		return first > 10 && math.Abs(first/(first+second)-share) <= 0.05*share
	}, func() string {
		return fmt.Sprintf("they had %.0f and %.0f\n%s", first, second, m.margay("top", "--once").stdout)
	})
}

// ordinary requires that the process of the one rank of a hosted machine is not stopped and has no
// real-time priority.
func (m *machine) ordinary() {
	m.t.Helper()
	for _, tid := range m.rankThreads() {
		attr, err := unix.SchedGetAttr(tid, 0)
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
		if err != nil || attr.Policy != unix.SCHED_NORMAL || strings.Contains(string(status), "State:\tT") {
			m.t.Errorf("thread %d: %+v, %v\n%s", tid, attr, err, status)
		}
	}
}

// rankThreads returns the threads of the ranks of a hosted machine that run the probe.
func (m *machine) rankThreads() (threads []int) {
	m.t.Helper()
	for _, pid := range m.processes() {
		if command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); !strings.HasPrefix(string(command), probe()+"\x00") {
			continue
		}
		found, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, thread := range found {
			tid, _ := strconv.Atoi(filepath.Base(thread))
			threads = append(threads, tid)
		}
	}
	if len(threads) == 0 {
		m.t.Fatal("no rank has a process")
	}
	return threads
}
