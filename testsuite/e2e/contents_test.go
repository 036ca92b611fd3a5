package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files that a job has brought stay on its nodes for later jobs, over a restart of the node kernel, too, and what a job writes to its
// copies changes nothing.
func TestContentsStay(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		file := filepath.Join(t.TempDir(), "data")
		text := m.name + strings.Repeat(" content", 1000) // which no node has
		if err := os.WriteFile(file, []byte(text+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		run := func(had string) bool {
			t.Helper()
			r := m.run(0, "-v", "-n", "2", "--ppn", "1", "--with", file, "/bin/sh", "-c", `read -r x <"$0"; echo "$x"; echo changed >"$0"`, file)
			if r.stdout != text+"\n"+text+"\n" {
				t.Fatalf("%d bytes of another content: %.100s", len(r.stdout), r.stdout)
			}
			return strings.Contains(r.stderr, had)
		}
		// The shell, its libraries and the file. Another test may have brought all but the file.
		if run("4 of 4 files") {
			t.Error("the nodes have a file before any job has brought it")
		}
		had := func() bool { return run("4 of 4 files") }
		eventually(t, "files that stay", had, func() string { return fmt.Sprint(m.listNodes()) })
		for _, node := range []string{"0", "1"} {
			if r := m.margay("machine", "restart", node); r.code != 0 {
				t.Fatal(r)
			}
		}
		m.awaitUp()
		if !had() {
			t.Error("the files are gone with the node kernel")
		}
	})
}
