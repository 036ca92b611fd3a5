package e2e

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A program finds the same surroundings on the nodes as here.
func TestSurroundings(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		dir := filepath.Join(scratch, "work dir")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		r := start(t, func(c *exec.Cmd) {
			c.Dir = dir
			c.Env = append(os.Environ(), "PROBE_ENV=some thing", "MARGAY_RANK=77")
		}, "-m", m.name, "run", "-n", m.all(), probe(), "hello", "a b", "").wait()
		if r.code != 0 {
			t.Fatal(r)
		}
		umask := unix.Umask(0)
		unix.Umask(umask)
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		slices.Sort(lines)
		for rank, line := range lines {
			prefix := fmt.Sprintf("rank %d of %s on node%d uid ", rank, m.all(), rank/m.cores)
			suffix := fmt.Sprintf(" dir %s umask %03o env some thing args [\"a b\" \"\"]", dir, umask)
			if !strings.HasPrefix(line, prefix) || !strings.HasSuffix(line, suffix) || strings.Contains(line, "uid 0 ") {
				t.Errorf("rank %d says %q", rank, line)
			}
		}
		if len(lines) != m.nodes*m.cores {
			t.Errorf("%d lines: %v", len(lines), r)
		}
	})
}

func TestExitStatus(t *testing.T) {
	m := use(t, "hosted")
	r := m.run(7, "-n", "3", probe(), "exit", "7", "1")
	if !strings.Contains(r.stderr, "rank 1 on node0 exited with status 7") {
		t.Error(r)
	}
	if r := m.run(0, "-n", "2", probe(), "exit", "0"); r.stderr != "" {
		t.Error(r)
	}
	c := m.start("run", "-n", "2", probe(), "sleep")
	c.awaitRanks("sleeping", 2)
	if r := m.margay("kill", "-s", "KILL", "--rank", "1", m.onlyJob()); r.code != 0 {
		t.Error(r)
	}
	if r := c.wait(); r.code != 137 || !strings.Contains(r.stderr, "rank 1 on node0 was killed by SIGKILL") {
		t.Error(r)
	}
}

// onlyJob returns the number of the one job that runs.
func (m *machine) onlyJob() string {
	m.t.Helper()
	jobs := m.jobs()
	if len(jobs) != 1 {
		m.t.Fatalf("one job should run, not %q", jobs)
	}
	return jobs[0]
}

// jobs returns the jobs that run. Those that the nodes have only to forget are listed longer.
func (m *machine) jobs() (jobs []string) {
	m.t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(m.margay("ps").stdout), "\n") {
		if i > 0 && !strings.Contains(line, "  ended (") {
			jobs = append(jobs, strings.Fields(line)[0])
		}
	}
	return jobs
}

func TestKeepGoing(t *testing.T) {
	m := use(t, "hosted")
	c := m.start("run", "-n", "2", "--keep-going", probe(), "exit", "3", "0")
	eventually(t, "job", func() bool { return len(m.jobs()) == 1 }, func() string { return m.margay("ps").stdout })
	eventually(t, "end of rank 0", func() bool {
		return strings.Contains(m.margay("ps", m.onlyJob()).stdout, "exited with status 3")
	}, func() string { return m.margay("ps", m.onlyJob()).stdout })
	time.Sleep(300 * time.Millisecond)
	if c.ended() {
		t.Fatalf("rank 1 was ended: %v", c.wait())
	}
	m.margay("kill", m.onlyJob())
	if r := c.wait(); r.code != 3 {
		t.Error(r)
	}
}

func TestRefusals(t *testing.T) {
	m := use(t, "hosted")
	notExecutable := filepath.Join(scratch, "text")
	if err := os.WriteFile(notExecutable, []byte("text\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	noProgram := filepath.Join(scratch, "noprogram")
	if err := os.WriteFile(noProgram, []byte("text\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	arm := filepath.Join(scratch, "arm")
	program, err := os.ReadFile(filepath.Join(bin, "hello-c"))
	if err != nil {
		t.Fatal(err)
	}
	const machine = 18 // the offset of e_machine in an ELF file
	binary.LittleEndian.PutUint16(program[machine:], uint16(elf.EM_AARCH64))
	if err := os.WriteFile(arm, program, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		code int
		says string
		args []string
	}{
		{"too many ranks", 125, "9 ranks need 9 application cores, but 8 of 8 are free", []string{"-n", "9", probe(), "hello"}},
		{"no ranks", 125, "-n 0: it must be more than 0", []string{"-n", "0", probe(), "hello"}},
		{"missing program", 127, "command not found", []string{"./nothing"}},
		{"not executable", 126, "permission denied", []string{notExecutable}},
		{"no program", 126, "neither an ELF file nor a script", []string{noProgram}},
		{"folder", 126, "it is a folder", []string{scratch}},
		{"other architecture", 126, "is for arm64, but the nodes of machine " + m.name + " are amd64", []string{arm}},
		{"missing file", 125, "/nothing along: stat ", []string{"--with", "nothing", probe(), "hello"}},
		{"node's own file", 125, "/proc on a node is the node's own", []string{"--with", "/proc/cpuinfo", probe(), "hello"}},
		{"too much memory", 125, "node0", []string{"--memory", "100000", probe(), "hello"}},
		{"unknown mode", 125, "it is first, all or none", []string{"--stdin", "some", probe(), "hello"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := *m
			m.t = t
			r := m.run(c.code, c.args...)
			if !strings.Contains(r.stderr, c.says) {
				t.Errorf("it does not say %q: %v", c.says, r)
			}
		})
	}
	m.usable()
}

func TestNoSuchMachine(t *testing.T) {
	r := start(t, nil, "-m", "nobody", "run", probe(), "hello").wait()
	want := "there is no such machine in " + os.Getenv("MARGAY_DIR") + "; margay machine up -m nobody makes one"
	if r.code != 125 || !strings.Contains(r.stderr, want) {
		t.Error(r)
	}
}

func TestDynamicProgramAndScript(t *testing.T) {
	m := use(t, "hosted")
	if r := m.run(0, "-n", "4", "env", "--version"); strings.Count(r.stdout, "env (GNU coreutils)") != 4 {
		t.Error(r)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho script $1 in rank $MARGAY_RANK\nexit 4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := m.run(4, "-n", "2", "--keep-going", script, "x"); strings.Count(r.stdout, "script x in rank ") != 2 {
		t.Error(r)
	}
}

func TestFilesGoAlong(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		big := bytes.Repeat([]byte("0123456789abcdef\n"), 1<<18) // 4 MiB and a bit
		for name, data := range map[string][]byte{"big": big, "sub/small": []byte("small\n"), "empty": nil} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r := m.run(0, "-n", m.all(), "--with", dir, probe(), "read", filepath.Join(dir, "big"))
		if strings.Count(r.stdout, fmt.Sprintf(": %d bytes, first line \"0123456789abcdef\"", len(big))) != m.nodes*m.cores {
			t.Error(r)
		}
		// A relative name means the same file there as here.
		r = start(t, func(c *exec.Cmd) { c.Dir = dir }, "-m", m.name, "run", "--with", "sub", probe(), "read", "sub/small").wait()
		if r.code != 0 || !strings.Contains(r.stdout, "6 bytes, first line \"small\"") {
			t.Error(r)
		}
	})
}

func TestOutputStreamsAndLabels(t *testing.T) {
	m := use(t, "hosted")
	const lines = 500
	r := m.run(0, "-n", "4", "--label", probe(), "count", fmt.Sprint(lines))
	for stream, text := range map[string]string{"out": r.stdout, "err": r.stderr} {
		next := make(map[int]int)
		for line := range strings.Lines(text) {
			var label, rank, number int
			if _, err := fmt.Sscanf(line, "["+"%d] "+stream+" %d %d\n", &label, &rank, &number); err != nil || label != rank || number != next[rank] {
				t.Fatalf("%s: line %q, expected number %d", stream, line, next[rank])
			}
			next[rank]++
		}
		for rank := range 4 {
			if next[rank] != lines {
				t.Errorf("%s: %d lines of rank %d", stream, next[rank], rank)
			}
		}
	}
}

func TestStdin(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		lines := 40_000 // 1 MB
		if !m.hosted() {
			lines = 24_000 // more than may be under way
		}
		input := bytes.Repeat([]byte("a line of standard input\n"), lines)
		feed := func(c *exec.Cmd) { c.Stdin = bytes.NewReader(input) }
		said := func(r result) int {
			return strings.Count(r.stdout, fmt.Sprintf("read %d lines, %d bytes", lines, len(input)))
		}
		r := start(t, feed, "-m", m.name, "run", "-n", "3", probe(), "stdin").wait()
		if r.code != 0 || said(r) != 1 || strings.Count(r.stdout, "read 0 lines, 0 bytes") != 2 || !strings.Contains(r.stdout, fmt.Sprint("rank 0 read ", lines)) {
			t.Error(r)
		}
		if !m.hosted() {
			return
		}
		if r = start(t, feed, "-m", m.name, "run", "-n", "3", "--stdin", "all", probe(), "stdin").wait(); r.code != 0 || said(r) != 3 {
			t.Error(r)
		}
		// No rank reads, but the job still ends.
		if r = start(t, feed, "-m", m.name, "run", "-n", "2", "--stdin", "all", probe(), "exit", "0").wait(); r.code != 0 {
			t.Error(r)
		}
	})
}

func TestSignals(t *testing.T) {
	m := use(t, "hosted")
	c := m.start("run", "-n", "4", probe(), "signals")
	c.awaitRanks("ready", 4)
	for _, s := range []syscall.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGINT, unix.SIGQUIT} {
		c.signal(s)
		for rank := range 4 {
			c.awaitOutput(fmt.Sprintf("rank %d got %s", rank, unix.SignalName(s)))
		}
	}
	c.signal(unix.SIGTERM)
	if r := c.wait(); r.code != 0 || strings.Count(r.stdout, "got SIGTERM") != 4 || strings.Count(r.stdout, "got SIGUSR1") != 4 {
		t.Error(r)
	}
}

func TestInterrupt(t *testing.T) {
	m := use(t, "hosted")
	c := m.start("run", "-n", "8", probe(), "sleep")
	c.awaitRanks("sleeping", 8)
	c.signal(unix.SIGINT)
	if r := c.wait(); r.code != 130 {
		t.Error(r)
	}
	// The second signal ends ranks that ignore the first. On a busy host the first may take longer
	// than the two may be apart, and then another signal is needed.
	c = m.start("run", "-n", "8", probe(), "sleep", "3600", "stubborn")
	c.awaitRanks("sleeping", 8)
	for pressed, ending := 1, false; !ending; pressed++ {
		c.signal(unix.SIGINT)
		eventually(t, "answer to SIGINT", func() bool {
			said := c.stderr.String()
			ending = strings.Contains(said, "ending job")
			return ending || strings.Count(said, "Ctrl-C again within 3 s ends the job") == pressed
		}, c.stderr.String)
	}
	if r := c.wait(); r.code != 130 {
		t.Error(r)
	}
	m.usable()
}

// What nodes do for such a job is what they do for any other.
func TestDetach(t *testing.T) {
	m := use(t, "hosted")
	endless := strings.TrimSpace(m.run(0, "--detach", probe(), "sleep").stdout)
	if ps := m.margay("ps", endless); !strings.Contains(ps.stdout, "running") {
		t.Error(ps)
	}
	if r := m.margay("kill", endless); r.code != 0 {
		t.Error(r)
	}
	job := strings.TrimSpace(m.run(0, "--detach", "-n", "4", probe(), "count", "20", "50").stdout)
	logs := m.margay("logs", "--label", job)
	if logs.code != 0 || strings.Count(logs.stdout, "] out ") != 80 || strings.Count(logs.stderr, "] err ") != 80 {
		t.Error(logs)
	}
	if ps := m.margay("ps", "-a"); !strings.Contains(ps.stdout, "ended (0)") {
		t.Error(ps)
	}
	if r := m.margay("logs", "99999"); r.code == 0 || !strings.Contains(r.stderr, "there is no job 99999") {
		t.Error(r)
	}
}

// counted returns the counts of a text by a plain sequential program.
func counted(t testing.TB, text string) string {
	t.Helper()
	return string(output(t, filepath.Join(bin, "plain"), text))
}

// README.md and TestSharedCores count words on emulated nodes, in Go and in C.
func TestHistogram(t *testing.T) {
	text := filepath.Join(scratch, "source.txt")
	out, err := exec.Command("sh", "-c", "find \"$(go env GOROOT)/src/net\" -name '*.go' -type f | LC_ALL=C sort | xargs cat > "+text).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := use(t, "hosted")
	want := counted(t, text)
	for _, program := range []string{"histogram", "histogram-c"} {
		r := m.run(0, "-n", m.all(), "--with", text, filepath.Join(bin, program), text)
		counts, messages, _ := cutLast(r.stdout)
		if counts != want || !strings.Contains(messages, " messages sent and handled: node0 ") {
			t.Errorf("%s: want\n%s%v", program, want, r)
		}
	}
	// A table that is too small is an error, never a wrong count.
	r := m.run(1, "-n", "4", "--with", text, filepath.Join(bin, "histogram"), "-capacity", "1024", text)
	if !strings.Contains(r.stderr, "found the table full") || r.stdout != "" {
		t.Error(r)
	}
}

// histogram is the example in Go where nodes are as fast as their host, and else the one in C: an
// emulated processor is slow to start a program in Go.
func (m *machine) histogram() string {
	if m.hosted() {
		return filepath.Join(bin, "histogram")
	}
	return filepath.Join(bin, "histogram-c")
}

// Ranks that share cores receive their messages and their node's share of memory, and end, like
// others.
func TestSharedCores(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		c := m.start("run", "-n", "8", "--ppn", "4", probe(), "sleep")
		c.awaitRanks("sleeping", 8)
		var cores []string
		for _, n := range m.listNodes() {
			for _, core := range n.Cores {
				cores = append(cores, fmt.Sprintf("%d.%d %v", n.Node, core.Core, core.Ranks))
			}
		}
		want := "0.1 [0 1], 0.2 [2 3], 1.1 [4 5], 1.2 [6 7]"
		for node := 2; node < m.nodes; node++ {
			want += fmt.Sprintf(", %d.1 [], %d.2 []", node, node)
		}
		if strings.Join(cores, ", ") != want {
			t.Errorf("the ranks are on %v, want %s", cores, want)
		}
		job := m.onlyJob()
		if nodes := m.margay("nodes"); !strings.Contains(nodes.stdout, job+".0-1 "+job+".2-3\n") {
			t.Error(nodes)
		}
		if ps := m.margay("ps", job); strings.Count(ps.stdout, "  running\n") != 8 {
			t.Error(ps)
		}
		r := m.margay("run", "-n", "6", "--ppn", "2", probe(), "hello")
		refusal := fmt.Sprintf("6 ranks, 2 on a node, need 3 nodes with 2 free application cores each, but %d of %d have that", m.nodes-2, m.nodes)
		if r.code != 125 || !strings.Contains(r.stderr, refusal) {
			t.Error(r)
		}
		c.signal(unix.SIGTERM)
		if r := c.wait(); r.code != 143 {
			t.Error(r)
		}
		if r := m.run(0, "-n", "8", "--ppn", "8", filepath.Join(bin, "hello-c")); strings.Count(r.stdout, " of 8 on node 0, ") != 8 {
			t.Error(r)
		}
		text := filepath.Join(bin, "..", "README.md")
		shared := m.run(0, "-n", "8", "--ppn", "4", "--with", text, m.histogram(), text)
		if got, _, _ := cutLast(shared.stdout); got != counted(t, text) {
			t.Errorf("%v\nwant %s", shared, counted(t, text))
		}
		m.usable()
	})
}

// Pointers into a fixed region are valid in all ranks of a node, including those that share a core.
func TestFixedRegion(t *testing.T) {
	m := use(t, "hosted")
	r := m.run(0, "-n", "8", "--ppn", "4", probe(), "pointers")
	for node, sum := range []int{1 + 2 + 3 + 4, 5 + 6 + 7 + 8} {
		if strings.Count(r.stdout, fmt.Sprintf("node%d: 4 ranks point to a sum of %d\n", node, sum)) != 4 {
			t.Error(r)
		}
	}
}

// The duties of cores change beside running jobs, but not under them, and a restarted node kernel
// keeps them.
func TestDuties(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		cores := func(want int, says string, flags ...string) {
			t.Helper()
			if r := m.margay(append([]string{"machine", "cores"}, flags...)...); r.code != want || !strings.Contains(r.stderr, says) {
				t.Errorf("machine cores %v: %v", flags, r)
			}
		}
		defer cores(0, "", "--all", "off", "--message-core", "off")
		text := filepath.Join(bin, "..", "README.md")
		each := strconv.Itoa(m.nodes) // ranks, one for each node
		histogram := func() string {
			t.Helper()
			r := m.run(0, "-n", each, "--with", text, m.histogram(), text)
			counts, _, _ := cutLast(r.stdout)
			return counts
		}
		want := counted(t, text)
		c := m.start("run", "-n", each, "--ppn", "1", probe(), "sleep") // on the first core of each node
		c.awaitRanks("sleeping", m.nodes)
		cores(0, "", "--message-core", "on", "--node", "0") // if all polled all the time, the processors of the host would do nothing else
		handles := func() {
			t.Helper()
			if nodes := m.margay("nodes"); !strings.Contains(nodes.stdout, "node0 handles messages on core 2, which does nothing else\n") {
				t.Error(nodes)
			}
		}
		handles()
		m.run(125, "-n", each, probe(), "hello")
		cores(0, "", "--all", "on")
		if nodes := m.margay("nodes"); !strings.Contains(nodes.stdout, fmt.Sprintf("node0-%d compute on core 0 as well, ", m.nodes-1)) {
			t.Error(nodes)
		}
		if got := histogram(); got != want {
			t.Errorf("with a core for messages: %s\nwant %s", got, want)
		}
		if r := m.margay("machine", "restart", "0"); r.code != 0 {
			t.Error(r)
		}
		handles()
		if got := histogram(); got != want {
			t.Errorf("after a restart: %s\nwant %s", got, want)
		}
		cores(0, "", "--message-core", "off")
		m.run(0, "-n", m.all(), probe(), "hello")
		d := m.start("run", "-n", m.all(), probe(), "sleep")
		d.awaitRanks("sleeping", m.nodes*m.cores)
		cores(125, "core 2: core is not free: job ", "--message-core", "on")
		cores(125, "core 0: core is not free: job ", "--all", "off", "--node", "1")
		cores(125, "there is nothing to change")
		cores(125, "it is on or off", "--all", "perhaps")
		for _, c := range []*command{c, d} {
			c.signal(unix.SIGTERM)
			if r := c.wait(); r.code != 143 {
				t.Error(r)
			}
		}
		cores(0, "", "--all", "off")
		m.usable()
	})
}

// cutLast cuts the last line off a text.
func cutLast(text string) (before, last string, ok bool) {
	at := strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n")
	if at < 0 {
		return "", text, false
	}
	return text[:at+1], text[at+1:], true
}

func TestSixteenNodes(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 16, 2)
	m.usable()
	text := filepath.Join(bin, "..", "README.md")
	plain, err := exec.Command(filepath.Join(bin, "plain"), text).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"histogram", "histogram-c"} {
		r := m.run(0, "-n", "32", "--with", text, filepath.Join(bin, program), text)
		counts, messages, _ := cutLast(r.stdout)
		sum, rest, _ := strings.Cut(messages, " messages sent and handled: ")
		var total, handled int
		fmt.Sscan(sum, &total)
		for node, part := range strings.Split(strings.TrimSpace(rest), ", ") {
			var number, count int
			if n, _ := fmt.Sscanf(part, "node%d %d", &number, &count); n != 2 || number != node || count == 0 {
				t.Errorf("part %d is %q", node, part)
			}
			handled += count
		}
		if counts != string(plain) || strings.Count(rest, "node") != 16 || total == 0 || handled != total {
			t.Errorf("%d messages of %d were handled, want\n%s%v", handled, total, plain, r)
		}
	}
}
