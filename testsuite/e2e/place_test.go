package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/extension/extensiontest"
)

// on runs a job and returns the nodes of its ranks, sorted.
func (m *machine) on(flags ...string) string {
	m.t.Helper()
	lines := strings.Fields(m.run(0, append(append([]string{"-x", "node3"}, flags...), "hostname")...).stdout)
	sort.Strings(lines)
	return strings.Join(lines, " ")
}

// placer inserts an extension into slot place and returns its name.
func (m *machine) placer(object string) string {
	m.t.Helper()
	r := m.margay("ext", "insert", object)
	found := regexp.MustCompile(`(?m)^(serve\.\d+) +machine +place .* portable .*active$`).FindStringSubmatch(r.stdout)
	if found == nil {
		m.t.Fatal(r)
	}
	m.t.Cleanup(func() { m.margay("ext", "remove", found[1]) }) // other tests use the machine next
	return found[1]
}

// Extensions in slot place choose the nodes of jobs, also after a restart of serve. One that never
// ends costs a job nothing.
func TestPlace(t *testing.T) {
	m := use(t, "hosted")
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: ranks on %q, want %q", what, got, want)
		}
	}
	expect("by default", m.on("-n", "3"), "node0 node0 node1")
	spread := m.placer(object(t, "place/spread"))
	expect("spread", m.on("-n", "3"), "node0 node1 node2")
	_, serve := m.status()
	if err := unix.Kill(serve, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.awaitUp()
	expect("spread by the next serve", m.on("-n", "3"), "node0 node1 node2")
	expect("spread two a node", m.on("-n", "3", "--ppn", "2"), "node0 node0 node1")
	if r := m.margay("ext", "remove", spread); r.code != 0 {
		t.Error(r)
	}
	pack := m.placer(object(t, "place/pack"))
	sleeper := m.start("run", "-n", "1", "-w", "node2", "sleep", "1000")
	m.awaitJobs(1)
	expect("packed", m.on("-n", "1"), "node2")
	sleeper.signal(unix.SIGTERM)
	sleeper.wait()
	endless := filepath.Join(t.TempDir(), "endless.o")
	code := extensiontest.Object(t, extensiontest.Program{Section: "place", Name: "endless", Code: []string{"ja -1"}})
	if err := os.WriteFile(endless, code, 0o600); err != nil {
		t.Fatal(err)
	}
	m.margay("ext", "remove", pack)
	pack = m.placer(endless)
	expect("after an endless loop", m.on("-n", "3"), "node0 node0 node1")
	// A job that waits for the cores of one that ends is placed again.
	if r := m.margay("ext", "list"); !regexp.MustCompile(`(?m)^` + pack + ` +machine +place +endless +portable +[1-9]\d* .* [1-9]\d* +0 +active\n(.*\n)*` + pack + `: last fault: .*`).MatchString(r.stdout) {
		t.Error(r)
	}
	if r := m.margay("ext", "log"); !strings.Contains(r.stdout, "machine "+pack+" (endless): fault 1: ") {
		t.Error(r)
	}
	if r := m.margay("ext", "insert", "--node", "1", endless); r.code == 0 || !strings.Contains(r.stderr, "leave out --node") {
		t.Error(r)
	}
	if r := m.margay("ext", "remove", pack); r.code != 0 {
		t.Error(r)
	}
}
