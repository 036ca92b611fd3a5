package e2e

import (
	"bufio"
	"crypto/rand"
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
)

// countJob starts a job that prints numbered lines for a while, or until SIGUSR1 if lines is 0, and
// returns a check that none is missing or duplicated.
func countJob(t *testing.T, m *machine, ranks, lines, pause int) (c *command, complete func(r result)) {
	t.Helper()
	c = m.start("run", "-n", fmt.Sprint(ranks), probe(), "count", fmt.Sprint(lines), fmt.Sprint(pause))
	c.awaitOutput(fmt.Sprintf("out %d 3\n", ranks-1))
	return c, func(r result) {
		t.Helper()
		if r.code != 0 {
			t.Fatal(r)
		}
		for stream, text := range map[string]string{"out": r.stdout, "err": r.stderr} {
			next := make(map[int]int)
			for line := range strings.Lines(text) {
				var rank, number int
				if n, _ := fmt.Sscanf(line, stream+" %d %d\n", &rank, &number); n != 2 {
					continue // margay's own words
				}
				if number != next[rank] {
					t.Fatalf("%s: rank %d: line %d follows line %d", stream, rank, number, next[rank]-1)
				}
				next[rank]++
			}
			for rank := range ranks {
				if lines > 0 && next[rank] != lines || lines == 0 && !strings.Contains(r.stdout, fmt.Sprintf("rank %d printed %d lines\n", rank, next[rank])) {
					t.Fatalf("%s: %d lines of rank %d, want %d: %v", stream, next[rank], rank, lines, r)
				}
			}
		}
	}
}

func TestServeKilled(t *testing.T) {
	m := use(t, "hosted")
	c, complete := countJob(t, m, m.nodes*m.cores, 60, 50)
	for range 3 {
		_, serve := m.status()
		kill(t, serve)
		eventually(t, "another serve", func() bool {
			r := m.margay("machine", "status")
			return r.code == 0 && !strings.Contains(r.stdout, fmt.Sprintf("serve: process %d,", serve))
		}, func() string { return m.margay("machine", "status").String() })
		time.Sleep(200 * time.Millisecond)
	}
	r := c.wait()
	complete(r)
	if !strings.Contains(r.stderr, "goes on") {
		t.Errorf("it does not say what happened: %v", r)
	}
	for _, n := range m.listNodes() {
		m.awaitHealth(int(n.Node), "up") // on a busy host a node may be late
	}
	m.usable()
}

// A serve that is stopped for longer than a node may be silent declares no node dead, and
// continues.
func TestServeStopped(t *testing.T) {
	ownMachine(t, "own")
	const dead = 3 * time.Second
	m := up(t, "hosted", 2, 1, "--dead-after", dead.String())
	c, complete := countJob(t, m, 2, 60, 100)
	_, serve := m.status()
	if err := unix.Kill(serve, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * dead)
	if err := unix.Kill(serve, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	complete(c.wait())
	if _, now := m.status(); now != serve {
		t.Errorf("serve is process %d, not %d", now, serve)
	}
	for _, n := range m.listNodes() {
		m.awaitHealth(int(n.Node), "up")
	}
	m.usable()
}

// A serve that is killed while jobs are launched, at any moment, costs no job.
func TestServeKilledAtLaunch(t *testing.T) {
	m := use(t, "hosted")
	for delay := 0; delay < 100; delay += 15 {
		_, serve := m.status()
		c := m.start("run", "-n", "8", probe(), "hello")
		time.Sleep(time.Duration(delay) * time.Millisecond)
		kill(t, serve)
		if r := c.wait(); r.code != 0 || strings.Count(r.stdout, "\n") != 8 {
			t.Fatalf("serve killed after %d ms: %v", delay, r)
		}
	}
}

// The same while files are copied and the nodes have taken some of them: margay run sends the files
// again. So it does when a node kernel is killed instead.
func TestKilledWhileFilesAreCopied(t *testing.T) {
	m := use(t, "hosted")
	_, serve := m.status()
	for name, victim := range map[string]int{"serve": serve, "node kernel": m.nodeKernels()[1]} {
		c := m.halfSent("-n", "8")
		kill(t, victim)
		c.signal(unix.SIGCONT)
		if r := c.wait(); r.code != 0 || strings.Count(r.stdout, "\n") != 8 || !strings.Contains(r.stderr, "starting it again") {
			t.Errorf("%s killed: %v", name, r)
		}
	}
	m.usable()
}

// halfSent starts a job with a large file, and stops margay run while it sends the file.
func (m *machine) halfSent(flags ...string) *command {
	m.t.Helper()
	large := filepath.Join(m.t.TempDir(), "large")
	starting := func() bool { return strings.Contains(m.margay("ps").stdout, "starting") }
	content := make([]byte, 48<<20)
	for range 20 {
		rand.Read(content) // the copy takes a while: the file is incompressible, and no node has it
		if err := os.WriteFile(large, content, 0o600); err != nil {
			m.t.Fatal(err)
		}
		c := m.start(slices.Concat([]string{"run"}, flags, []string{"--with", large, probe(), "hello"})...)
		eventually(m.t, "job that starts", func() bool { return starting() || c.ended() }, c.stderr.String)
		_ = c.cmd.Process.Signal(unix.SIGSTOP) // unless it has ended
		eventually(m.t, "stop of margay run", func() bool { stopped, _ := halted([]int{c.cmd.Process.Pid}); return stopped || c.ended() }, c.stderr.String)
		if !c.ended() && hasOpen(m.t, c.cmd.Process.Pid, large) {
			return c
		}
		_ = c.cmd.Process.Signal(unix.SIGCONT) // all had been sent
		c.wait()
	}
	m.t.Fatal("margay run has always sent the file before it is stopped")
	return nil
}

// hasOpen reports whether a process has a file open.
func hasOpen(t testing.TB, pid int, path string) bool {
	t.Helper()
	want, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(open, func(fd string) bool {
		info, err := os.Stat(fd)
		return err == nil && os.SameFile(info, want)
	})
}

// A launch that loses a node continues without it, and reports this. Without a retry the job fails.
func TestNodeLostAtLaunch(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 3, 1)
	for _, flag := range []string{"--no-retry", "--label"} {
		m.awaitUp()
		c := m.halfSent("-n", "2", flag)
		kill(t, pids(t, m.file("nodes", "node1.json"))[0])
		c.signal(unix.SIGCONT)
		switch r := c.wait(); {
		case flag == "--no-retry":
			if r.code != 125 || !strings.Contains(r.stderr, "node1: its PID 1 ended") || r.stdout != "" {
				t.Errorf("with --no-retry: %v", r)
			}
		case r.code != 0 || strings.Count(r.stdout, "\n") != 2 || !strings.Contains(r.stderr, "node1: its PID 1 ended") || !strings.Contains(r.stderr, "starting it again"):
			t.Error(r)
		}
	}
	m.usable()
}

func TestServeKilledAndDetachedJob(t *testing.T) {
	m := use(t, "hosted")
	job := strings.TrimSpace(m.run(0, "--detach", "-n", "4", probe(), "count", "40", "30").stdout)
	for range 2 {
		_, serve := m.status()
		kill(t, serve)
		time.Sleep(400 * time.Millisecond)
	}
	logs := m.margay("logs", job)
	if strings.Count(logs.stdout, "out ") != 160 || strings.Count(logs.stderr, "err ") != 160 {
		t.Errorf("%d and %d lines: %v", strings.Count(logs.stdout, "out "), strings.Count(logs.stderr, "err "), logs)
	}
}

func TestRunKilled(t *testing.T) {
	m := use(t, "hosted")
	c := m.start("run", "-n", m.all(), probe(), "sleep", "3600", "stubborn")
	c.awaitRanks("sleeping", m.nodes*m.cores)
	kill(t, c.cmd.Process.Pid)
	m.awaitIdle()
	m.usable()
}

// awaitIdle waits until no job is left and every core is free.
func (m *machine) awaitIdle() {
	m.t.Helper()
	eventually(m.t, "free machine", func() bool {
		for _, n := range m.listNodes() {
			for _, c := range n.Cores {
				if c.Job != 0 {
					return false
				}
			}
		}
		return strings.Count(m.margay("ps").stdout, "\n") == 1
	}, func() string { return m.margay("ps").String() })
}

func TestTerminalClosed(t *testing.T) {
	m := use(t, "hosted")
	master, slave := terminal(t)
	c := start(t, func(c *exec.Cmd) {
		c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}, "-m", m.name, "run", "-n", "8", probe(), "sleep", "3600", "stubborn")
	slave.Close()
	lines := bufio.NewScanner(master)
	seen := 0
	for seen < 8 && lines.Scan() {
		if strings.Contains(lines.Text(), "sleeping") {
			seen++
		}
	}
	if seen != 8 {
		t.Fatalf("%d of 8 ranks speak: %v", seen, c.wait())
	}
	master.Close()
	c.wait()
	m.awaitIdle()
}

// terminal makes a pseudo terminal.
func terminal(t testing.TB) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	return master, slave
}

func TestOrphansEndWithTheJob(t *testing.T) {
	m := use(t, "hosted")
	m.run(0, "-n", "8", probe(), "orphan")
	var left []int
	eventually(t, "end of what ranks have left behind", func() bool {
		left = pids(t, "/proc/self/exe sleep 3600 orphan")
		return len(left) == 0
	}, func() string { return fmt.Sprintf("processes %v are left", left) })
}

func TestRankNeverJoins(t *testing.T) {
	m := use(t, "hosted")
	r := m.run(125, "-n", "4", "--init-timeout", "10s", probe(), "barrier", "3")
	if !strings.Contains(r.stderr, "rank 3 on node1 has not joined the job's messages within 10s") {
		t.Error(r)
	}
	if r := m.run(0, "-n", "8", probe(), "barrier"); strings.Count(r.stdout, "passed 10 barriers") != 8 {
		t.Error(r)
	}
}

func TestRankLeavesOthersInABarrier(t *testing.T) {
	m := use(t, "hosted")
	for _, rank := range []string{"4", "5"} { // the leader of its node, and another rank
		r := m.run(125, "-n", "6", probe(), "leave", rank)
		if !strings.Contains(r.stderr, "rank "+rank+" on node2 has ended, but rank ") {
			t.Error(r)
		}
	}
}
