package margaytest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo-terminal with a shell on it that has job control.
type Terminal struct {
	t      *testing.T
	master *os.File

	mu    sync.Mutex
	shown strings.Builder
	seen  int // how much of it a test has waited for
}

// OpenTerminal makes a pseudo-terminal of a size.
func OpenTerminal(t *testing.T, columns, rows uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// OnTerminal starts bash on a terminal. $margay runs margay there.
func OnTerminal(t *testing.T) *Terminal {
	t.Helper()
	master, slave := OpenTerminal(t, 80, 24)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("bash", "--norc", "--noprofile", "-i")
	shell.Env = append(os.Environ(), As+"=1", "margay="+self, "PS1=$ ", "TERM=dumb", "HISTFILE=")
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	x := &Terminal{t: t, master: master}
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
	t.Cleanup(func() {
		_ = unix.Kill(-shell.Process.Pid, unix.SIGHUP)
		_ = shell.Process.Kill()
		_ = shell.Wait()
	})
	x.Await("$ ")
	return x
}

// Press sends keys.
func (x *Terminal) Press(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// Text is all that the terminal has shown.
func (x *Terminal) Text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.shown.String()
}

// Await waits until the terminal shows a text, after what was awaited before.
func (x *Terminal) Await(text string) {
	x.t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(10 * time.Millisecond) {
		x.mu.Lock()
		all := x.shown.String()
		at := strings.Index(all[x.seen:], text)
		if at >= 0 {
			x.seen += at + len(text)
		}
		x.mu.Unlock()
		if at >= 0 {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("the terminal does not show %q within %v: %q", text, Patience, all)
		}
	}
}

// Ended waits until the job in the background has ended, and demands its status. bash may know of a
// stop that is over, so wait alone would return it.
func (x *Terminal) Ended(status int) {
	x.t.Helper()
	x.Press("while kill -0 $! 2>&-; do sleep 0.05; done; wait $!; echo status $?\n")
	x.Await(fmt.Sprintf("\nstatus %d", status))
}

const (
	CtrlC = "\x03"
	CtrlZ = "\x1a"
)

// Shown runs a command on a terminal of 80 columns and returns what that shows.
func Shown(t *testing.T, args ...string) string {
	t.Helper()
	master, slave := OpenTerminal(t, 80, 24)
	got := make(chan string)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for !strings.Contains(all.String(), "\x04") {
			n, err := master.Read(buf)
			if err != nil {
				break
			}
			all.Write(buf[:n])
		}
		got <- strings.TrimSuffix(strings.ReplaceAll(all.String(), "\r\n", "\n"), "\x04")
	}()
	var stderr bytes.Buffer
	if status := program.Run(context.Background(), args, strings.NewReader(""), slave, &stderr); status != 0 {
		t.Errorf("%v: status %d, %s", args, status, stderr.String())
	}
	if _, err := slave.WriteString("\x04"); err != nil {
		t.Fatal(err)
	}
	select {
	case text := <-got:
		return text
	case <-time.After(Patience):
		t.Fatal("the terminal shows no end")
		return ""
	}
}
