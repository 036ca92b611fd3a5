package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// in sets the folder from which a command takes its machines.
func in(dir string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Env = append(os.Environ(), "MARGAY_DIR="+dir) }
}

// A machine is made in a folder full of other files. These stay as they are, and no name of them is
// taken for a machine's.
func TestFolderOfOthers(t *testing.T) {
	ownMachine(t, "own")
	dir := filepath.Join(scratch, "home")
	if err := os.MkdirAll(filepath.Join(dir, "thesis", "log"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"thesis/text": "years", "thesis/lock": "1\n", "thesis/log/day1": "it rained", "file": "text"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("thesis", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	looks := func() string {
		out, err := exec.Command("sh", "-c", `cd "$0" && find . -path ./m -prune -o -printf '%P %l %m %T@\n' -type f -exec cat {} +`, dir).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		// The folder's own line changes with the machine in it.
		_, rest, _ := strings.Cut(string(out), "\n")
		return rest
	}
	before := looks()
	check := func() {
		t.Helper()
		for _, name := range []string{"thesis", "file", "link"} {
			if r := start(t, in(dir), "-m", name, "machine", "up", "--substrate", "hosted", "--nodes", "1").wait(); r.code != 125 ||
				!strings.Contains(r.stderr, name+" exists and is not a machine's folder: ") {
				t.Errorf("machine up -m %s: %v", name, r)
			}
			for _, command := range [][]string{{"machine", "down"}, {"machine", "status"}, {"ps"}} {
				if r := start(t, in(dir), append([]string{"-m", name}, command...)...).wait(); r.code != 125 ||
					!strings.Contains(r.stderr, name+" exists and is not a machine's folder: ") {
					t.Errorf("%q -m %s: %v", command, name, r)
				}
			}
		}
		if after := looks(); after != before {
			t.Errorf("%s became %s", before, after)
		}
	}
	check()
	if r := start(t, in(dir), "-m", "m", "machine", "up", "--substrate", "hosted", "--nodes", "1").wait(); r.code != 0 {
		t.Fatal(r)
	}
	check()
	if r := start(t, in(dir), "-m", "m", "machine", "down").wait(); r.code != 0 {
		t.Error(r)
	}
	check()
	if _, err := os.Lstat(filepath.Join(dir, "m")); err == nil {
		t.Error("the machine's folder is still there")
	}
}
