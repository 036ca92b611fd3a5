package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// terminal is a pseudo-terminal with a shell on it that has job control.
type terminal struct {
	t      *testing.T
	master *os.File

	mu    sync.Mutex
	shown strings.Builder
	seen  int // how much of it a test has waited for
}

// openTerminal makes a pseudo-terminal of a size.
func openTerminal(t *testing.T, columns, rows uint16) (master, slave *os.File) {
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

// onTerminal starts bash on a terminal. $margay runs margay there.
func onTerminal(t *testing.T) *terminal {
	t.Helper()
	master, slave := openTerminal(t, 80, 24)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("bash", "--norc", "--noprofile", "-i")
	shell.Env = append(os.Environ(), asMargay+"=1", "margay="+self, "PS1=$ ", "TERM=dumb", "HISTFILE=")
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, master: master}
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
	x.await("$ ")
	return x
}

// press sends keys.
func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// text is all that the terminal has shown.
func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.shown.String()
}

// await waits until the terminal shows a text, after what was awaited before.
func (x *terminal) await(text string) {
	x.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
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
			x.t.Fatalf("the terminal does not show %q within %v: %q", text, patience, all)
		}
	}
}

// ended waits until the job in the background has ended, and demands its status. bash may know of a stop that is over, so wait alone
// would return it.
func (x *terminal) ended(status int) {
	x.t.Helper()
	x.press("while kill -0 $! 2>&-; do sleep 0.05; done; wait $!; echo status $?\n")
	x.await(fmt.Sprintf("\nstatus %d", status))
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// typed waits until rank 0 is sent what was typed.
func (m *playedMachine) typed(text string) {
	m.t.Helper()
	await(m, func(in *control.Stdin) bool { return string(in.Data) == text })
}

// A job in the background goes on, takes no input, and ends when it is killed.
func TestBackgroundJob(t *testing.T) {
	m := playMachine(t, "m", runJob)
	x := onTerminal(t)
	x.press("$margay run cat &\n")
	m.awaitRunning()
	x.press("echo typed\n") // which is for the shell
	x.await("\ntyped")
	x.press("kill -USR1 %1\n") // a stopped process would not pass it on
	m.awaitSignal(unix.SIGUSR1)
	x.press("jobs\n")
	x.await("Running")
	x.press("kill %1\n")
	m.awaitSignal(unix.SIGTERM)
	m.end(&control.JobState{ExitCode: 143})
	x.ended(143)
}

// fg, Ctrl-Z and bg move a job to and fro: in the foreground it reads the terminal, in the background it goes on without.
func TestForegroundAgain(t *testing.T) {
	m := playMachine(t, "m", runJob)
	x := onTerminal(t)
	x.press("$margay run cat &\n")
	m.awaitRunning()
	x.press("fg\n")
	x.await("run cat")
	x.press("first\n")
	m.typed("first\n")
	x.press(ctrlZ)
	x.await("Stopped")
	x.press("bg\n")
	x.await("]+ ")
	x.press("kill -USR1 %1\n")
	m.awaitSignal(unix.SIGUSR1)
	x.press("fg\n")
	x.await("run cat")
	x.press("second\n")
	m.typed("second\n")
	x.press(ctrlZ)
	x.await("Stopped")
	x.press("kill %1\n") // a stopped one ends as well
	m.awaitSignal(unix.SIGTERM)
	m.end(&control.JobState{ExitCode: 143})
	x.ended(143)
}

// Ctrl-C says what it does and what the next one will do; the next one ends the job, with status 130.
func TestCtrlC(t *testing.T) {
	m := playMachine(t, "m", runJob)
	x := onTerminal(t)
	x.press("$margay run cat\n")
	m.awaitRunning()
	x.press(ctrlC)
	x.await("SIGINT is sent to the ranks of job 5; Ctrl-C again within 3 s ends the job")
	m.awaitSignal(unix.SIGINT)
	// However slow this machine is, some two follow each other soon enough.
	for {
		x.press(ctrlC)
		m.awaitSignal(unix.SIGINT)
		x.await("job")
		ending := strings.Contains(x.text(), "ending job 5")
		if ending {
			break
		}
	}
	await(m, func(k *control.Kill) bool { return k.Force && k.Job == 5 })
	m.end(&control.JobState{ExitCode: 137, Error: control.FromError(control.Failf(control.Code_CODE_KILLED, "killed"))})
	x.await("job 5 was ended by Ctrl-C")
	x.await("\n$ ")
	x.press("echo status $?\n")
	x.await("\nstatus 130")
}

// When ranks die of Ctrl-C, so does margay run, and a shell ends its loop. A job that ends otherwise after one lets it go on.
func TestCtrlCInLoop(t *testing.T) {
	m := playMachine(t, "m", runJob)
	x := onTerminal(t)
	x.press("for i in 1 2 3; do $margay run cat; done; echo over\n")
	for _, status := range []int32{0, 3, 130} {
		m.awaitRunning()
		x.await("a rank runs")
		x.press(ctrlC)
		m.awaitSignal(unix.SIGINT)
		m.end(&control.JobState{ExitCode: status})
	}
	x.await("\n$ ")
	x.press("echo status $?\n")
	x.await("\nstatus 130")
	x.press("bash -c 'for i in 1 2 3; do $margay run cat; done'\n")
	m.awaitRunning()
	x.await("a rank runs")
	x.press(ctrlC)
	m.awaitSignal(unix.SIGINT)
	m.end(&control.JobState{ExitCode: 130})
	x.await("\n$ ")
	x.press("echo script $?\n")
	x.await("\nscript 130")
	if text := x.text(); strings.Contains(text, "\nover") {
		t.Errorf("the loop went on: %q", text)
	}
}
