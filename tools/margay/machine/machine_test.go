package machine_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// A console that is followed ends with its machine, whose folder is removed, and nothing is left
// out of what it had written.
func TestFollowConsoleOfMachineGoingDown(t *testing.T) {
	m := margaytest.Play(t, "m", func(*control.Conn, *control.Frame) {})
	dir := filepath.Join(m.Base, m.Name)
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	console, err := os.Create(filepath.Join(dir, "log", "node1.console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	fmt.Fprintln(console, "first")
	p := margaytest.Shell(t, `exec "$0" machine console 1 --follow >"$OUT"`)
	out := filepath.Join(t.TempDir(), "out")
	p.Env = append(p.Env, "OUT="+out)
	p.Begin()
	shown := func() string {
		text, _ := os.ReadFile(out)
		return string(text)
	}
	margaytest.AwaitText(t, shown, "first\n")
	fmt.Fprintln(console, "last")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	margaytest.Wants(t, p.Status(), 125, p.Err.String(), "margay: machine m: there is no such machine")
	if shown() != "first\nlast\n" {
		t.Errorf("it shows %q", shown())
	}
}

// The console of the boot before is shown if there is one, and the log that firmware has kept, the
// later one last. It cannot be followed.
func TestPreviousConsole(t *testing.T) {
	m := margaytest.Play(t, "m", func(*control.Conn, *control.Frame) {})
	dir := filepath.Join(m.Base, m.Name, "log")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"node1.console": "now\n", "node1.console.previous": "then\n", "node2.console": "now\n", "node3.console.previous.old": "the beginning\n", "node3.console.previous": "the end\n",
		"node4.console.firmware": "a panic\n", "node5.console.firmware": "a panic\n", "node5.console.previous": "then\n", "node6.console.firmware": "a panic\n", "node6.console.previous": "then\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Minute)
	for _, name := range []string{"node5.console.firmware", "node6.console.previous"} {
		if err := os.Chtimes(filepath.Join(dir, name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{[]string{"1"}, 0, "now\n", ""},
		{[]string{"1", "--previous"}, 0, "then\n", ""},
		{[]string{"2", "--previous"}, 125, "", "margay: machine m keeps nothing of an earlier boot of node2: only metal nodes that have booted twice have that\n"},
		{[]string{"3", "--previous"}, 0, "the beginning\nthe end\n", ""},
		{[]string{"4", "--previous"}, 0, "a panic\n", ""},
		{[]string{"5", "--previous"}, 0, "a panic\nthen\n", ""},
		{[]string{"6", "--previous"}, 0, "then\na panic\n", ""},
		{[]string{"3"}, 125, "", "margay: the console of node3 of machine m shows nothing yet\n"},
		{[]string{"9"}, 125, "", "margay: machine m has no node9: its nodes are node0-3\n"},
		{[]string{"1", "--previous", "--follow"}, 125, "", "margay: --previous is of a boot that has ended: it cannot be followed\n"},
	} {
		var stdout, stderr bytes.Buffer
		status := margaytest.Run(t.Context(), append([]string{"machine", "console"}, c.args...), strings.NewReader(""), &stdout, &stderr)
		if status != c.status || stdout.String() != c.stdout || stderr.String() != c.stderr {
			t.Errorf("%q: status %d, %q, %q", c.args, status, stdout.String(), stderr.String())
		}
	}
}

// A command whose output cannot be written fails.
func TestStatusThatCannotBeWritten(t *testing.T) {
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) { c.Answer(f, &control.MachineStatus{Machine: "m"}, nil) })
	var stderr bytes.Buffer
	status := margaytest.Run(t.Context(), []string{"machine", "status"}, strings.NewReader(""), margaytest.Full{}, &stderr)
	margaytest.Wants(t, status, 125, stderr.String(), margaytest.ErrFull.Error())
}
