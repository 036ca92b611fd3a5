package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/kernel/abi/wire"
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
	large := filepath.Join(t.TempDir(), "large")
	_, serve := m.status()
	for name, victim := range map[string]int{"serve": serve, "node kernel": m.nodeKernels()[1]} {
		writeLarge(t, large, byte(len(name)))
		c := m.start("run", "-n", "8", "--with", large, probe(), "hello")
		ps := func() string { return m.margay("ps").stdout }
		eventually(t, "job that starts", func() bool { return strings.Contains(ps(), "starting") }, ps)
		kill(t, victim)
		if r := c.wait(); r.code != 0 || strings.Count(r.stdout, "\n") != 8 || !strings.Contains(r.stderr, "starting it again") {
			t.Errorf("%s killed: %v", name, r)
		}
	}
	m.usable()
}

// writeLarge writes a file of 96 MiB whose copy to nodes takes a while: it is incompressible, and
// with a new seed no node has it.
func writeLarge(t *testing.T, path string, seed byte) {
	t.Helper()
	content := make([]byte, 96<<20)
	rand.NewChaCha8([32]byte{seed}).Read(content)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A launch that loses a node continues without it, and reports this. Without a retry the job fails.
func TestNodeLostAtLaunch(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 3, 1)
	large := filepath.Join(t.TempDir(), "large")
	starting := func() bool { return strings.Contains(m.margay("ps").stdout, "starting") }
	seed := byte(0)
	for _, flag := range []string{"--no-retry", "--label"} {
		m.awaitUp()
		var c *command
		for c == nil {
			seed++
			writeLarge(t, large, seed)
			c = m.start("run", "-n", "2", flag, "--with", large, probe(), "hello")
			eventually(t, "job that starts", func() bool { return starting() || c.ended() }, func() string { return c.stderr.String() })
			_ = c.cmd.Process.Signal(unix.SIGSTOP) // it stops sending, unless it has ended
			time.Sleep(200 * time.Millisecond)
			if c.ended() || !starting() { // all had been sent
				_ = c.cmd.Process.Signal(unix.SIGCONT)
				c.wait()
				c = nil
			}
		}
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

func TestNodeKernelKilled(t *testing.T) {
	m := use(t, "hosted")
	c, complete := countJob(t, m, 8, 60, 50)
	for range 2 {
		for _, pid := range m.nodeKernels() {
			kill(t, pid)
		}
		time.Sleep(700 * time.Millisecond)
	}
	complete(c.wait())
	m.usable()
}

// Killing node kernels while standard input and then its end are on the way makes ranks lose none
// of the input and get none twice.
func TestNodeKernelKilledWithInput(t *testing.T) {
	m := use(t, "hosted")
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	c := start(t, func(c *exec.Cmd) { c.Stdin = in }, "-m", m.name, "run", "-n", m.all(), "--stdin", "all", probe(), "stdin")
	in.Close()
	ps := func() string { return m.margay("ps").stdout }
	eventually(t, "job that runs", func() bool { return strings.Contains(ps(), "running") }, ps)
	if err := feed.SetWriteDeadline(time.Now().Add(commandTimeout)); err != nil {
		t.Fatal(err)
	}
	line := "a line of standard input\n"
	lines := 0
	for i := range 3 {
		victim := m.nodeKernels()[i%m.nodes]
		if n, err := feed.WriteString(strings.Repeat(line, 8000)); err != nil { // more than may be on the way
			t.Fatalf("%d bytes after %d lines: %v", n, lines, err)
		}
		if lines += 8000; i == 2 {
			feed.Close()
		}
		kill(t, victim)
	}
	want := fmt.Sprintf("read %d lines, %d bytes", lines, lines*len(line))
	if r := c.wait(); r.code != 0 || strings.Count(r.stdout, want) != m.nodes*m.cores {
		t.Errorf("want %q of each rank: %v", want, r)
	}
	m.usable()
}

// nodeKernels returns the pids of the machine's hosted node kernels. It waits for those that are
// starting: the delay before a restart grows with the number of kills.
func (m *machine) nodeKernels() (found []int) {
	m.t.Helper()
	holder, _ := m.status()
	eventually(m.t, "node kernel of each node", func() bool {
		found = nodeKernelsOf(m.t, holder)
		return len(found) == m.nodes
	}, func() string { return m.margay("nodes").String() })
	return found
}

// nodeKernelsOf returns the grandchildren of a holder that are called kernel.
func nodeKernelsOf(t testing.TB, holder int) (found []int) {
	t.Helper()
	for _, pid := range pids(t, "/proc/self/exe kernel") {
		if parent(parent(pid)) == holder {
			found = append(found, pid)
		}
	}
	return found
}

// parent returns the parent of a process.
func parent(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	var state string
	var ppid int
	fmt.Sscan(rest, &state, &ppid)
	return ppid
}

func TestNodeKernelRestartedInVM(t *testing.T) {
	m := use(t, "qemu")
	c, complete := countJob(t, m, m.nodes*m.cores, 80, 100)
	for node := range m.nodes {
		if r := m.margay("machine", "restart", fmt.Sprint(node)); r.code != 0 {
			t.Fatal(r)
		}
	}
	complete(c.wait())
	m.usable()
}

// A restarted node kernel continues with the messages where they were. If one was in flight, the
// job ends with that reason. In every other job messages are rarely in flight, so not all jobs can
// lose one.
func TestNodeKernelKilledUnderMessages(t *testing.T) {
	m := use(t, "hosted")
	m.killUnderMessages(func(often bool) (*command, func(result) bool) {
		rounds, pause := 5, 700
		if often {
			rounds, pause = 150, 5
		}
		c := m.start("run", "-n", "8", probe(), "pingpong", fmt.Sprint(rounds), fmt.Sprint(pause))
		c.awaitOutput("playing\n")
		return c, func(r result) bool {
			return r.code == 0 && strings.Contains(r.stdout, fmt.Sprintf("%d messages came back", 7*rounds))
		}
	})
}

// killUnderMessages starts jobs that send messages, often or seldom, and kills a node kernel of
// each. A job must either complete or end because it lost a message, and some jobs must complete.
func (m *machine) killUnderMessages(start func(often bool) (c *command, whole func(result) bool)) {
	m.t.Helper()
	whole, lost := 0, 0
	for try := range 6 {
		m.awaitUp()
		c, isWhole := start(try%2 == 0)
		time.Sleep(200 * time.Millisecond)
		kernels := m.nodeKernels()
		kill(m.t, kernels[try%len(kernels)])
		r := c.wait()
		switch {
		case isWhole(r):
			whole++
		case r.code == 125 && strings.Contains(r.stderr, "were lost when "):
			lost++
		default:
			m.t.Fatal(r)
		}
	}
	m.t.Logf("%d jobs continued, %d lost a message and were ended", whole, lost)
	if whole == 0 {
		m.t.Error("no job continued")
	}
	m.usable()
}

// Messages between ranks of one node bypass the node kernel: none is lost when the node kernel is
// killed, however often. When one of the ranks is killed, the other, which waits for it, ends with
// it.
func TestKilledBetweenNeighbours(t *testing.T) {
	m := use(t, "hosted")
	m.killNodeKernels()
	const rounds = 3000
	c := m.start("run", "-n", "2", "-N", "1", probe(), "pingpong", fmt.Sprint(rounds), "2")
	c.awaitOutput("playing\n")
	time.Sleep(200 * time.Millisecond)
	for range 3 {
		m.killNodeKernels()
	}
	if r := c.wait(); r.code != 0 || !strings.Contains(r.stdout, fmt.Sprintf("%d messages came back", rounds)) {
		t.Error(r)
	}
	c = m.start("run", "-n", "2", "-N", "1", probe(), "pingpong", "1000000", "1")
	c.awaitOutput("playing\n")
	kill(t, m.ranks("pingpong")[0])
	if r := c.wait(); r.code != 137 || !strings.Contains(r.stderr, "was killed by SIGKILL") {
		t.Error(r)
	}
	m.usable()
}

// killNodeKernels kills all node kernels and waits until the nodes are up again. Once a scheduler
// was inserted in a node kernel, the kernel sees all messages from then on; its successor does not.
func (m *machine) killNodeKernels() {
	m.t.Helper()
	for _, kernel := range m.nodeKernels() {
		kill(m.t, kernel)
	}
	m.nodeKernels()
	m.awaitUp()
}

// ranks returns the pids of the ranks on the machine's hosted nodes that run the probe in a mode,
// by rank.
func (m *machine) ranks(mode string) (found []int) {
	m.t.Helper()
	below := m.processes()
	by := make(map[int]int)
	for _, pid := range pids(m.t, probe()+" "+mode) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		_, rest, ok := strings.Cut("\x00"+string(environment), "\x00MARGAY_RANK=")
		number, _, _ := strings.Cut(rest, "\x00")
		rank, err := strconv.Atoi(number)
		if string(name) == "probe\n" && ok && err == nil && slices.Contains(below, pid) {
			by[rank] = pid
		}
	}
	for rank := range len(by) {
		found = append(found, by[rank])
	}
	return found
}

// Ranks of several nodes meet in barriers without their node kernels: killing these holds up no
// barrier and loses none. When a rank is killed, whether or not it is the leader of its node, the
// ranks that wait for it end with it.
func TestKilledWhileRanksMeet(t *testing.T) {
	m := use(t, "hosted")
	m.killNodeKernels()
	const meetings = 600
	c := m.start("run", "-n", "8", "-N", "4", probe(), "meet", fmt.Sprint(meetings), "5")
	c.awaitOutput("meeting\n")
	for range 2 {
		m.killNodeKernels()
	}
	if r := c.wait(); r.code != 0 || strings.Count(r.stdout, fmt.Sprintf("has met %d times", meetings)) != 8 {
		t.Error(r)
	}
	for _, victim := range []int{2, 5} {
		c := m.start("run", "-n", "8", "-N", "4", probe(), "meet", "1000000", "1")
		c.awaitOutput("meeting\n")
		ranks := m.ranks("meet")
		if len(ranks) != 8 {
			t.Fatalf("the ranks are %v", ranks)
		}
		kill(t, ranks[victim])
		if r := c.wait(); r.code != 137 || !strings.Contains(r.stderr, "was killed by SIGKILL") {
			t.Error(r)
		}
	}
	m.usable()
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

// A node that is stopped for a while is late, and loses nothing.
func TestVMStoppedForAWhile(t *testing.T) {
	m := use(t, "qemu")
	c, complete := countJob(t, m, m.nodes*m.cores, 60, 100)
	vms := pids(t, "guest="+m.name+"-node1,")
	if len(vms) != 1 {
		t.Fatalf("processes of node1: %v", vms)
	}
	if err := unix.Kill(vms[0], unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(vms[0], unix.SIGCONT)
	stopped := time.Now()
	m.awaitHealth(1, "late")
	time.Sleep(5*time.Second - time.Since(stopped))
	if err := unix.Kill(vms[0], unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.awaitHealth(1, "up")
	complete(c.wait())
}

// A node that is silent for too long is given up with its jobs. It is taken back when it sends
// again.
func TestVMStoppedForGood(t *testing.T) {
	m := use(t, "mortal")
	c := m.start("run", "-n", m.all(), probe(), "sleep")
	c.awaitRanks("sleeping", m.nodes*m.cores)
	vms := pids(t, "guest="+m.name+"-node1,")
	if err := unix.Kill(vms[0], unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r := c.wait()
	if r.code != 125 || !strings.Contains(r.stderr, "node1: it has been silent for 10s") {
		t.Error(r)
	}
	m.run(0, "-n", "1", probe(), "hello")
	if err := unix.Kill(vms[0], unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.awaitHealth(1, "up")
	m.usable()
}

// The end of a virtual machine ends its node and the jobs on it at once. The other jobs continue.
// The node is started once more.
func TestVMKilled(t *testing.T) {
	m := use(t, "mortal")
	other := m.start("run", "-n", "1", probe(), "count", "60", "100")
	other.awaitOutput("out 0 3\n")
	c := m.start("run", "-n", "2", "--ppn", "1", probe(), "sleep")
	c.awaitRanks("sleeping", 2)
	vms := pids(t, "guest="+m.name+"-node1,")
	if len(vms) != 1 {
		t.Fatalf("processes of node1: %v", vms)
	}
	kill(t, vms[0])
	if r := c.wait(); r.code != 125 || !strings.Contains(r.stderr, "node1: ") || !strings.Contains(r.stderr, "signal 9") || !strings.Contains(r.stderr, "it is started once more") {
		t.Error(r)
	}
	m.run(0, "-n", "1", probe(), "hello")
	if r := other.wait(); r.code != 0 || strings.Count(r.stdout, "\n") != 60 {
		t.Errorf("the job on another node: %v", r)
	}
	m.usable()
	if n := m.awaitHealth(1, "up"); n.Boots != 2 {
		t.Errorf("then node1 is %+v", n)
	}
	// It has the machine's extensions again.
	list := func() string { return m.margay("ext", "list", "--node", "1").stdout }
	eventually(t, "machine's extensions", func() bool {
		return regexp.MustCompile(`machine +boot +minimum +\S+ +1 `).MatchString(list()) && regexp.MustCompile(`machine +exit +account +\S+ +[1-9]`).MatchString(list())
	}, list)
}

// A node that ends is restarted a few times, with a new root, RAM disk and connections to other
// nodes. Then it stays dead until it is restarted by an order. An order for a node with a job needs
// force, and ends the job. A node that is switched off is not restarted at all.
func TestReboot(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 1)
	for boots := 2; ; boots++ {
		nodes := pids(t, m.file("nodes", "node1.json"))
		if len(nodes) != 1 {
			t.Fatalf("processes of node1: %v", nodes)
		}
		kill(t, nodes[0])
		if boots > 4 {
			break
		}
		var n nodeState
		eventually(t, fmt.Sprintf("boot %d of node1", boots), func() bool {
			n = m.listNodes()[1]
			return n.Health == "up" && n.Boots == boots
		}, func() string { return fmt.Sprintf("%+v", n) })
		m.usable()
	}
	if n := m.awaitHealth(1, "dead"); !strings.Contains(n.Reason, "it has ended 4 times within 10m0s") {
		t.Errorf("node1 %+v", n)
	}
	if r := m.margay("node", "reboot", "node1"); r.code != 0 {
		t.Fatal(r)
	}
	m.usable()
	c := m.start("run", "-n", "1", "-w", "node1", probe(), "sleep")
	c.awaitRanks("sleeping", 1)
	if r := m.margay("node", "reboot", "1"); r.code != 125 || !strings.Contains(r.stderr, "drain it and wait, or end them with --force") {
		t.Error(r)
	}
	if r := m.margay("node", "reboot", "1", "--force"); r.code != 0 {
		t.Error(r)
	}
	if r := c.wait(); r.code != 125 || !strings.Contains(r.stderr, "ended by order of ") {
		t.Error(r)
	}
	m.usable()

	// A node that is switched off stays off when serve is killed, until it is switched on.
	if r := m.margay("node", "power", "off", "1"); r.code != 0 || len(pids(t, m.file("nodes", "node1.json"))) > 0 {
		t.Errorf("%v, and processes %v of node1", r, pids(t, m.file("nodes", "node1.json")))
	}
	_, serve := m.status()
	kill(t, serve)
	if n := m.awaitHealth(1, "off"); !strings.HasPrefix(n.Reason, "switched off by ") {
		t.Errorf("node1 %+v", n)
	}
	if r := m.margay("node", "power", "on", "1"); r.code != 0 {
		t.Error(r)
	}
	m.usable()
}

// The error names a node that boots and never registers, and shows its console. Nothing is left of
// the machine.
func TestNodeNeverRegisters(t *testing.T) {
	ownMachine(t, "own")
	program := filepath.Join(scratch, "hang")
	writeProgram(t, program, []byte("#!/bin/sh\necho I have lost my way >&2\nexec sleep 1000\n"))
	m := &machine{t: t, name: "never", nodes: 2, cores: 1}
	r := m.up("hosted", "--node-program", program, "--boot-timeout", "2s")
	if r.code != 125 || !strings.Contains(r.stderr, "did not register within 2s") || !strings.Contains(r.stderr, "I have lost my way") {
		t.Error(r)
	}
	m.gone()
}

// gone requires that nothing is left of a machine.
func (m *machine) gone() {
	m.t.Helper()
	if _, err := os.Stat(m.file()); !os.IsNotExist(err) {
		m.t.Errorf("%s is left (%v)", m.file(), err)
	}
	for _, part := range []string{"holder " + m.name, "serve -m " + m.name + " ", "guest=" + m.name + "-", m.file("nodes")} {
		if left := pids(m.t, part); len(left) > 0 {
			m.t.Errorf("processes %v (%s) are left", left, part)
		}
	}
}

func TestOldNodeImage(t *testing.T) {
	ownMachine(t, "own")
	m := &machine{t: t, name: "old", nodes: 1, cores: 1}
	r := m.up("hosted", "--node-program", filepath.Join(scratch, "oldnode"))
	want := fmt.Sprintf("node0 was refused: the image of node0 (margay old) speaks version %d of the control protocol", control.Version+41)
	if r.code != 125 || !strings.Contains(r.stderr, want) {
		t.Error(r)
	}
	m.gone()
}

func TestOldLibrary(t *testing.T) {
	m := use(t, "hosted")
	r := m.run(3, filepath.Join(scratch, "oldlib"))
	want := fmt.Sprintf("the library speaks version %d of the application interface, this node kernel version %d", wire.Version+41, wire.Version)
	if !strings.Contains(r.stdout, want) {
		t.Error(r)
	}
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

func TestMachineTwice(t *testing.T) {
	m := use(t, "hosted")
	r := (&machine{t: t, name: m.name, nodes: 1, cores: 1}).up("hosted")
	if r.code != 125 || !strings.Contains(r.stderr, "machine "+m.name+": the machine is up: process ") {
		t.Error(r)
	}
	m.usable()
}

// Nothing survives the holder. The next machine of that name recognises and removes the files that
// it leaves on disk.
func TestHolderKilled(t *testing.T) {
	onOwn(t, func(t *testing.T, substrate string) {
		m := up(t, substrate, 1, 2)
		c := m.start("run", "-n", "2", probe(), "sleep")
		c.awaitRanks("sleeping", 2)
		holder, serve := m.status()
		kill(t, holder)
		r := c.wait()
		if r.code != 125 || !strings.Contains(r.stderr, "holder is gone") {
			t.Error(r)
		}
		eventually(t, "end of everything", func() bool {
			return len(pids(t, "guest="+m.name+"-")) == 0 && len(pids(t, m.file("nodes"))) == 0 && unix.Kill(serve, 0) == unix.ESRCH
		}, func() string {
			return fmt.Sprint(pids(t, "guest="+m.name+"-"), pids(t, m.file("nodes")), unix.Kill(serve, 0))
		})
		if r := m.margay("machine", "status"); r.code != 125 || !strings.Contains(r.stderr, "is dead: its holder") {
			t.Error(r)
		}
		if r := m.margay("run", probe(), "hello"); r.code != 125 {
			t.Error(r)
		}
		if r := m.up("hosted"); r.code != 0 || !strings.Contains(r.stderr, "removing the remains of an earlier machine") {
			t.Error(r)
		}
		m.usable()
	})
}

func TestDownEndsEverything(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2)
	c := m.start("run", "-n", "4", probe(), "sleep")
	c.awaitRanks("sleeping", 4)
	r := m.margay("machine", "down", "-v")
	if said := "margay: machine " + m.name + " is ended; "; r.code != 0 || !strings.Contains(r.stderr, said) {
		t.Errorf("%v, want %q", r, said)
	}
	if r := c.wait(); r.code != 125 || !strings.Contains(r.stderr, "the machine goes down") {
		t.Error(r)
	}
	m.gone()
	if r := m.margay("machine", "down"); r.code != 125 || !strings.Contains(r.stderr, "there is no such machine") {
		t.Error(r)
	}
}

// Commands that watch or use a machine when it goes down end with it, print a message for people,
// and do not look for another serve.
func TestDownEndsCommands(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2)
	job := strings.TrimSpace(m.run(0, "--detach", probe(), "sleep").stdout)
	alone, beside := filepath.Join(t.TempDir(), "trace.json"), filepath.Join(t.TempDir(), "trace.json")
	commands := map[string]*command{
		"run":           m.start("run", probe(), "sleep"),
		"record of run": m.start("record", "-o", beside, "--", filepath.Join(bin, "margay"), "run", probe(), "sleep"),
		"logs":          m.start("logs", job),
		"console":       m.start("machine", "console", "0", "--follow"),
		"record":        m.start("record", "-o", alone),
		"top":           m.start("top", "--interval", "100ms"),
		"long top":      m.start("top", "--once", "--interval", "1h"),
		"ext log":       m.start("ext", "log", "--follow"),
		"ext stats":     m.start("ext", "stats", "--interval", "1h"),
		"noise":         m.start("nodes", "--noise=1m"),
	}
	for _, name := range []string{"run", "record of run", "logs"} {
		commands[name].awaitOutput("sleeping 0\n")
	}
	commands["console"].awaitOutput("\n")
	commands["top"].awaitOutput("machine " + m.name)
	eventually(t, "trace", func() bool { parts, _ := filepath.Glob(alone + ".*.part"); return len(parts) == 1 }, commands["record"].stderr.String)
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
	ends := regexp.MustCompile(`(^|\n)margay: (the machine goes down|the machine is gone|machine ` + m.name + `: there is no such machine|machine ` + m.name + ` has no holder)[^\n]*\n$`)
	wrong := regexp.MustCompile(`looking for it|asking again|does not answer|is lost|spoilt|\*control`)
	for name, c := range commands {
		if r := c.wait(); r.code != 125 || !ends.MatchString(r.stderr) || wrong.MatchString(r.stderr) {
			t.Errorf("%s: %v", name, r)
		}
	}
	for _, file := range []string{alone, beside} {
		if text, err := os.ReadFile(file); err != nil || !json.Valid(text) {
			t.Errorf("%s: %d bytes, %v", file, len(text), err)
		}
	}
}

// Two concurrent jobs, and many sequential ones, leave nothing behind.
func TestManyJobs(t *testing.T) {
	m := use(t, "hosted")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				if r := m.margay("run", "-n", "2", probe(), "hello"); r.code != 0 {
					t.Error(r)
				}
			}
		})
	}
	all.Wait()
	m.awaitIdle()
}

// When two commands make a machine of the same name at once, one of them gets it.
func TestMachineTwiceAtOnce(t *testing.T) {
	ownMachine(t, "own")
	m := &machine{t: t, name: "twice", nodes: 2, cores: 1}
	var all sync.WaitGroup
	results := make([]result, 4)
	for i := range results {
		all.Go(func() { results[i] = m.up("hosted") })
	}
	all.Wait()
	made := 0
	for _, r := range results {
		switch {
		case r.code == 0:
			made++
		case !strings.Contains(r.stderr, "another margay machine up is making it") && !strings.Contains(r.stderr, "the machine is up: process"):
			t.Error(r)
		}
	}
	if made != 1 {
		t.Errorf("%d of %d have made the machine", made, len(results))
	}
	m.usable()
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
	m.gone()
}
