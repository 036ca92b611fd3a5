package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
	c, complete := countJob(t, m, m.nodes*m.cores, 0, 200)
	for node := range m.nodes {
		if r := m.margay("machine", "restart", fmt.Sprint(node)); r.code != 0 {
			t.Fatal(r)
		}
	}
	m.awaitUp()
	c.signal(unix.SIGUSR1)
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
