package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Ranks see and change a folder of this host as it is now, and nothing else of the host, also while
// node kernels and serve are killed. A job whose margay run is killed ends.
func TestSharedFolders(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		dir := t.TempDir()
		put := func(name, text string) {
			t.Helper()
			// A file has its name when it has its content.
			if err := errors.Join(os.WriteFile(filepath.Join(dir, ".new"), []byte(text), 0o600), os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, name))); err != nil {
				t.Fatal(err)
			}
		}
		holds := func(name, text string) {
			t.Helper()
			if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != text {
				t.Errorf("%s holds %q, %v; not %q", name, b, err, text)
			}
		}
		put("in", "text\n")
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "locked"), 0), os.Symlink("/etc/hostname", filepath.Join(dir, "way")), os.Symlink("in", filepath.Join(dir, "link"))); err != nil {
			t.Fatal(err)
		}
		const script = `read -r line <link && echo "$line $MARGAY_RANK" >out$MARGAY_RANK && echo "$MARGAY_RANK" >>both && mkdir -p d/e && cat way && ls`
		r := m.runIn(dir, "-n", "2", "--ppn", "1", "--label", "--files", ".", "--with", "/bin/mkdir", "--with", "/bin/cat", "--with", "/bin/ls", "bash", "-c", script).wait()
		if r.code != 0 || !strings.Contains(r.stdout, "[1] node1\n") || !strings.Contains(r.stdout, "[0] locked\n") {
			t.Error(r)
		}
		holds("out0", "text 0\n")
		holds("out1", "text 1\n")
		if info, err := os.Stat(filepath.Join(dir, "d", "e")); err != nil || !info.IsDir() {
			t.Error(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "both")); err != nil || len(b) != 4 {
			t.Errorf("two nodes have appended %q, %v", b, err)
		}
		r = m.runIn(dir, "--files", ".=/data:ro", "bash", "-c", "echo new >/data/in").wait()
		if r.code == 0 || !strings.Contains(r.stderr, "Read-only file system") {
			t.Error(r)
		}
		holds("in", "text\n")
		if !m.hosted() {
			return
		}
		m.changedMeanwhile(dir, put)
		m.writtenInVain(dir)
		m.sharedUnderKills(dir, put, holds)
		orphan := m.runIn(dir, "--files", ".", "bash", "-c", "while :; do echo on >on; done")
		m.awaitFile(filepath.Join(dir, "on"))
		kill(t, orphan.cmd.Process.Pid)
		orphan.wait()
		m.awaitIdle()
	})
}

// awaitFile waits until a file is there.
func (m *machine) awaitFile(path string) {
	m.t.Helper()
	eventually(m.t, path, func() bool {
		_, err := os.Stat(path)
		return err == nil
	}, func() string { return m.margay("ps").String() })
}

// changedMeanwhile changes a file that a rank has looked at and read. The rank finds the new
// content as soon as it opens the file.
func (m *machine) changedMeanwhile(dir string, put func(name, text string)) {
	m.t.Helper()
	const script = `read -r line <grown; test -s grown; >ready; until test -e go; do :; done; echo $(<grown)`
	put("grown", "short\n")
	c := m.runIn(dir, "--files", ".", "bash", "-c", script)
	m.awaitFile(filepath.Join(dir, "ready"))
	f, err := os.OpenFile(filepath.Join(dir, "grown"), os.O_APPEND|os.O_WRONLY, 0) // the file stays the same one
	if err == nil {
		_, err = f.WriteString(strings.Repeat("longer ", 1000))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		m.t.Fatal(err)
	}
	put("go", "")
	if r := c.wait(); len(r.stdout) != 7006 {
		m.t.Errorf("the rank has read %d bytes: %v", len(r.stdout), r)
	}
}

// writtenInVain lets a rank write more than may be in a file here. The write returns before that is
// known, and the close is ignored.
func (m *machine) writtenInVain(dir string) {
	m.t.Helper()
	trace := filepath.Join(m.t.TempDir(), "trace")
	limited := func(c *exec.Cmd) {
		c.Dir = dir
		c.Path, c.Args = "/bin/bash", append([]string{"bash", "-c", `ulimit -f 64 && exec "$@"`, "bash"}, c.Args...)
	}
	r := start(m.t, limited, "-m", m.name, "run", "--files", ".", "--trace-io="+trace, "--with", "/bin/dd",
		"bash", "-c", "dd if=/dev/zero of=large bs=100000 count=1 2>/dev/null || echo the close has failed").wait()
	if r.code != 125 || r.stdout != "the close has failed\n" || !strings.Contains(r.stderr, "large lacks data that a rank on node0 has written: file too large\n") {
		m.t.Error(r)
	}
	b, err := os.ReadFile(trace)
	if err != nil || !strings.Contains(string(b), " node0 write-behind "+filepath.Join(dir, "large")+" 0+100000 ") || !strings.Contains(string(b), " - EFBIG ") {
		m.t.Errorf("the trace is %q, %v", b, err)
	}
}

// sharedUnderKills kills node kernels and serve while ranks append to files, and write behind. They
// end when they find a file that is put there after the kills.
func (m *machine) sharedUnderKills(dir string, put, holds func(name, text string)) {
	m.t.Helper()
	const script = "exec 3>stream$MARGAY_RANK; for ((i = 0; ; i++)); do if [ -e enough ]; then echo $i; exit; fi; " +
		"echo $i >&3; echo $i >>long$MARGAY_RANK && mkdir made$MARGAY_RANK && rmdir made$MARGAY_RANK || exit; done"
	c := m.runIn(dir, "-n", "2", "--ppn", "1", "--label", "--files", ".", "--with", "/bin/mkdir", "--with", "/bin/rmdir", "bash", "-c", script)
	m.awaitFile(filepath.Join(dir, "long0"))
	m.awaitFile(filepath.Join(dir, "long1"))
	size := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			m.t.Fatal(err)
		}
		return info.Size()
	}
	m.killNodeKernels()
	kill(m.t, m.serve())
	m.awaitUp()
	for rank := range 2 { // each goes on
		name := filepath.Join(dir, fmt.Sprintf("long%d", rank))
		before := size(name)
		eventually(m.t, "growth of "+name, func() bool { return size(name) > before || c.ended() }, func() string { return m.margay("ps").String() })
	}
	put("enough", "")
	r := c.wait()
	for rank := range 2 {
		rounds, err := strconv.Atoi(strings.TrimSpace(labelled(r.stdout, rank)))
		if r.code != 0 || err != nil || rounds < 2 {
			m.t.Fatalf("rank %d: %v", rank, r)
		}
		var want strings.Builder
		for i := range rounds {
			fmt.Fprintln(&want, i)
		}
		holds(fmt.Sprintf("long%d", rank), want.String())
		holds(fmt.Sprintf("stream%d", rank), want.String())
	}
}
