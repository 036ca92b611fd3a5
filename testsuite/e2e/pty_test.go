package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// screen is a terminal with the output of a program on it.
type screen struct {
	*command
	t             testing.TB
	master, slave *os.File

	mu    sync.Mutex
	shown strings.Builder
	seen  int // the part of it that a test has waited for
}

// onTerminal runs margay on a terminal of 80 columns and 24 rows.
func (m *machine) onTerminal(args ...string) *screen {
	m.t.Helper()
	master, slave := terminal(m.t)
	x := &screen{t: m.t, master: master, slave: slave}
	x.size(24, 80)
	x.command = start(m.t, func(c *exec.Cmd) {
		c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
		c.Env = append(os.Environ(), "TERM=xterm", "PS1=READY: ")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}, append([]string{"-m", m.name}, args...)...)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			x.mu.Lock()
			x.shown.Write(buf[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return x
}

func (x *screen) size(rows, columns uint16) {
	x.t.Helper()
	if err := unix.IoctlSetWinsize(int(x.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		x.t.Fatal(err)
	}
}

// types presses keys and waits until the screen shows the texts.
func (x *screen) types(keys string, shows ...string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
	for _, text := range shows {
		x.awaits(text)
	}
}

// text returns all output on the screen.
func (x *screen) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.shown.String()
}

// awaits waits until the screen shows a text, after the text that was awaited before.
func (x *screen) awaits(text string) {
	x.t.Helper()
	eventually(x.t, fmt.Sprintf("%q on the screen", text), func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		at := strings.Index(x.shown.String()[x.seen:], text)
		if at >= 0 {
			x.seen += at + len(text)
		}
		return at >= 0
	}, x.text)
}

// raw reports whether keys are passed on as they are.
func (x *screen) raw() bool {
	x.t.Helper()
	state, err := unix.IoctlGetTermios(int(x.slave.Fd()), unix.TCGETS)
	if err != nil {
		x.t.Fatal(err)
	}
	return state.Lflag&unix.ICANON == 0
}

// with returns flags that copy programs of this host.
func with(t *testing.T, programs ...string) (flags []string) {
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("%s is not installed: %v", name, err)
		}
		flags = append(flags, "--with", path)
	}
	return flags
}

// A shell on a terminal of its node: job control, the size of the window, an editor, and serve
// killed in between.
func TestTerminal(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		args := append([]string{"run", "--pty"}, with(t, "stty", "tty", "sleep", "cat")...)
		x := m.onTerminal(append(args, "bash", "--norc", "--noprofile", "-i")...)
		x.awaits("READY: ")
		x.types("tty; stty size\r", "/dev/pts/0", "24 80", "READY: ")
		x.types("test -t 0 && test -t 1 && test -t 2 && echo all''three\r", "allthree", "READY: ")
		x.size(40, 100)
		x.types("while test \"$(stty size)\" != '40 100'; do :; done; echo re''sized\r", "resized", "READY: ")
		// The program says when it is in the foreground: before that, keys are the shell's.
		x.types(`bash -c 'trap "echo con""tinued" CONT; echo run""ning; while sleep 0.1; do :; done'`+"\r", "running")
		x.types("\x1a", "Stopped", "READY: ")
		x.types("fg\r", "continued")
		x.types("\x03", "READY: ")
		if m.hosted() {
			_, serve := m.status()
			kill(t, serve)
			x.awaits("goes on")
		}
		x.types("echo still ''here\r", "still here", "READY: ")
		if !x.raw() {
			t.Error("the keys are not passed on as they are")
		}
		x.types("exit 7\r")
		if r := x.wait(); r.code != 7 {
			t.Errorf("status %d: %s", r.code, x.text())
		}
		if x.raw() {
			t.Error("the terminal is not restored")
		}
	})
}

// An editor on the terminal of a node.
func TestEditor(t *testing.T) {
	m := use(t, "hosted")
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte("first\nsecond\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"run", "--pty", "--with", file}, with(t, "vi", "cat")...)
	x := m.onTerminal(append(args, "bash", "-c", `vi -u NONE "$0"; cat "$0"`, file)...)
	x.awaits("second")
	x.types("Gothird \x1b:wq\r", "third")
	if r := x.wait(); r.code != 0 {
		t.Errorf("status %d: %q", r.code, x.text())
	}
	x.awaits("first\r\nsecond\r\nthird")
}

// The terminal is restored however margay run ends: by an escape, or killed.
func TestTerminalRestored(t *testing.T) {
	m := use(t, "hosted")
	for _, end := range []func(*screen){
		func(x *screen) { x.types("~."); x.awaits("was ended by ~.") },
		func(x *screen) { kill(t, x.cmd.Process.Pid) },
	} {
		x := m.onTerminal("run", "--pty", probe(), "sleep", "3600", "stubborn")
		x.awaits("sleeping")
		eventually(t, "raw terminal", x.raw, x.text)
		end(x)
		x.wait()
		eventually(t, "restored terminal", func() bool { return !x.raw() }, x.text)
		m.awaitIdle()
	}
}

// Without a terminal here, the rank still has one, and its input ends.
func TestTerminalOfScript(t *testing.T) {
	m := use(t, "hosted")
	c := start(t, func(c *exec.Cmd) { c.Stdin = strings.NewReader("echo one; test -t 0 && echo two\npart") },
		append(append([]string{"-m", m.name, "run", "--pty"}, with(t, "cat")...), "bash", "-c", "read -r line; eval \"$line\"; cat")...)
	if r := c.wait(); r.code != 0 || !strings.Contains(r.stdout, "one\r\ntwo\r\n") || !strings.Contains(r.stdout, "part") {
		t.Error(r)
	}
	if r := m.margay("run", "--pty", "-n", "2", "true"); r.code != 125 || !strings.Contains(r.stderr, "a terminal is for a single rank") {
		t.Error(r)
	}
}
