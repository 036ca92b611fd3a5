package e2e

import (
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// The ranks of a job of several programs have one numbering, and reach each other whichever program
// they run.
func TestPrograms(t *testing.T) {
	m := use(t, "hosted")
	lines := func(r result) string {
		list := strings.Split(strings.TrimSpace(r.stdout), "\n")
		sort.Strings(list)
		return strings.Join(list, "; ")
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho $MARGAY_RANK of $MARGAY_SIZE $A $1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := m.run(0, "-n", "1", "--env", "A=all", script, "x", ":", "-n", "2", "--env", "A=b", script, "y", ":", "-n", "1", "printenv", "MARGAY_RANK")
	if got := lines(r); got != "0 of 4 all x; 1 of 4 b y; 2 of 4 b y; 3" {
		t.Errorf("%s: %v", got, r)
	}
	hello := filepath.Join(bin, "hello")
	if r := m.run(0, "-n", "3", hello, ":", "-n", "3", hello, "other"); strings.Count(r.stdout, "of 6 on node") != 6 || !strings.Contains(r.stdout, "hello from rank 2") {
		t.Error(r)
	}
	loadfile := filepath.Join(t.TempDir(), "load")
	if err := os.WriteFile(loadfile, []byte("# two programs\n-sz 2 "+script+" 'a b'\n"+script+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := lines(m.run(0, "-f", loadfile)); got != "0 of 3 a b; 1 of 3 a b; 2 of 3" {
		t.Error(got)
	}
	if r := m.margay("run", "-n", "1", "true", ":", "-n", "1", "/nowhere/x"); r.code != 127 || !strings.Contains(r.stderr, "/nowhere/x: command not found") {
		t.Error(r)
	}
	if r := m.margay("ps", "--all"); !strings.Contains(r.stdout, "x : "+script) {
		t.Error(r)
	}
}
