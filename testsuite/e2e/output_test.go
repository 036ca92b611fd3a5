package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// All output of a rank arrives, even if its reader stands still while the rank ends. The sizes just
// fill the node's journal then: a mebibyte, and the capacity of the reader's pipes.
func TestReaderStandsStill(t *testing.T) {
	m := use(t, "hosted")
	for size := 1_110_000; size < 1_180_000; size += 9_000 {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c := start(t, func(cmd *exec.Cmd) { cmd.Stdout = writer }, "-m", m.name, "run", "-n", "1", "--stdin", "none", probe(), "spew", strconv.Itoa(size))
		writer.Close()
		time.Sleep(1500 * time.Millisecond) // three times as long as the end of a rank waits for its children
		got, err := io.ReadAll(reader)
		reader.Close()
		if r := c.wait(); r.code != 0 || err != nil {
			t.Fatal(r, err)
		}
		var want strings.Builder
		for i := 0; want.Len() < size; i++ {
			fmt.Fprintf(&want, "%015d\n", i)
		}
		if string(got) != want.String()[:size] {
			t.Errorf("%d of %d bytes came", len(got), size)
		}
	}
}

// The output of a rank's children arrives while ranks run, however late. The children are ended
// with the last rank.
func TestChildrenWriteLate(t *testing.T) {
	m := use(t, "hosted")
	r := m.run(0, "-n", "2", probe(), "late")
	if r.stdout != "child of rank 0\n" {
		t.Error(r)
	}
	m.usable()
}

// Long lines of two ranks stay whole.
func TestLongLines(t *testing.T) {
	m := use(t, "hosted")
	const size = 3_000_000
	for _, flags := range [][]string{nil, {"--label"}} {
		r := m.run(0, append(append([]string{"-n", "2"}, flags...), probe(), "long", strconv.Itoa(size))...)
		lines := make(map[string]int)
		for line := range strings.Lines(r.stdout) {
			lines[line]++
		}
		for rank := range 2 {
			line := strings.Repeat(strconv.Itoa(rank), size) + "\n"
			if flags != nil {
				line = fmt.Sprintf("[%d] %s", rank, line)
			}
			if lines[line] != 2 {
				t.Errorf("%q: the line of rank %d is there %d times among %d lines", flags, rank, lines[line], len(lines))
			}
		}
	}
}

// Files that ranks write and that vanish are named once by margay run, logs and ps.
func TestFilesAreNotKept(t *testing.T) {
	m := use(t, "hosted")
	dir := t.TempDir()
	brought := filepath.Join(dir, "brought")
	if err := os.WriteFile(brought, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(flags ...string) result {
		args := append([]string{"-m", m.name, "run", "-n", "2", "--ppn", "1", "--with", brought}, flags...)
		return start(t, func(cmd *exec.Cmd) { cmd.Dir = dir }, append(args, probe(), "write", "b\x1b", "a", "/tmp/c", "/dev/shm/d")...).wait()
	}
	const want = "4 files written by ranks were not kept: a (on 2 nodes), \"b\\x1b\" (on 2 nodes)\n"
	if r := run(); r.code != 0 || r.stderr != "margay: "+want {
		t.Errorf("want %q: %v", want, r)
	}
	job := strings.TrimSpace(run("--detach").stdout)
	if r := m.margay("logs", job); r.code != 0 || r.stderr != "margay: "+want {
		t.Error(r)
	}
	if r := m.margay("ps", job); r.code != 0 || !strings.Contains(r.stdout, want) {
		t.Error(r)
	}
	if r := m.run(0, "-n", "2", "--with", brought, probe(), "hello"); r.stderr != "" {
		t.Errorf("nothing was written: %v", r)
	}
}

// The output of a detached job that fills the disk of the machine's folder is never silently
// incomplete.
func TestDiskIsFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	ownMachine(t, "own")
	script := `set -u
mount -t tmpfs -o size=2m small "$1" && export MARGAY_DIR="$1/m"
margay=$2 probe=$3
$margay machine up --substrate hosted --nodes 1 --cores 1 >/dev/null 2>&1 || exit 9
trap '$margay machine down >/dev/null 2>&1' EXIT
job=$($margay run --detach $probe spew 8000000) || exit 8
$margay logs $job >"$4/out" 2>"$4/err"; echo "logs $?"
$margay ps --all
dd if=/dev/zero of="$1/rest" bs=4096 2>/dev/null
second=$($margay run --detach $probe hello 2>"$4/second") && $margay logs $second >/dev/null 2>"$4/second"; echo "second $?"
$margay logs --remove --all; echo "remove $?"
third=$($margay run --detach $probe hello) && $margay logs $third >/dev/null; echo "third $?"
`
	small, kept := t.TempDir(), t.TempDir()
	cmd := exec.Command("sh", "-c", script, "sh", small, filepath.Join(bin, "margay"), probe(), kept)
	cmd.Dir = scratch
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(kept, name))
		if err != nil {
			t.Error(err)
		}
		return string(content)
	}
	if !strings.Contains(string(text), "logs 125\n") || !strings.Contains(string(text), "ended (125)") || !strings.Contains(string(text), "second 125\nremove 0\nthird 0\n") {
		t.Errorf("it says:\n%s", text)
	}
	if says := read("err"); !strings.Contains(says, "is not complete: keep its output") || !strings.Contains(says, "no space left on device") {
		t.Errorf("margay logs says %q", says)
	}
	if says := read("second"); !strings.Contains(says, "the machine's disk is full: ") || !strings.Contains(says, "margay logs --remove") {
		t.Errorf("a job that cannot be kept says %q", says)
	}
	for i, line := range strings.Split(strings.TrimSuffix(read("out"), "\n"), "\n") {
		if full := fmt.Sprintf("%015d", i); line != full && !strings.HasPrefix(full, line) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if says := read("second"); !strings.Contains(says, "no space left on device") {
		t.Errorf("a job on a disk that is full from the start: %q", says)
	}
}
