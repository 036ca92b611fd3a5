package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/rates"
	"margay/cluster/trace/tracetest"
	"margay/internal/check"
)

// readTrace reads and checks a trace.
func readTrace(t *testing.T, file string) *tracetest.Trace {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := tracetest.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// words makes a text of n words, with not many more than 1000 different ones.
func words(t *testing.T, n int) string {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "w%d ", i*i%1009)
	}
	file := filepath.Join(t.TempDir(), "words.txt")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// A recorded histogram has all of its messages, from the sending to the run of the extension that
// takes them, and the lives of its ranks.
func TestRecord(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		file, text := filepath.Join(t.TempDir(), "trace.json"), words(t, 10_000)
		r := m.margay("record", "-o", file, "--", filepath.Join(bin, "margay"), "run", "-n", "4", "--with", text, m.histogram(), text)
		if r.code != 0 || !strings.Contains(r.stderr, " 0 were lost") {
			t.Fatal(r)
		}
		_, messages, _ := cutLast(r.stdout)
		said, err := strconv.Atoi(strings.Fields(messages)[0])
		if err != nil || said == 0 {
			t.Fatal(r)
		}
		trace := readTrace(t, file)
		seen := make(map[string]int)
		lives := make(map[string]bool)
		for _, e := range trace.Events {
			switch {
			case e.Phase == "s" || e.Phase == "f":
				seen[e.Phase]++
			case e.Cat == "message" && strings.HasSuffix(*e.Name, ": CONSUME"):
				seen["consumed"]++
			case e.Cat == "extension" && e.Args["answer"] == "CONSUME" && *e.Name == "accumulate":
				seen["runs"]++
			case e.Cat == "barrier":
				seen["barriers"]++
			case e.Cat == "core" && e.Args["why"] == "it has the core to itself":
				seen["turns"]++
			case e.Cat == "rank" && e.Args["end"] == "exited with status 0":
				lives[trace.Thread(e)] = true
			}
		}
		// The messages that are not consumed are the ranks' final agreement.
		if seen["consumed"] != said || seen["runs"] != said || seen["s"] != seen["f"] || seen["f"] < said || len(lives) != 4 || seen["turns"] != 4 || seen["barriers"] < 4 {
			t.Errorf("%d messages were counted; the trace has %v and the lives of %v", said, seen, lives)
		}
		for _, n := range trace.Other.Nodes {
			if n.Lost != 0 || len(n.Gaps) != 0 || n.ClockError <= 0 || n.ClockError > int64(time.Second) {
				t.Errorf("%+v", n)
			}
			// Hosted nodes have one clock.
			other := trace.Other.Nodes[0]
			if apart := n.ClockAhead - other.ClockAhead; m.hosted() && max(apart, -apart) > n.ClockError+other.ClockError {
				t.Errorf("%+v and %+v have one clock", n, other)
			}
		}
	})
}

// margay record returns the status of its command, and can record one job alone.
func TestRecordOneJob(t *testing.T) {
	m := use(t, "hosted")
	file := filepath.Join(t.TempDir(), "trace.json")
	if r := m.margay("record", "--force", "-o", file, "--", filepath.Join(bin, "margay"), "run", probe(), "exit", "7"); r.code != 7 {
		t.Error(r)
	}
	if r := m.margay("record", "--force", "-o", file, "--", "sh", "-c", "kill -9 $$"); r.code != 137 {
		t.Error(r)
	}
	if r := m.margay("record", "--force", "-o", file, "--", filepath.Join(scratch, "none")); r.code != 127 {
		t.Error(r)
	}
	first := m.start("run", "-n", "2", probe(), "sleep")
	first.awaitRanks("sleeping", 2)
	second := m.start("run", "-n", "2", probe(), "sleep")
	second.awaitRanks("sleeping", 2)
	job := m.jobs()[0]
	if r := m.margay("record", "--force", "-o", file, "--job", job, "--duration", "300ms"); r.code != 0 || !strings.Contains(r.stderr, "of 1 node in ") {
		t.Error(r)
	}
	lives := 0
	for _, e := range readTrace(t, file).Events {
		if e.Cat == "rank" || e.Cat == "core" {
			lives++
			if !strings.Contains(*e.Name, "runs") && !strings.HasPrefix(*e.Name, "job "+job+" rank ") {
				t.Errorf("job %s was recorded, and so was %s", job, *e.Name)
			}
		}
	}
	if lives != 4 {
		t.Errorf("two ranks on two cores are %d", lives)
	}
	if r := m.margay("record", "--force", "-o", file, "--job", "99999"); r.code != 125 || !strings.Contains(r.stderr, "there is no job 99999") {
		t.Error(r)
	}
	for _, c := range []*command{first, second} {
		c.signal(unix.SIGTERM)
		c.wait()
	}
	m.awaitIdle()
}

// topView returns the output of margay top --once --json. An emulated node on a busy host may be
// too slow to answer, or to report that it is up: topView asks again.
func (m *machine) topView(flags ...string) (v rates.View) {
	m.t.Helper()
	var r result
	eventually(m.t, "an answer of every node", func() bool {
		r = m.margay(append([]string{"top", "--once", "--json", "--interval=100ms"}, flags...)...)
		return m.hosted() || !strings.Contains(r.stderr, "no answer to TakeSamples") && !strings.HasSuffix(r.stderr, " is up (margay nodes)\n")
	}, func() string { return r.String() })
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || r.code != 0 {
		m.t.Fatalf("%v: %v", err, r)
	}
	return v
}

// Nodes stop recording for a client that was killed.
func TestRecordKilled(t *testing.T) {
	m := use(t, "hosted")
	c := m.start("record", "-o", filepath.Join(t.TempDir(), "trace.json"))
	recording := func(n int) func() bool { return func() bool { return len(m.topView().Recording) == n } }
	state := func() string { return fmt.Sprintf("%+v", m.topView()) }
	eventually(t, "recording", recording(4), state)
	kill(t, c.cmd.Process.Pid)
	c.wait()
	eventually(t, "end of recording", recording(0), state)
}

// A restarted node kernel loses what it had recorded, and the trace reports this. A restarted serve
// loses nothing.
func TestRecordInterrupted(t *testing.T) {
	m := use(t, "hosted")
	file := filepath.Join(t.TempDir(), "trace.json")
	c := m.start("record", "-o", file)
	eventually(t, "recording", func() bool { return strings.Contains(c.stderr.String(), "4 nodes record until Ctrl-C") }, c.stderr.String)
	_, serve := m.status()
	kill(t, serve)
	m.awaitUp()
	if r := m.margay("machine", "restart", "2"); r.code != 0 {
		t.Fatal(r)
	}
	eventually(t, "word of the gap", func() bool { return strings.Contains(c.stderr.String(), "node2: nothing is known of ") }, c.stderr.String)
	m.run(0, "-n", "8", probe(), "hello")
	c.signal(unix.SIGINT)
	if r := c.wait(); r.code != 0 {
		t.Fatal(r)
	}
	trace := readTrace(t, file)
	for i, n := range trace.Other.Nodes {
		if want := map[int]int{2: 1}[i]; len(n.Gaps) != want || want == 1 && n.Gaps[0].Why != "its kernel was started again" {
			t.Errorf("%+v", n)
		}
	}
	lives := make(map[int64]int)
	for _, e := range trace.Events {
		if e.Cat == "rank" && e.Args["end"] == "exited with status 0" {
			lives[*e.PID]++
		}
	}
	if len(lives) != 4 {
		t.Errorf("of the ranks that ran at last, those of the nodes %v are there", lives)
	}
}

// top shows the owner and the usage of each core.
func TestTop(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		c := m.start("run", "-n", "3", probe(), "sleep")
		c.awaitRanks("sleeping", 3)
		v := m.topView("--interval=500ms")
		busy := 0
		for i, core := range v.Cores {
			if int(core.Node) != i/2 || int(core.Core) != 1+i%2 || core.Shared != m.hosted() {
				t.Errorf("core %d is %+v", i, core)
			}
			for _, r := range core.Ranks {
				if busy++; int(r.Rank) != i || r.PID <= 1 || r.Threads == 0 || r.CPU < 0 || r.CPU > 110 || r.Why != "it has the core to itself" {
					t.Errorf("%+v", r)
				}
			}
		}
		cores := m.nodes * m.cores
		if len(v.Cores) != cores || busy != 3 || v.Seconds < 0.5 {
			t.Errorf("%+v", v)
		}
		r := m.margay("top", "--once", "--interval=100ms", "--sort=cpu")
		if r.code != 0 || strings.Count(r.stdout, "it has the core to itself") != 3 || strings.Count(r.stdout, "free\n") != cores-3 ||
			!strings.Contains(r.stdout, fmt.Sprintf("3 of %d cores busy", cores)) {
			t.Error(r)
		}
		c.signal(unix.SIGTERM)
		c.wait()
		if r := m.margay("top", "--once", "--sort=age"); r.code != 125 || !strings.Contains(r.stderr, "it is one of [core cpu") {
			t.Error(r)
		}
		if r := m.margay("top", "--interval=1ms"); r.code != 125 || !strings.Contains(r.stderr, "at least 100ms") {
			t.Error(r)
		}
	})
}

// For a core that ranks share, top shows which rank has it and why, and the work of the scheduler.
// A record has the ranks' turns.
func TestSeeSharedCore(t *testing.T) {
	inTurns(t, turnOf{"priority", expect("hosted").realTime(), seeSharedCore}, turnOf{"sched_ext", expect("sched_ext"), seeSharedCore})
}

func seeSharedCore(t *testing.T, m *machine) {
	c := m.start("run", "-n", "2", "--per-core", "2", "-w", "node0", probe(), "share") // which may be late
	c.awaitRanks("computes", 2)
	if r := m.margay("ext", "insert", m.onlyJob(), object(t, "sched/roundrobin")); r.code != 0 {
		t.Fatal(r)
	}
	// A view may be of a moment between two turns, when no rank has the core.
	chosen := `has the core: extension \d+ \(roundrobin\)`
	inTurn := regexp.MustCompile("^(" + chosen + ", ready|ready, " + chosen + ")$")
	var shared rates.Core
	eventually(t, "turns of 10 ms", func() bool {
		shared = m.topView("--interval=500ms").Cores[0]
		return len(shared.Ranks) == 2 && shared.Turns > 20 && shared.Turns <= 200 && inTurn.MatchString(shared.Ranks[0].Why+", "+shared.Ranks[1].Why)
	}, func() string { return fmt.Sprintf("%+v", shared) })
	file := filepath.Join(t.TempDir(), "trace.json")
	if r := m.margay("record", "-o", file, "--duration", "2s"); r.code != 0 {
		t.Fatal(r)
	}
	turns := 0
	for _, e := range readTrace(t, file).Events {
		if e.Phase == "X" && e.Cat == "core" && strings.Contains(fmt.Sprint(e.Args["why"]), "(roundrobin)") {
			turns++
		}
	}
	if turns < 20 {
		t.Errorf("%d turns in the trace", turns)
	}
	stats := m.margay("ext", "stats")
	if ran := regexp.MustCompile(`(?m)^\S+ +\d+ +sched +roundrobin +\S+ +(\d+) `).FindStringSubmatch(stats.stdout); ran == nil || len(ran[1]) < 2 {
		t.Errorf("not ten runs a second and more: %v", stats)
	}
	c.signal(unix.SIGTERM)
	c.wait()
	m.awaitIdle()
}

// On a terminal top fills the screen, handles its keys, and restores the terminal however it ends.
func TestTopOnTerminal(t *testing.T) {
	m := use(t, "hosted")
	for name, end := range map[string]func(c *command, master *os.File){
		"q":       func(_ *command, master *os.File) { master.WriteString("q") },
		"Ctrl-C":  func(_ *command, master *os.File) { master.WriteString("\x03") },
		"SIGTERM": func(c *command, _ *os.File) { c.signal(unix.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			master, slave := terminal(t)
			before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 90, Row: 9}); err != nil {
				t.Fatal(err)
			}
			var shown check.Buffer
			go io.Copy(&shown, master)
			c := start(t, func(c *exec.Cmd) {
				c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
				c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			}, "-m", m.name, "top", "--interval=100ms")
			sees := func(text string) {
				t.Helper()
				eventually(t, "text "+text, func() bool { return strings.Contains(shown.String(), text) }, shown.String)
			}
			sees("\x1b[?1049h")
			sees("node0  1")
			if strings.Contains(shown.String(), "node3") {
				t.Error("more is shown than there are lines for")
			}
			master.WriteString("c")
			sees("by cpu ·")
			master.WriteString("jjj")
			sees("node2")
			if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 90, Row: 30}); err != nil {
				t.Fatal(err)
			}
			master.WriteString("nkkk")
			sees("node3")
			end(c, master)
			want := map[string]int{"q": 0, "Ctrl-C": 130, "SIGTERM": 143}[name]
			if r := c.wait(); r.code != want {
				t.Errorf("status %d, not %d", r.code, want)
			}
			sees("\x1b[?25h\x1b[?1049l")
			after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			if err != nil || *after != *before {
				t.Errorf("the terminal was %+v and is %+v, %v", before, after, err)
			}
		})
	}
}
