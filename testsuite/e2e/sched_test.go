package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// Two processes that compute share a core as the scheduler says that is inserted while they run, whatever makes Linux obey it. The
// processor time that each had is what it says itself.
func TestSchedulers(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) { m.schedulers("priority") })
	t.Run("sched_ext", func(t *testing.T) { up(t, "qemu", 1, 1, "--profile", "sched").schedulers("sched_ext") })
}

// starving is for how many seconds a process is held: longer than anything takes that looks for processes that starve, be it the
// floor of the node kernel or the watchdog of sched_ext.
var starving = map[string]int{"priority": 6, "sched_ext": 31}

func (m *machine) schedulers(enforcer string) {
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
		for run := 1; run == 1 || run <= 5 && math.Abs(share-c.share) > 0.05*c.share; run++ {
			a, b := m.share(c.policy, c.seconds)
			t.Logf("%q: %v ms and %v ms of %d s", c.policy, a, b, c.seconds)
			if c.share > 0.5 && a < b {
				a, b = b, a // nobody knows who came first
			}
			if a+b < float64(c.seconds)*500 {
				t.Errorf("scheduler %q: of %d s they had only %v ms", c.policy, c.seconds, a+b)
			}
			first, second = first+a, second+b
			share = first / (first + second)
		}
		if math.Abs(share-c.share) > 0.05*c.share {
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
		object := filepath.Join(bin, "..", "ext", "sched", policy, policy+".o")
		if r := m.margay("ext", "insert", m.onlyJob(), object); r.code != 0 || !strings.Contains(r.stdout, "active") {
			m.t.Fatal(r)
		}
	}
	r := c.wait()
	if r.code != 0 {
		m.t.Fatal(r)
	}
	for line := range strings.Lines(r.stdout) {
		var rank int
		var ms float64
		if n, _ := fmt.Sscanf(line, "rank %d had %f ms", &rank, &ms); n == 2 {
			if rank == 0 {
				first = ms
			} else {
				second = ms
			}
		}
	}
	return first, second
}
