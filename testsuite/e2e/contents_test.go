package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Files that a job has brought stay on its nodes for later jobs, across a restart of the node
// kernel, too. A job's writes to its copies do not change them.
func TestContentsStay(t *testing.T) {
	m := use(t, "hosted")
	m.withoutLending()
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
	had := func() bool { return run("4 of 4 files") && run("its nodes have loaded all files") }
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
}

// newShell makes a program with a content that no node has.
func (m *machine) newShell() (path string, content []byte) {
	m.t.Helper()
	content, err := os.ReadFile("/bin/sh")
	if err != nil {
		m.t.Fatal(err)
	}
	content = append(content, m.name...)
	path = filepath.Join(m.t.TempDir(), "shell")
	if err := os.WriteFile(path, content, 0o755); err != nil {
		m.t.Fatal(err)
	}
	return path, content
}

// A job executes the node's copy of a program that an earlier job has brought. Its ranks cannot
// change the program, neither then nor in the job that brings it.
func TestCodeIsShared(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		if m.hosted() {
			m.withoutLending()
		}
		shell, text := m.newShell()
		const script = `while read -r line; do echo "$line"; done </proc/self/mountinfo; (echo x >>"$0") 2>/dev/null && echo written; true`
		run := func() (shared bool) {
			t.Helper()
			r := m.run(0, "-n", "1", shell, "-c", script, shell)
			if !strings.Contains(r.stdout, " "+shell+" ro,") || strings.Contains(r.stdout, "written") {
				t.Fatalf("a program that can be changed: %v", r)
			}
			return strings.Contains(r.stdout, fmt.Sprintf(" /%d/%x %s ", os.Getuid(), sha256.Sum256(text), shell))
		}
		if run() {
			t.Error("the node has a program before any job has brought it")
		}
		eventually(t, "a program that is shared", run, func() string { return fmt.Sprint(m.listNodes()) })
	})
}

// withoutLending has margay run lend nothing to hosted nodes until the test ends, as in a folder
// that others can see (lend.Open), and takes back all that is lent.
func (m *machine) withoutLending() {
	m.t.Helper()
	lent := m.file("lent")
	if err := os.Chmod(lent, 0o750); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := os.Chmod(lent, 0o700); err != nil {
			m.t.Error(err)
		}
	})
	m.takeBack()
}

// takeBack removes all that margay run lends.
func (m *machine) takeBack() {
	m.t.Helper()
	files, err := filepath.Glob(m.file("lent", "*"))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// A hosted node has a program that no job has brought, because margay run lends it. Ranks cannot
// change it. When it is taken back, those that run keep it, and later jobs bring it.
func TestLent(t *testing.T) {
	m := use(t, "hosted")
	shell, text := m.newShell()
	const script = `while read -r line; do echo "$line"; done </proc/self/mountinfo; (echo x >>"$0") 2>/dev/null && echo written; echo ready; read -r go; "$0" -c "echo again"`
	shared := func(out string) bool {
		return strings.Count(out, fmt.Sprintf("/lent/%x %s ro,", sha256.Sum256(text), shell)) == 2
	}
	in, line, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer line.Close()
	c := start(t, func(cmd *exec.Cmd) { cmd.Stdin = in }, "-m", m.name, "run", "-v", "-n", "2", "--ppn", "1", "--stdin", "all", shell, "-c", script, shell)
	eventually(t, "ranks that are ready", func() bool { return strings.Count(c.stdout.String(), "ready\n") == 2 }, c.stdout.String)
	if out, err := c.stdout.String(), c.stderr.String(); !shared(out) || strings.Contains(out, "written") || !strings.Contains(err, "its nodes have loaded all files") {
		t.Errorf("it is not lent, or can be changed:\n%s%s", out, err)
	}
	// Another margay run that lends it, too, notes the time. Ranks have not changed it.
	if err := os.Chtimes(m.file("lent", fmt.Sprintf("%x", sha256.Sum256(text))), time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
	m.takeBack()
	if _, err := line.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	if r := c.wait(); r.code != 0 || strings.Count(r.stdout, "again\n") != 2 || strings.Contains(r.stderr, "not kept") {
		t.Errorf("when it was taken back: %v", r)
	}
	m.withoutLending()
	r := m.margay("run", "-v", "-n", "2", "--ppn", "1", shell, "-c", "echo brought")
	if r.code != 0 || strings.Count(r.stdout, "brought\n") != 2 || strings.Contains(r.stderr, "its nodes have loaded all files") {
		t.Errorf("without lending: %v", r)
	}
}
