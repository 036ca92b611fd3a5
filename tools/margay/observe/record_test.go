package observe_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/kernel/record"
	"margay/tools/margay/margaytest"
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
	m := margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		c.Answer(f, nil, control.Failf(control.Code_CODE_FAILED, "serve is asked"))
	})
	for _, path := range []string{fifo, dir, "/dev/null"} {
		status, _, stderr := margaytest.Margay("", "record", "-o", path, "--duration", "10ms")
		if want := "margay: record: " + path + " is not a regular file: name one with --output\n"; status != 125 || stderr != want {
			t.Errorf("%s: status %d, %q", path, status, stderr)
		}
	}
	if got := m.Messages(); len(got) > 0 {
		t.Errorf("serve is asked %v", got)
	}
	for _, path := range []string{file, filepath.Join(dir, "new")} {
		if status, _, stderr := margaytest.Margay("", "record", "--force", "-o", path); status != 125 || stderr != "margay: serve is asked\n" {
			t.Errorf("%s: status %d, %q", path, status, stderr)
		}
	}
	p := margaytest.Shell(t, `"$0" record -o /dev/stdout | cat; "$0" record -o >(cat)`).Begin()
	if p.Status(); strings.Count(p.Err.String(), "margay: serve is asked\n") != 2 {
		t.Errorf("into an open pipe: %s", p.Err.String())
	}
}

// A recording that serve refuses leaves no file, and is not summed up.
func TestRecordRefused(t *testing.T) {
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		switch f.Message().(type) {
		case *control.ListNodes:
			c.Answer(f, &control.Nodes{Nodes: []*control.NodeState{{Health: control.NodeHealth_NODE_UP}}}, nil)
		case *control.ReadClock:
			c.Answer(f, &control.Clock{TimeNs: 2}, nil)
		default:
			c.Answer(f, nil, control.Failf(control.Code_CODE_REFUSED, "not yours"))
		}
	})
	file := filepath.Join(t.TempDir(), "trace.json")
	if status, _, stderr := margaytest.Margay("", "record", "-o", file, "--duration", "10ms"); status != 125 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "not yours") {
		t.Errorf("status %d, %q", status, stderr)
	}
	if _, err := os.Lstat(file); err == nil {
		t.Error("there is a file")
	}
}

// A trace that exists is replaced only on request, and then when the new one is complete. A link to
// it stays.
func TestRecordReplaces(t *testing.T) {
	playRecorded(t, func(int32) []byte { return nil })
	dir := t.TempDir()
	file, link := filepath.Join(dir, "trace.json"), filepath.Join(dir, "link")
	write := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("yesterday")
	if err := os.Symlink("trace.json", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		status, _, stderr := margaytest.Margay("", "record", "-o", path, "--duration", "10ms")
		if want := "margay: record: " + path + " exists: --force replaces it, --output names another file\n"; status != 125 || stderr != want {
			t.Errorf("%s: status %d, %q", path, status, stderr)
		}
		content := func() string {
			text, _ := os.ReadFile(file)
			return string(text)
		}
		if content() != "yesterday" {
			t.Errorf("%s: %q", path, content())
		}
		// The command sees the old trace, and makes another one where there was none.
		if status, _, stderr := margaytest.Margay("", "record", "--force", "-o", path, "--", "grep", "-q", "yesterday", file); status != 0 || !json.Valid([]byte(content())) {
			t.Errorf("%s: status %d, %q, %q", path, status, stderr, content())
		}
		write("yesterday")
	}
	if target, err := os.Readlink(link); err != nil || target != "trace.json" {
		t.Errorf("the link: %s, %v", target, err)
	}
	fresh := filepath.Join(dir, "fresh.json")
	status, _, stderr := margaytest.Margay("", "record", "-o", fresh, "--", "touch", fresh)
	margaytest.Wants(t, status, 125, stderr, "margay: record: "+fresh+" exists: --force replaces it, --output names another file; this trace is in "+fresh+".")
	parts, _ := filepath.Glob(fresh + ".*.part")
	if len(parts) != 1 {
		t.Fatalf("the traces %q", parts)
	}
	if text, err := os.ReadFile(parts[0]); err != nil || !json.Valid(text) {
		t.Errorf("%q, %v", text, err)
	}
}

// A full disk leaves no part of a trace, and the earlier trace as it was.
func TestRecordLeavesNoPart(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	var events []byte
	for range 400 {
		e := record.Event{Time: 1, Kind: record.Fault, Text: strings.Repeat("x", 1000)}
		events = e.Append(events)
	}
	playRecorded(t, func(int32) []byte { return events })
	p := margaytest.Shell(t, `exec unshare -m sh -c 'mount -t tmpfs -o size=64k none "$DIR" && cd "$DIR" && echo yesterday >trace.json
"$0" record --force -o trace.json; echo status $?; ls -A; cat trace.json' "$0"`)
	p.Env = append(p.Env, "DIR="+t.TempDir())
	p.Begin()
	margaytest.Wants(t, p.Status(), 0, p.Err.String(), "no space left on device")
	if got := p.Out.String(); got != "status 125\ntrace.json\nyesterday\n" {
		t.Errorf("%q, %q", got, p.Err.String())
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
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		c.Answer(f, &control.Nodes{Nodes: []*control.NodeState{{Health: control.NodeHealth_NODE_UP}}}, nil)
	})
	for command, want := range map[string]int{"no-such-command": 127, "./no-such-command": 127, text: 126, dir: 126} {
		status, _, stderr := margaytest.Margay("", "record", "-o", file, "--", command)
		if status != want || !strings.Contains(stderr, command) {
			t.Errorf("%s: status %d, %q", command, status, stderr)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != "the trace of yesterday" {
			t.Fatalf("%s: the file has %q, %v", command, got, err)
		}
	}
}

// A command goes on when its trace can no longer be written, and margay record ends after it.
func TestRecordOnFullDisk(t *testing.T) {
	var events []byte
	for range 400 {
		e := record.Event{Time: 1, Kind: record.Fault, Text: strings.Repeat("x", 1000)}
		events = e.Append(events)
	}
	playRecorded(t, func(asked int32) []byte {
		if asked == 1 { // the first answer has the command started
			return nil
		}
		return events
	})
	log := filepath.Join(t.TempDir(), "log")
	p := margaytest.Shell(t, `"$0" record -o /dev/stdout -- sh -c 'read line; echo "$line" >&2' >/dev/full 2>"$LOG"`)
	p.Env = append(p.Env, "LOG="+log)
	stdin, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Begin()
	said := func() string {
		text, _ := os.ReadFile(log)
		return string(text)
	}
	margaytest.AwaitText(t, said, "the command goes on")
	if _, err := stdin.Write([]byte("the command has ended\n")); err != nil {
		t.Error(err)
	}
	margaytest.Wants(t, p.Status(), 125, said(), "no space left on device: the command goes on, and is no longer recorded\nthe command has ended\nmargay: ")
}

// recordsBeside starts margay record with these arguments and a command that ends with status 4
// when end is called. said returns the standard error, and file is the trace.
func recordsBeside(t *testing.T, arguments string) (p *margaytest.Process, file string, said func() string, end func()) {
	t.Helper()
	dir := t.TempDir()
	file, log := filepath.Join(dir, "trace.json"), filepath.Join(dir, "log")
	p = margaytest.Shell(t, `exec "$0" record -o "$FILE" `+arguments+` 2>"$LOG"`)
	p.Env = append(p.Env, "FILE="+file, "LOG="+log)
	stdin, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Begin()
	said = func() string {
		text, _ := os.ReadFile(log)
		return string(text)
	}
	return p, file, said, func() { stdin.Close() }
}

// A recording that is over before its command is written, and margay record ends with the command.
func TestRecordDuration(t *testing.T) {
	playRecorded(t, func(int32) []byte { return nil })
	p, file, said, end := recordsBeside(t, `--duration 10ms -- sh -c 'read line; exit 4'`)
	margaytest.AwaitText(t, said, file+": 0 events of 1 node")
	if text, err := os.ReadFile(file); err != nil || !json.Valid(text) {
		t.Errorf("the trace is %q, %v", text, err)
	}
	end()
	if status := p.Status(); status != 4 || strings.Contains(said(), "goes on") {
		t.Errorf("status %d: %s", status, said())
	}
}

// When the machine goes down, margay record ends, after its command if it has one, and the trace is
// whole.
func TestRecordOfMachineGoingDown(t *testing.T) {
	for arguments, warned := range map[string]bool{"": false, `-- sh -c 'read line; exit 4'`: true} {
		t.Run(arguments, func(t *testing.T) {
			e := record.Event{Time: 1, Kind: record.Fault, Text: "before"}
			m := playRecorded(t, func(asked int32) []byte {
				if asked == 2 {
					return e.Append(nil)
				}
				return nil
			})
			p, file, said, end := recordsBeside(t, arguments)
			for range 3 { // the third question says that the second answer has come
				margaytest.Await(m, func(*control.ReadEvents) bool { return true })
			}
			m.Down()
			margaytest.AwaitText(t, said, file+": 1 event of 1 node")
			if warned {
				margaytest.AwaitText(t, said, "the machine goes down: the command goes on, and is no longer recorded")
				end()
			}
			margaytest.Wants(t, p.Status(), 125, said(), "margay: the machine goes down\n")
			if text, err := os.ReadFile(file); err != nil || !json.Valid(text) || !strings.Contains(string(text), "before") {
				t.Errorf("the trace is %q, %v", text, err)
			}
		})
	}
}

// SIGQUIT ends a recording as SIGINT does, without the stacks of Go.
func TestRecordQuit(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGQUIT} {
		begun := make(chan bool)
		begin := sync.OnceFunc(func() { close(begun) })
		playRecorded(t, func(int32) []byte {
			begin()
			return nil
		})
		p := margaytest.Shell(t, `exec "$0" record -o "$FILE"`)
		file := filepath.Join(t.TempDir(), "trace.json")
		p.Env = append(p.Env, "FILE="+file)
		p.Begin()
		<-begun
		p.Signal(sig)
		margaytest.Wants(t, p.Status(), 0, p.Err.String(), file+": 0 events of 1 node")
	}
}

// playRecorded plays a machine of one node, which has these events for the first question for them,
// for the second and so on.
func playRecorded(t *testing.T, events func(asked int32) []byte) *margaytest.Machine {
	var asked atomic.Int32
	return margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		switch f.Message().(type) {
		case *control.ListNodes:
			c.Answer(f, &control.Nodes{Nodes: []*control.NodeState{{Health: control.NodeHealth_NODE_UP}}}, nil)
		case *control.ReadClock:
			c.Answer(f, &control.Clock{TimeNs: 2}, nil)
		case *control.ReadEvents:
			c.Answer(f, &control.Events{Generation: 1, KernelNs: 1, BegunNs: 1, NowNs: 2, Events: events(asked.Add(1))}, nil)
		}
	})
}
