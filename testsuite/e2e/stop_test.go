package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// withoutPriorities takes from a command the right to set real-time priorities, like a command of
// an ordinary user.
func withoutPriorities(c *exec.Cmd) {
	if os.Geteuid() != 0 {
		return
	}
	drop, err := exec.LookPath("setpriv")
	if err != nil {
		c.Err = err
		return
	}
	c.Args = append([]string{drop, "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", c.Path}, c.Args[1:]...)
	c.Path = drop
}

// Where the node kernel must not set priorities, it stops the ranks that do not have the core.
// Processes that compute share the core as elsewhere, and the user gets a message that names the
// missing right.
func TestSchedulersWithoutPriorities(t *testing.T) {
	ownRealTime(t)
	m := upAs(t, withoutPriorities, "hosted", 1, 1)
	if r := m.margay("nodes"); !strings.Contains(r.stdout, "node0 lacks asking schedulers about a process that begins to wait: only every 10 ms: set priority") {
		t.Error(r)
	}
	if r := m.margay("ext", "insert", object(t, "sched/infinite")); r.code != 0 {
		t.Error(r)
	}
	// Ranks that wait for each other make progress, although one keeps the core until it waits.
	if r := m.run(0, "-n", "2", "--per-core", "2", probe(), "barrier"); strings.Count(r.stdout, "passed 10 barriers") != 2 {
		t.Error(r)
	}
	if r := m.margay("ext", "remove", "0.1"); r.code != 0 {
		t.Error(r)
	}
	m.schedulers("stop")
}
