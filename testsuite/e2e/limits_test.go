package e2e

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Control groups enforce the following limits, so they are tested where nodes have control groups.
// A second job runs all the time.

// beside starts a job of one rank that other jobs must not harm, and returns a check that it is
// unharmed.
func beside(t *testing.T, m *machine) (unharmed func()) {
	t.Helper()
	boots := make(map[int]int) // a node may have needed a second one to come up
	for _, n := range m.listNodes() {
		boots[n.Node] = n.Boots
	}
	c := m.start("run", probe(), "count", "1000000", "200")
	c.awaitOutput("out 0 3\n")
	ended := false
	t.Cleanup(func() {
		if !ended { // or later tests would lack its core
			c.signal(15)
			c.wait()
		}
	})
	return func() {
		t.Helper()
		lines := strings.Count(c.stdout.String(), "\n")
		eventually(t, "sign of life of the other job", func() bool {
			return strings.Count(c.stdout.String(), "\n") > lines
		}, func() string { return c.stderr.String() })
		for _, n := range m.listNodes() {
			if n.Health != "up" || n.Boots != boots[n.Node] {
				t.Errorf("node%d is %s after %d boots, %d before", n.Node, n.Health, n.Boots, boots[n.Node])
			}
		}
		ended = true
		c.signal(15)
		if r := c.wait(); r.code != 143 {
			t.Errorf("the other job: %v", r)
		}
		m.usable()
	}
}

func TestJobEatsMemory(t *testing.T) {
	m := use(t, "qemu")
	unharmed := beside(t, m)
	r := m.run(137, "-n", strconv.Itoa(m.nodes*m.cores-1), "--memory", "64", probe(), "eat", "2")
	if !strings.Contains(r.stderr, " on node1 was killed by SIGKILL: out of memory (the job's limit on this node is 64 MiB)") {
		t.Error(r)
	}
	unharmed()
}

// The memory of a job without a limit of its own is less than its node can give: a job that uses
// all of it reaches the job's limit before Linux runs out of pages for the node itself.
func TestJobEatsAllMemory(t *testing.T) {
	m := use(t, "qemu")
	r := m.run(137, "-n", strconv.Itoa(m.cores), probe(), "eat")
	if !strings.Contains(r.stderr, " on node0 was killed by SIGKILL: out of memory (the job's limit on this node is ") {
		t.Error(r)
	}
	if text := m.awaitConsole("] Memory cgroup out of memory: "); strings.Contains(text, "] Out of memory: ") {
		t.Errorf("the node's Linux says:\n%s", text)
	}
	m.usable()
}

// A rank has its memory limit from its first instruction on, and so have all processes that it
// starts.
func TestChildrenAreLimited(t *testing.T) {
	m := use(t, "hosted")
	const ranks, children = 64, 3
	r := m.run(0, "-n", strconv.Itoa(ranks), "--ppn", strconv.Itoa(ranks/m.nodes), "--memory", "512", "sh", "-c",
		"(ulimit -d) & (ulimit -H -s) & (ulimit -d) & wait")
	const limit = "32768\n" // KiB
	if n := strings.Count(r.stdout, limit); n != ranks*children || len(r.stdout) != n*len(limit) {
		t.Errorf("%d of %d children have their limit, others have none: %v", n, ranks*children, r)
	}
}

func TestJobForks(t *testing.T) {
	m := use(t, "qemu")
	unharmed := beside(t, m)
	r := m.run(0, "-n", "2", "--pids", "60", probe(), "fork")
	for rank := range 2 {
		if !strings.Contains(r.stdout, fmt.Sprintf("rank %d started ", rank)) || !strings.Contains(r.stdout, "resource temporarily unavailable") {
			t.Error(r)
		}
	}
	unharmed()
}

func TestJobKillsAll(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		unharmed := beside(t, m)
		r := m.run(0, "-n", "1", probe(), "kill")
		if r.stdout != "rank 0 has killed what it could\n" {
			t.Error(r)
		}
		unharmed()
	})
}

func TestJobFillsRAMDisk(t *testing.T) {
	m := use(t, "qemu")
	unharmed := beside(t, m)
	r := m.run(0, "-n", "1", "--memory", "64", probe(), "fill")
	if !strings.Contains(r.stdout, "no space left on device") {
		t.Error(r)
	}
	unharmed()
}

// An input that is larger than the memory of the job's nodes is refused before it is sent.
func TestInputTooLarge(t *testing.T) {
	m := use(t, "qemu")
	big := filepath.Join(scratch, "big")
	f, err := os.Create(big)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(big)
	defer f.Close()
	if err := f.Truncate(4 << 30); err != nil {
		t.Fatal(err)
	}
	r := m.run(125, "-n", "3", "--with", big, probe(), "read", big)
	if !regexp.MustCompile(`margay: node\d: .* not enough memory: the files need (409[6-9]|41\d\d) MiB`).MatchString(r.stderr) {
		t.Error(r)
	}
	m.usable()
}

// A job finds only its own objects on its node.
func TestJobIsAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		unharmed := beside(t, m)
		want := "sees 2 processes\n"
		if m.hosted() {
			want += "CAN leave its cores\n" // without control groups it could leave them, as margay nodes reports
		}
		if r := m.run(0, "-n", "1", probe(), "snoop"); r.stdout != want {
			t.Error(r)
		}
		r := m.run(0, "-n", "1", probe(), "island", "10.66.0.1:7117", "10.66.1.0:7118", "10.66.1.1:7118", "127.0.0.1:7118")
		if r.stdout != "" {
			t.Error(r)
		}
		unharmed()
	})
}

func TestAffinity(t *testing.T) {
	m := use(t, "qemu")
	r := m.run(0, "-n", m.all(), probe(), "affinity")
	for rank := range m.nodes * m.cores {
		if !strings.Contains(r.stdout, fmt.Sprintf("rank %d may use [%d]\n", rank, 1+rank%2)) {
			t.Error(r)
		}
	}
	r = m.run(0, "-n", "4", "--per-core", "3", probe(), "affinity")
	for rank := range 4 {
		if !strings.Contains(r.stdout, fmt.Sprintf("rank %d may use [%d]\n", rank, 1+rank/2)) {
			t.Error(r)
		}
	}
}

// A hosted machine keeps to the CPUs that it was started on.
func TestAffinityOfHosted(t *testing.T) {
	ownMachine(t, "own")
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		t.Fatal(err)
	}
	last := runtime.NumCPU() - 1
	m := upAs(t, func(c *exec.Cmd) {
		c.Path, c.Args = taskset, slices.Concat([]string{taskset, "-c", strconv.Itoa(last), c.Path}, c.Args[1:])
	}, "hosted", 2, 2)
	r := m.run(0, "-n", "4", probe(), "affinity")
	for rank := range 4 {
		if !strings.Contains(r.stdout, fmt.Sprintf("rank %d may use [%d]\n", rank, last)) {
			t.Error(r)
		}
	}
}

// No page that a rank touches has to come from a disk. The rank's allocations are in huge pages if
// these were requested and Linux lets the node give them.
func TestPages(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		const mib = 16
		if r := m.run(0, "-n", "2", probe(), "touch", fmt.Sprint(mib)); !m.hosted() && strings.Count(r.stdout, " has 0 KiB") != 2 {
			t.Error(r)
		}
		r := m.margay("run", "-n", "2", "-v", "--huge-pages", probe(), "touch", fmt.Sprint(mib))
		if nodes := m.margay("nodes"); strings.Contains(nodes.stdout, "huge pages on request") {
			if !m.hosted() || r.code != 125 || !strings.Contains(r.stderr, "huge pages: this node cannot do that: ") {
				t.Error(r)
			}
			r = m.run(0, "-n", "2", "-v", probe(), "touch", fmt.Sprint(mib))
		} else {
			var rank, huge int
			if n, err := fmt.Sscanf(r.stdout, "rank %d has %d KiB", &rank, &huge); n != 2 || huge < (mib-4)<<10 {
				t.Errorf("%v: %v", err, r)
			}
		}
		if strings.Count(r.stderr, " exited with status 0: ") != 2 || strings.Count(r.stderr, " 0 major and ") != 2 {
			t.Error(r)
		}
		jobs := strings.Split(strings.TrimSpace(m.margay("ps", "-a").stdout), "\n")
		ps := m.margay("ps", "--json", strings.Fields(jobs[len(jobs)-1])[0])
		if strings.Count(ps.stdout, `"major_faults": 0,`) != 2 || strings.Contains(ps.stdout, `"minor_faults": 0,`) {
			t.Error(ps)
		}
	})
}

// misbehaving compiles one of the extensions that do forbidden things.
func misbehaving(t testing.TB, do int) string {
	t.Helper()
	return extension(t, "misbehave", fmt.Sprint(do))
}

// extension compiles an extension of testdata with DO set.
func extension(t testing.TB, name, what string) string {
	t.Helper()
	object := filepath.Join(t.TempDir(), name+what+".o")
	cmd := exec.Command("clang-19", "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-I", "../../kernel/abi/slot", "-DDO="+what,
		"-c", "testdata/"+name+".c", "-o", object)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return object
}

// patched returns an object that differs from another in one instruction.
func patched(t *testing.T, object string, at int, instruction uint64) string {
	t.Helper()
	data, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	binary.LittleEndian.PutUint64(data[f.Section("message").Offset+8*uint64(at):], instruction)
	out := fmt.Sprintf("%s-%x", object, instruction)
	if err := os.WriteFile(out, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return out
}

// Extensions that cannot run are refused at insertion, with the instruction.
func TestExtensionsRefused(t *testing.T) {
	m := use(t, "hosted")
	good := misbehaving(t, 0)
	cases := map[string]struct{ object, says string }{
		"bad opcode":      {patched(t, good, 1, 0xff), "insn=1"},
		"jump outside":    {patched(t, good, 0, 0x7fff0005), "insn=0"},
		"unknown service": {misbehaving(t, 4), "service 4242"},
		"no object":       {probe(), "refused: "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := *m
			m.t = t
			r := m.run(0, "-n", "2", "--with", c.object, probe(), "insert", c.object)
			if strings.Count(r.stdout, "\n") != 2 || strings.Count(r.stdout, "refused: margay: insert extension: ") != 2 || !strings.Contains(r.stdout, c.says) {
				t.Error(r)
			}
		})
	}
	for _, good := range []string{good, object(t, "packet/firewall")} {
		if r := m.run(0, "-n", "2", "--with", good, probe(), "insert", good); strings.Count(r.stdout, "inserted as ") != 2 {
			t.Error(r)
		}
	}
}

// Extensions that fail while running are stopped, and the list shows how each failed. Messages are
// delivered regardless. After too many faults the extension is removed, and the list and the log
// state why.
func TestExtensionsStopped(t *testing.T) {
	cases := []struct {
		name string
		do   int
		says string
	}{
		{"write outside", 1, "addr=0x1000"},
		{"write behind the context", 2, "kind="},
		{"endless loop", 3, "kind=fuel"},
		{"no verdict", 5, "answer 99 is not a verdict of slot message"},
	}
	m := use(t, "hosted")
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := *m
			m.t = t
			object := misbehaving(t, c.do)
			r := m.run(0, "--with", object, probe(), "extension", object)
			// It is removed concurrently with the messages. Some more may pass before the rank
			// finds it gone.
			var sent, delivered int
			if _, err := fmt.Sscanf(r.stdout, "after %d messages the extension is gone; all %d were delivered;", &sent, &delivered); err != nil ||
				sent < 16 || delivered != sent {
				t.Error(r)
			}
			if list := m.margay("ext", "list"); strings.Count(list.stdout, "removed: ") < i+1 || !strings.Contains(list.stdout, c.says) {
				t.Error(list)
			}
			m.awaitConsole("removed: ")
		})
	}
	m.usable()
}

// An extension that runs all the time and uses all its fuel does not keep the node kernel from its
// heartbeat, nor from any other work.
func TestExtensionHog(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2, "--dead-after", "3s")
	object := misbehaving(t, 6)
	for seconds := 5; ; seconds *= 3 { // on a busy host the other job may take longer than that
		c := m.start("run", "-n", "2", "--with", object, probe(), "hog", object, fmt.Sprint(seconds))
		c.awaitRanks("hogging", 2)
		others := 0
		for m.run(0, "-n", "2", probe(), "hello"); !c.ended(); others++ {
			m.run(0, "-n", "2", probe(), "hello")
		}
		r := c.wait()
		// The first of the node's two extensions takes all messages.
		if r.code != 0 || strings.Count(r.stdout, " 0 faults\n") != 2 || strings.Count(r.stdout, " 0 instructions") != 1 || others == 0 && seconds > 40 {
			t.Fatalf("beside %d other jobs in %d s: %v", others, seconds, r)
		}
		if others > 0 {
			return
		}
		m.awaitIdle()
	}
}

// An extension calls another one, and prints the result.
func TestExtensionCallsExtension(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		caller, callee := extension(t, "caller", "0"), extension(t, "callee", "0")
		r := m.run(0, "--with", caller, "--with", callee, probe(), "compose", callee, caller)
		if r.stdout != "delivered\n" {
			t.Error(r)
		}
		log := m.margay("ext", "log", "--node", "0")
		printed := regexp.MustCompile(`\(caller\): prints: helper \d+ answered 0 and left 105\n`).FindString(log.stdout)
		if printed == "" {
			t.Fatal(log)
		}
		m.awaitConsole(printed)
	})
}
