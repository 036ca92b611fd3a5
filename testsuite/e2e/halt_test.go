package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// halted reports whether all of some processes are stopped, or none of them.
func halted(pids []int) (all, none bool) {
	all, none = true, true
	for _, pid := range pids {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if strings.Contains(string(status), "State:\tT (stopped)") {
			none = false
		} else {
			all = false
		}
	}
	return all, none
}

// A stopped job stays stopped while its node kernels are killed, is listed as stopped, and
// continues without loss.
func TestHaltedJob(t *testing.T) {
	m := use(t, "hosted")
	c, complete := countJob(t, m, 8, 0, 50)
	job := m.onlyJob()
	var ranks []int
	eventually(t, "all ranks", func() bool { // some may still be starting
		ranks = m.ranks("count")
		return len(ranks) == 8
	}, func() string { return fmt.Sprint(ranks) })
	if r := m.margay("kill", "-s", "STOP", job); r.code != 0 {
		t.Fatal(r)
	}
	state := func() string { return m.margay("ps").String() }
	eventually(t, "stopped ranks", func() bool { all, _ := halted(ranks); return all }, state)
	m.killNodeKernels()
	m.awaitUp()
	eventually(t, "a stopped job", func() bool { all, _ := halted(ranks); return all && strings.Contains(state(), "stopped") }, state)
	if r := m.margay("kill", "-s", "CONT", job); r.code != 0 {
		t.Fatal(r)
	}
	eventually(t, "ranks that go on", func() bool { _, none := halted(ranks); return none }, state)
	c.signal(unix.SIGUSR1)
	complete(c.wait())
	m.usable()
}

// Ctrl-Z stops the ranks and then margay run, as the shell sees. If margay run is then killed,
// nothing is left; if it continues, so does its job.
func TestLauncherStopped(t *testing.T) {
	m := use(t, "hosted")
	for _, end := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		c := start(t, func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }, "-m", m.name, "run", "-n", "8", probe(), "sleep")
		c.awaitRanks("sleeping", 8)
		all := append(m.ranks("sleep"), c.cmd.Process.Pid)
		c.signal(unix.SIGTSTP)
		state := func() string { return m.margay("ps").String() }
		eventually(t, "stopped job", func() bool { stopped, _ := halted(all); return stopped }, state)
		c.signal(end)
		if end != unix.SIGKILL {
			c.signal(unix.SIGCONT)
		}
		c.wait()
		m.awaitIdle()
	}
	m.usable()
}
