package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/rates"
)

// Two processes that compute share a core as the scheduler says that is inserted while they run, whatever makes Linux obey it. The
// processor time that each had is what it says itself.
func TestSchedulers(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) { m.schedulers("priority") })
	t.Run("sched_ext", func(t *testing.T) { up(t, "qemu", 1, 1, "--profile", "sched").schedulers("sched_ext") })
}

// starving is for how many seconds a process is held: longer than anything takes that looks for processes that starve, be it the
// floor of the node kernel or the watchdog of sched_ext.
var starving = map[string]int{"priority": 6, "stop": 6, "sched_ext": 31}

// schedulers holds the shares of processor time under each scheduler to what they are to be, within 5 %.
func (m *machine) schedulers(enforcer string) {
	const within = 0.05
	t := m.t
	if nodes := m.margay("nodes").stdout; !strings.Contains(nodes, " "+enforcer+" ") {
		t.Fatalf("cores are not shared by %s:\n%s", enforcer, nodes)
	}
	for _, c := range []struct {
		policy  string
		seconds int
		share   float64 // of the first rank
	}{
		{"", 6, 1. / 2},
		{"weighted", 6, 3. / 4},
		{"roundrobin", 6, 1. / 2},
		{"infinite", starving[enforcer], 1},
	} {
		// What else this machine does falls on one process or the other, and evens out in the sum of a few runs.
		var first, second, share float64
		for run := 1; run == 1 || run <= 5 && math.Abs(share-c.share) > within*c.share; run++ {
			a, b := m.share(c.policy, c.seconds)
			t.Logf("%q: %v ms and %v ms of %d s", c.policy, a, b, c.seconds)
			if c.share > 0.5 && a < b {
				a, b = b, a // nobody knows who came first
			}
			// Without priorities whoever else is on the CPU has a part of it.
			if enforcer != "stop" && a+b < float64(c.seconds)*500 {
				t.Errorf("scheduler %q: of %d s they had only %v ms", c.policy, c.seconds, a+b)
			}
			first, second = first+a, second+b
			share = first / (first + second)
		}
		if math.Abs(share-c.share) > within*c.share {
			t.Errorf("scheduler %q: %v ms and %v ms, which is a share of %.3f, not of %.3f", c.policy, first, second, share, c.share)
		}
	}
}

// share runs two ranks on one core and a scheduler, and returns the processor time of each in milliseconds.
func (m *machine) share(policy string, seconds int) (first, second float64) {
	m.t.Helper()
	c := m.start("run", "-n", "2", "--per-core", "2", probe(), "share", "6", fmt.Sprint(seconds))
	c.awaitRanks("waits", 2)
	if policy != "" {
		if r := m.margay("ext", "insert", m.onlyJob(), object(m.t, "sched/"+policy)); r.code != 0 || !strings.Contains(r.stdout, "active") {
			m.t.Fatal(r)
		}
	}
	r := c.wait()
	if r.code != 0 {
		m.t.Fatal(r)
	}
	had := make(map[int]float64)
	for line := range strings.Lines(r.stdout) {
		var rank int
		var ms float64
		if n, _ := fmt.Sscanf(line, "rank %d had %f ms", &rank, &ms); n == 2 {
			had[rank] = ms
		}
	}
	if len(had) != 2 || had[0]+had[1] <= 0 {
		m.t.Fatalf("they do not say what they had: %v", r)
	}
	return had[0], had[1]
}

// A scheduler that does harm does it until it is found out: then the tasks take turns, and the list of extensions says what happened.
func TestHostileSchedulers(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) { m.hostileSchedulers() })
	t.Run("sched_ext", func(t *testing.T) { up(t, "qemu", 1, 1, "--profile", "sched").hostileSchedulers() })
}

// hostileSchedulers inserts one after the other while three ranks compute on a core.
func (m *machine) hostileSchedulers() {
	t := m.t
	objects := filepath.Join(bin, "..", "kernel", "sched", "schedtest", "testdata")
	for _, c := range []struct{ object, says string }{
		{filepath.Join(objects, "nonsense.o"), "it made 16 faults, the last: it chose task "},
		{filepath.Join(objects, "starve.o"), "it let tasks starve 4 times, the last: job "},
		{misbehaving(t, 7), "it made 16 faults, the last: "},
	} {
		name := strings.TrimSuffix(filepath.Base(c.object), ".o")
		job := m.start("run", "-n", "3", "--per-core", "3", probe(), "share", "1", "3600")
		job.awaitRanks("waits", 3)
		if r := m.margay("ext", "insert", m.onlyJob(), c.object); r.code != 0 {
			t.Fatal(r)
		}
		said := ""
		eventually(t, watchdog, "the end of "+name, func() bool {
			said = lineWith(m.margay("ext", "list").stdout, name, c.says)
			return said != ""
		}, func() string { return m.margay("ext", "list").String() })
		t.Log(said)
		if r := m.margay("ext", "log"); lineWith(r.stdout, "("+name+"): removed: ", c.says) == "" {
			t.Errorf("nothing of %s in the log: %v", name, r)
		}
		var v rates.View
		eventually(t, watchdog, "turns of all ranks", func() bool {
			v = m.topView("--interval=3s")
			turns := 0
			for _, r := range v.Cores[0].Ranks {
				if r.CPU > 15 && (r.Why == "ready" || r.Why == "has the core: turns") {
					turns++
				}
			}
			return turns == 3
		}, func() string { return fmt.Sprintf("%s: %+v", name, v) })
		job.signal(unix.SIGTERM)
		job.wait()
		m.awaitIdle(20 * time.Second)
	}
}

// watchdog is how long sched_ext lets a process wait before it ends whoever schedules.
const watchdog = 30 * time.Second

// lineWith returns the first line that has all of some words.
func lineWith(text string, words ...string) string {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return line
		}
	}
	return ""
}
