package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// With -q the commands that make, change and record a machine print nothing but errors.
func TestQuiet(t *testing.T) {
	ownMachine(t, "own")
	m := &machine{t: t, name: "quiet", nodes: 1, cores: 1}
	quiet := func(r result) {
		t.Helper()
		if r.code != 0 || r.stdout+r.stderr != "" {
			t.Error(r)
		}
	}
	quiet(m.up("hosted", "-q"))
	if r := m.up("hosted", "-q"); r.code != 125 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "the machine is up") {
		t.Errorf("the same again: %v", r)
	}
	quiet(m.margay("ext", "insert", "-q", object(t, "exit/account")))
	quiet(m.margay("record", "-q", "-o", filepath.Join(t.TempDir(), "trace.json"), "--duration", "100ms"))
	quiet(m.margay("machine", "restart", "-q", "0"))
	quiet(m.margay("run", "-q", "/bin/true"))
	quiet(m.margay("machine", "down", "-q"))
}
