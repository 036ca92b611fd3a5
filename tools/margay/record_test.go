package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// An output that would lose the events is refused before anything is recorded.
func TestRecordIntoPipe(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := playMachine(t, "m", func(c *control.Conn, f *control.Frame) {
		c.Answer(f, nil, control.Failf(control.Code_CODE_FAILED, "serve is asked"))
	})
	for _, path := range []string{fifo, dir, "/dev/null"} {
		status, _, stderr := margay("", "record", "-o", path, "--duration", "10ms")
		if want := "margay: record: " + path + " is no regular file: name one with --output\n"; status != 125 || stderr != want {
			t.Errorf("%s: status %d, %q", path, status, stderr)
		}
	}
	if got := m.messages(); len(got) > 0 {
		t.Errorf("serve is asked %v", got)
	}
	for _, path := range []string{file, filepath.Join(dir, "new")} {
		if status, _, stderr := margay("", "record", "-o", path); status != 125 || stderr != "margay: serve is asked\n" {
			t.Errorf("%s: status %d, %q", path, status, stderr)
		}
	}
	p := shell(t, `"$0" record -o /dev/stdout | cat; "$0" record -o >(cat)`).start()
	if p.status(); strings.Count(p.stderr.String(), "margay: serve is asked\n") != 2 {
		t.Errorf("into an open pipe: %s", p.stderr.String())
	}
}

// A command that cannot be started leaves the trace of an earlier one as it is.
func TestRecordOfNoCommand(t *testing.T) {
	dir := t.TempDir()
	file, text := filepath.Join(dir, "trace.json"), filepath.Join(dir, "text")
	for path, content := range map[string]string{file: "the trace of yesterday", text: "no program"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	playMachine(t, "m", func(c *control.Conn, f *control.Frame) {
		c.Answer(f, &control.Nodes{Nodes: []*control.NodeState{{Health: control.NodeHealth_NODE_UP}}}, nil)
	})
	for command, want := range map[string]int{"no-such-command": 127, "./no-such-command": 127, text: 126, dir: 126} {
		status, _, stderr := margay("", "record", "-o", file, "--", command)
		if status != want || !strings.Contains(stderr, command) {
			t.Errorf("%s: status %d, %q", command, status, stderr)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != "the trace of yesterday" {
			t.Fatalf("%s: the file has %q, %v", command, got, err)
		}
	}
}
