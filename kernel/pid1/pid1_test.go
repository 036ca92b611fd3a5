package pid1_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/node"
	"margay/kernel/keep"
	"margay/kernel/link"
	"margay/kernel/pid1"
)

// PID 1 reaps whatever there is, so it cannot be the process that tests. The test binary is started
// again as PID 1, and by that as the node kernel.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 {
		os.Exit(m.Run())
	}
	var err error
	switch os.Args[1] {
	case "pid1":
		err = first(os.Args[2:])
	case "kernel":
		err = nodeKernel(kernels[os.Args[2]])
	case "hosted":
		err = hosted(os.Args[2], os.Args[3], os.Args[4])
	case "machine":
		err = machine(os.Args[2])
	case "orphan":
		err = orphan(os.Args[2])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ready is a node that needs no getting ready. Its Linux has a file for its log, unless that has no
// name.
type ready struct {
	err error
	log string
}

func (r ready) SetUp(func(string, ...any)) (node.Config, error) {
	return node.Config{Machine: "test", Node: 3}, r.err
}

func (r ready) Log() *os.File {
	f, _ := os.OpenFile(r.log, os.O_WRONLY|os.O_APPEND, 0)
	return f
}

func (ready) Off(func(string, ...any)) {
	fmt.Println("off")
	os.Exit(0)
}

// first is PID 1. Its node kernels are given a part, or the program does not exist.
func first(args []string) error {
	// Orphans come to it as they do to PID 1.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	switch args[0] {
	case "no node":
		r := ready{err: errors.New("there is no node")}
		if len(args) > 1 {
			r.log = args[1]
		}
		return pid1.Main(r, []string{"/none"})
	case "logged":
		return pid1.Main(ready{log: args[1]}, []string{"/proc/self/exe", "kernel", args[2]})
	case "no kernel":
		return pid1.Main(ready{}, []string{"/none"})
	}
	return pid1.Main(ready{}, []string{"/proc/self/exe", "kernel", args[0]})
}

// nodeKernel is a node kernel. It says which timer slack it has, and what was kept for it, before
// it plays its part.
func nodeKernel(part func(c *link.Conn, kept []*keep.Item) error) error {
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	fmt.Println("slack", slack)
	conn, err := link.NewConn(os.NewFile(pid1.LinkFD, "link"))
	if err != nil {
		return err
	}
	if err := conn.Send(link.New(pid1.Resync, nil)); err != nil {
		return err
	}
	var kept []*keep.Item
	for {
		m, err := conn.Recv()
		if err != nil {
			return err
		}
		item, done, err := keep.Replayed(m)
		if err != nil {
			return err
		}
		if done {
			fmt.Println("kept", len(kept))
			return part(conn, kept)
		}
		kept = append(kept, item)
	}
}

// kernels are the parts of node kernels.
var kernels = map[string]func(c *link.Conn, kept []*keep.Item) error{
	// restart ends in one way after the other.
	"restart": func(c *link.Conn, kept []*keep.Item) error {
		if err := keep.Keep(c, keep.Item{Name: fmt.Sprint("life ", len(kept))}); err != nil {
			return err
		}
		switch len(kept) {
		case 0:
			os.Exit(3)
		case 1:
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		case 2:
			return nil
		}
		return powerOff(c)
	},
	// heir leaves things behind and finds them again.
	"heir": func(c *link.Conn, kept []*keep.Item) error {
		if len(kept) == 0 {
			return leave(c)
		}
		for _, item := range kept {
			text := make([]byte, 100)
			n, err := item.Files[0].ReadAt(text, 0)
			fmt.Println(item.Name, string(item.Words), string(text[:n]), err)
		}
		return powerOff(c)
	},
	// many leaves a lot behind and is killed before PID 1 can look at it.
	"many": func(c *link.Conn, kept []*keep.Item) error {
		if len(kept) > 0 {
			return powerOff(c)
		}
		if err := unix.Kill(os.Getppid(), unix.SIGSTOP); err != nil {
			return err
		}
		for i := range manyItems {
			if err := keep.Keep(c, keep.Item{Name: fmt.Sprint(i)}); err != nil {
				return err
			}
		}
		fmt.Println("all is said")
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	},
	// verbose says a lot and has the node turned off at once.
	"verbose": func(c *link.Conn, kept []*keep.Item) error {
		var st unix.Stat_t
		if err := unix.Fstat(unix.Stdout, &st); err != nil {
			return err
		}
		fmt.Printf("mode %o\n", st.Mode&^unix.S_IFMT)
		fmt.Print(strings.Repeat("x\n", 1000), "the last words\n")
		return powerOff(c)
	},
	"nonsense": func(c *link.Conn, kept []*keep.Item) error {
		if err := c.Send(link.New("nonsense", nil)); err != nil {
			return err
		}
		return powerOff(c)
	},
	// orphan leaves a process that ends when it has another parent.
	"orphan": func(c *link.Conn, kept []*keep.Item) error {
		if len(kept) == 0 {
			pid, err := syscall.ForkExec("/proc/self/exe", []string{"pid1", "orphan", fmt.Sprint(os.Getpid())}, nil)
			if err != nil {
				return err
			}
			return keep.Keep(c, keep.Item{Name: fmt.Sprint(pid)})
		}
		var pid int
		fmt.Sscan(kept[0].Name, &pid)
		if err := poll("orphan reaped", func() bool { return unix.Kill(pid, 0) == unix.ESRCH }); err != nil {
			return err
		}
		fmt.Println("the orphan is gone")
		return powerOff(c)
	},
}

const manyItems = 100

// powerOff asks for the end and waits for it.
func powerOff(c *link.Conn) error {
	if err := c.Send(link.New(pid1.PowerOff, nil)); err != nil {
		return err
	}
	time.Sleep(time.Hour)
	return nil
}

// leave stores two items, replaces one, and forgets a third. The third life reports that to the
// second.
func leave(c *link.Conn) error {
	for _, item := range []keep.Item{{Name: "a", Words: []byte("1")}, {Name: "b/c"}, {Name: "d"}, {Name: "a", Words: []byte("2")}} {
		fd, err := unix.MemfdCreate("kept", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "kept")
		if _, err := f.WriteString("content of " + item.Name); err != nil {
			return err
		}
		item.Files = []*os.File{f}
		if err := keep.Keep(c, item); err != nil {
			return err
		}
	}
	return keep.Drop(c, "b")
}

func orphan(parent string) error {
	return poll("new parent", func() bool { return fmt.Sprint(os.Getppid()) != parent })
}

// patience bounds every wait for something that must happen.
const patience = 2 * time.Minute

func poll(what string, ok func() bool) error {
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("no %s within %v", what, patience)
		}
	}
	return nil
}

// part is a part that runs.
type part struct {
	t   *testing.T
	cmd *exec.Cmd
	out check.Buffer // all that it and its node kernels say
}

// play starts the test binary in a part. change may change the command before it is started.
func play(t *testing.T, change func(*exec.Cmd), args ...string) *part {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &part{t: t, cmd: exec.Command(exe, args...)}
	p.cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1 atexit_sleep_ms=0") // the race detector does not hold up ends
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	if change != nil {
		change(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		if errors.Is(err, unix.EPERM) && os.Getuid() != 0 {
			t.Skip("needs user namespaces, which this host does not let an ordinary user make: ", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	return p
}

// await waits until a text has been said.
func (p *part) await(text string) {
	p.t.Helper()
	if err := poll(text, func() bool { return strings.Contains(p.out.String(), text) }); err != nil {
		p.t.Fatalf("%v:\n%s", err, p.out.String())
	}
}

// end waits for the end and returns what was said.
func (p *part) end(status int) string {
	p.t.Helper()
	timer := time.AfterFunc(patience, func() { p.cmd.Process.Kill() })
	defer timer.Stop()
	p.cmd.Wait()
	if got := p.cmd.ProcessState.ExitCode(); got != status {
		p.t.Errorf("exit status %d, want %d:\n%s", got, status, p.out.String())
	}
	return p.out.String()
}

// contains demands texts, in this order.
func contains(t *testing.T, said string, texts ...string) {
	t.Helper()
	rest := said
	for _, text := range texts {
		_, after, ok := strings.Cut(rest, text)
		if !ok {
			t.Fatalf("no %q where it should be in:\n%s", text, said)
		}
		rest = after
	}
}

func TestRestart(t *testing.T) {
	said := play(t, nil, "pid1", "restart").end(0)
	contains(t, said,
		"margay: node3 of machine test is up, starting the node kernel\n", "slack 1000000\n", "kept 0\n",
		"margay: the node kernel ended with status 3; starting it again in 50ms\n", "slack 1000000\n", "kept 1\n",
		"margay: the node kernel was killed by SIGKILL; starting it again in 100ms\n", "kept 2\n",
		"margay: the node kernel ended with status 0; starting it again in 200ms\n", "kept 3\n",
		"margay: the node goes off\n", "off\n")
}

// emptyLog makes an empty file that plays Linux's log.
func emptyLog(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Where the lines of PID 1 and the node kernels go into Linux's log, each is a record there, in the
// order in which they were written, and nothing is on the console.
func TestLogged(t *testing.T) {
	path := emptyLog(t)
	if said := play(t, nil, "pid1", "logged", path, "restart").end(0); said != "off\n" {
		t.Errorf("on the console: %s", said)
	}
	contains(t, read(t, path), "<3>margay: node3 of machine test is up, starting the node kernel", "<3>slack 1000000<3>kept 0<3>margay: the node kernel ended with status 3",
		"<3>kept 3", "<3>margay: the node goes off")
}

// All that a node kernel has written is in the log when the node goes off. Only the owner of the
// pipe opens it by its name in /proc.
func TestLastLines(t *testing.T) {
	path := emptyLog(t)
	play(t, nil, "pid1", "logged", path, "verbose").end(0)
	contains(t, read(t, path), "<3>mode 0<3>x", strings.Repeat("<3>x", 999)+"<3>the last words<3>margay: the node goes off")
}

// records takes one record with each write.
type records []string

func (r *records) Write(p []byte) (int, error) {
	*r = append(*r, string(p))
	return len(p), nil
}

// Linux takes records of a bounded length, and no empty ones. A record that begins within a line is
// marked.
func TestRecords(t *testing.T) {
	long := strings.Repeat("x", 2*pid1.MaxLogLine+1)
	var got records
	r, now := pid1.NewRecords(&got), time.Now()
	for _, piece := range []string{"a\n\nb\nc", "", "d", "\n", long, "\n", long[:pid1.MaxLogLine], "\nend", "\n", "rest"} {
		r.Take(now, piece)
	}
	whole := long[:pid1.MaxLogLine]
	want := records{"<3>a", "<3>b", "<3>cd", "<3>" + whole, "<3>... " + whole, "<3>... x", "<3>" + whole, "<3>end"}
	if !slices.Equal(got, want) {
		t.Errorf("records %q", got)
	}
}

// Lines that come too fast are dropped and counted.
func TestRecordsFlood(t *testing.T) {
	var got records
	r, now := pid1.NewRecords(&got), time.Now()
	const length = 64
	line := strings.Repeat("x", length) + "\n"
	r.Take(now, strings.Repeat(line, pid1.RecordBurst/length))
	if len(got) != pid1.RecordBurst/length {
		t.Fatalf("%d records at once", len(got))
	}
	got = nil
	if r.Take(now, line+line); len(got) != 0 {
		t.Errorf("too many: %q", got)
	}
	for range 2 * pid1.RecordRate / length { // half of them in a second
		r.Take(now.Add(time.Second), line)
	}
	if want := fmt.Sprintf("<3>margay: missing: %d bytes of lines, which came too fast", 2*length); len(got) != 1+pid1.RecordRate/length || got[0] != want {
		t.Errorf("%d records, the first is %q", len(got), got[0])
	}
}

// FuzzRecords: each record is short, and without a break, and no text is missing.
func FuzzRecords(f *testing.F) {
	f.Add("a\n", "b")
	f.Add(strings.Repeat("x", 3000), "\n")
	f.Fuzz(func(t *testing.T, first, second string) {
		if len(first)+len(second) > pid1.RecordBurst {
			t.Skip("too long")
		}
		var got records
		r := pid1.NewRecords(&got)
		r.Take(time.Now(), first)
		r.Take(time.Now(), second+"\n")
		all := ""
		for _, record := range got {
			text, found := strings.CutPrefix(record, "<3>")
			if !found || len(text) == 0 || len(text) > pid1.MaxLogLine+len("... ") || strings.Contains(text, "\n") {
				t.Errorf("record %q", record)
			}
			all += text
		}
		if want := strings.ReplaceAll(first+second, "\n", ""); len(all) < len(want) {
			t.Errorf("%q became %q", first+second, got)
		}
	})
}

// The first of the levels of Linux's log says what consoles show.
func TestShowsErrors(t *testing.T) {
	for levels, want := range map[string]bool{"4\t4\t1\t7\n": true, "7 4 1 7": true, "3\t4\t1\t7\n": false, "0 4 1 7": false, "": false, "x": false} {
		if got := pid1.ShowsErrors(levels); got != want {
			t.Errorf("%q: %v", levels, got)
		}
	}
}

func TestHeir(t *testing.T) {
	said := play(t, nil, "pid1", "heir").end(0)
	contains(t, said, "kept 0\n", "kept 2\n", "a 2 content of a EOF\n", "d  content of d EOF\n", "off\n")
}

// What a node kernel said last counts even if it was killed a moment later.
func TestLastWords(t *testing.T) {
	for range 5 {
		p := play(t, nil, "pid1", "many")
		p.await("all is said\n")
		if err := p.cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		contains(t, p.end(0), "kept 0\n", fmt.Sprintf("kept %d\n", manyItems), "off\n")
	}
}

func TestNonsense(t *testing.T) {
	said := play(t, nil, "pid1", "nonsense").end(0)
	contains(t, said, "margay: the node kernel asks for \"nonsense\", which is unknown\n", "off\n")
}

func TestOrphan(t *testing.T) {
	contains(t, play(t, nil, "pid1", "orphan").end(0), "the orphan is gone\n", "off\n")
}

func TestNoNode(t *testing.T) {
	contains(t, play(t, nil, "pid1", "no node").end(1), "error: there is no node\n")
	path := emptyLog(t)
	contains(t, play(t, nil, "pid1", "no node", path).end(1), "error: there is no node\n")
	if got := read(t, path); got != "<3>margay: there is no node" {
		t.Errorf("in the log: %q", got)
	}
}

// It tries for ever, at longer and longer intervals.
func TestNoKernel(t *testing.T) {
	p := play(t, nil, "pid1", "no kernel")
	for _, pause := range []string{"50ms", "100ms", "200ms"} {
		p.await("margay: cannot start the node kernel: no such file or directory; next try in " + pause + "\n")
	}
}
