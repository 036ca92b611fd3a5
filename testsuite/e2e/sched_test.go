package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/rates"
)

// Two processes that compute share a core under the schedulers that are inserted while they run.
// On emulated nodes the load of the host decides how long a turn really is: there
// TestSoakSchedulers measures the shares, the suite in guests counts turns (package schedtest), and
// TestInfiniteIsQuiet and TestSeeSharedCore insert schedulers.
func TestSchedulers(t *testing.T) {
	useRealTime(t).schedulers("priority")
}

// sharedBy waits until cores are shared by an enforcer, which a node kernel may still have to
// start.
func (m *machine) sharedBy(enforcer string) {
	m.t.Helper()
	nodes := func() string { return m.margay("nodes").stdout }
	eventually(m.t, "cores shared by "+enforcer, func() bool { return strings.Contains(nodes(), " "+enforcer+" ") }, nodes)
}

// starving is for how long a process is held: longer than any mechanism needs that looks for
// starving processes, be it the starvation limit of the node kernel or the watchdog of sched_ext.
var starving = map[string]time.Duration{"priority": 6 * time.Second, "stop": 6 * time.Second, "sched_ext": 31 * time.Second}

// schedulers checks the shares of processor time of two ranks on a core, under one scheduler after
// the other, to within 5 %. The test does not know which rank came to the core first, so a job
// exchanges the weights: then the shares are exchanged, too. kernel/sched/schedtest tests which
// weight belongs to which rank.
func (m *machine) schedulers(enforcer string) {
	const usual = time.Second
	t := m.t
	m.sharedBy(enforcer)
	c := m.start("run", "-n", "2", "--per-core", "2", "-w", "node0", probe(), "share") // which may be late
	c.awaitRanks("computes", 2)
	job := m.onlyJob()
	m.shares("", usual, 1./2)
	most := make(map[uint32]bool) // ranks that had most of the core under weighted
	for _, s := range []struct {
		policy string
		set    []string
		look   time.Duration
		share  float64 // of one rank
	}{
		{"weighted", nil, usual, 3. / 4},
		{"weighted", []string{"--set", "weight0=1", "--set", "weight1=3"}, usual, 3. / 4},
		{"roundrobin", nil, usual, 1. / 2},
		{"infinite", nil, starving[enforcer], 1},
	} {
		r := m.margay(slices.Concat([]string{"ext", "insert"}, s.set, []string{job, object(t, "sched/"+s.policy)})...)
		handle := regexp.MustCompile(`\b0\.\d+\b`).FindString(r.stdout)
		if r.code != 0 || handle == "" || !strings.Contains(r.stdout, "active") {
			t.Fatal(r)
		}
		rank, both := m.shares(s.policy, s.look, s.share)
		if s.policy == "weighted" {
			most[rank] = true
		}
		// Without priorities, other processes on the CPU get a part of it.
		if enforcer != "stop" && both < 50 {
			t.Errorf("scheduler %q: they had only %.0f %% of the core, by %q", s.policy, both, m.allowed())
		}
		if r := m.margay("ext", "remove", handle); r.code != 0 {
			t.Fatal(r)
		}
	}
	m.shares("", usual, 1./2)
	if len(most) != 2 {
		t.Errorf("rank %v had most under either weights", most)
	}
	c.signal(unix.SIGTERM)
	c.wait()
	m.awaitIdle()
}

// shares requires that one of the two ranks of the first core has a share of their processor time,
// to within 5 %. It returns the rank that had most, and how much of the core both had, in percent.
// Other load on this host falls on one rank or the other, and evens out in the sum of a few looks.
func (m *machine) shares(policy string, look time.Duration, share float64) (most uint32, both float64) {
	m.t.Helper()
	const within, looks = 0.05, 20
	had, all, seconds, got := make(map[uint32]float64), 0., 0., 0.
	for range looks {
		ranks := m.coreFor(look).Ranks
		if len(ranks) != 2 { // a virtual node may be too slow to answer
			continue
		}
		for _, r := range ranks {
			had[r.Rank] += r.CPU * look.Seconds()
			all += r.CPU * look.Seconds()
		}
		seconds += look.Seconds()
		if most = ranks[0].Rank; had[most] < all/2 {
			most = ranks[1].Rank
		}
		got = had[most] / all
		m.t.Logf("%q: %.1f and %.1f %% of %v, a share of %.3f since its start", policy, ranks[0].CPU, ranks[1].CPU, look, got)
		if math.Abs(got-share) <= within*share {
			return most, all / seconds
		}
		look = min(look, 2*time.Second)
	}
	m.t.Fatalf("scheduler %q: a share of %.3f, not of %.3f", policy, got, share)
	return most, 0
}

// A harmful scheduler does harm until it is detected: then Linux shares the core, and the list of
// extensions states the reason. Each way of sharing a core meets the same schedulers in a guest
// (package schedtest), and sched_ext meets them here in TestSoakHostileSchedulers.
func TestHostileSchedulers(t *testing.T) {
	m := useRealTime(t)
	m.hostileSchedulers(misbehaving(t, 7))
}

// hostileSchedulers inserts the schedulers one after the other while three ranks compute on a core.
func (m *machine) hostileSchedulers(burn string) {
	t := m.t
	objects := filepath.Join(bin, "..", "kernel", "sched", "schedtest", "testdata")
	for _, c := range []struct{ object, says string }{
		{filepath.Join(objects, "nonsense.o"), "it made 16 faults, the last: it chose task "},
		{filepath.Join(objects, "starve.o"), "it let tasks starve 4 times, the last: job "},
		{burn, "it made 16 faults, the last: "},
	} {
		name := strings.TrimSuffix(filepath.Base(c.object), ".o")
		job := m.start("run", "-n", "3", "--per-core", "3", probe(), "share")
		job.awaitRanks("computes", 3)
		m.insertsAtLast(m.onlyJob(), c.object)
		said := ""
		eventually(t, "the end of "+name, func() bool {
			said = lineWith(m.margay("ext", "list").stdout, name, c.says)
			return said != ""
		}, func() string { return m.margay("ext", "list").String() })
		t.Log(said)
		if r := m.margay("ext", "log"); lineWith(r.stdout, "("+name+"): removed: ", c.says) == "" {
			t.Errorf("nothing of %s in the log: %v", name, r)
		}
		var v rates.View
		eventually(t, "turns of all ranks", func() bool {
			v = m.topView("--interval=500ms")
			turns := 0
			for _, core := range v.Cores {
				for _, r := range core.Ranks {
					if r.CPU > 1 && r.Why == "Linux shares the core" { // other programs of the host may have most of it
						turns++
					}
				}
			}
			return turns == 3
		}, func() string {
			return fmt.Sprintf("%s: %+v\n%v\nthe job has said: %s%s", name, v, m.margay("ps"), job.stdout.String(), job.stderr.String())
		})
		job.signal(unix.SIGTERM)
		job.wait()
		m.awaitIdle()
	}
}

// Under a scheduler, hosted nodes leave the first CPU of their host free of real-time ranks. Two
// nodes would otherwise take nearly everything from the rest of a host of two CPUs.
func TestHostKeepsACPU(t *testing.T) {
	ownRealTime(t)
	m := up(t, "hosted", 2, 2)
	if r := m.margay("ext", "insert", filepath.Join(bin, "..", "ext", "sched", "weighted", "weighted.o")); r.code != 0 {
		t.Fatal(r)
	}
	job := m.start("run", "-n", "8", "--per-core", "2", probe(), "sleep")
	job.awaitRanks("sleeping", 8)
	var host unix.CPUSet
	if err := unix.SchedGetaffinity(0, &host); err != nil {
		t.Fatal(err)
	}
	first := fmt.Sprintf("CPUs %x, ", host[0]&-host[0])
	realTime := func() (onFirst, onOthers int) {
		for _, a := range m.allowed() {
			switch {
			case !strings.HasSuffix(a, fmt.Sprintf("policy %d", unix.SCHED_RR)):
			case strings.HasPrefix(a, first):
				onFirst++
			default:
				onOthers++
			}
		}
		return onFirst, onOthers
	}
	eventually(t, "real-time ranks", func() bool { _, others := realTime(); return others > 0 }, func() string { return fmt.Sprint(m.allowed()) })
	m.topView("--interval=1s") // longer than it takes until all ranks have their priorities
	if onFirst, _ := realTime(); onFirst > 0 {
		t.Errorf("ranks on the host's CPU are real-time: %q", m.allowed())
	}
	job.signal(unix.SIGTERM)
	job.wait()
}

// insertsAtLast inserts an extension into a job. A virtual node on a busy host may be silent for so
// long that the answer is lost; then the node does not keep the extension.
func (m *machine) insertsAtLast(job, object string) {
	m.t.Helper()
	var r result
	eventually(m.t, "an answer to the insertion", func() bool {
		r = m.margay("ext", "insert", job, object)
		return !strings.Contains(r.stderr, "if the extension got there, it is removed")
	}, func() string { return r.String() })
	if r.code != 0 {
		m.t.Fatal(r)
	}
}

// lineWith returns the first line that contains all of the words.
func lineWith(text string, words ...string) string {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return line
		}
	}
	return ""
}

// Under the scheduler infinite, nothing interrupts a computation on an isolated core and nothing
// takes the core from it, though another process wants it. That process is held, which is required
// under profile sched, too. The test also prints how quiet the core is.
// TestNoInterruptsWhileComputing shows a process without another one.
func TestInfiniteIsQuiet(t *testing.T) {
	look := func(profile string) func(*testing.T, *machine) {
		return func(t *testing.T, m *machine) { m.infinite(compute(t), profile == "isolated") }
	}
	inTurns(t, turnOf{"isolated", expect("isolated"), look("isolated")}, turnOf{"sched", expect("sched_ext"), look("sched")})
}

func (m *machine) infinite(program string, quiet bool) {
	t := m.t
	c := m.start("run", "-n", "2", "--per-core", "2", "-w", "node0", program, "120")
	eventually(t, "computation", func() bool { return strings.Count(c.stdout.String(), "computing\n") == 2 }, c.stdout.String)
	if r := m.margay("ext", "insert", m.onlyJob(), object(t, "sched/infinite")); r.code != 0 {
		t.Fatal(r)
	}
	m.holdsOther()
	interrupts, lost, quietLooks := m.disturbed(quiet)
	disturbed := fmt.Sprintf("%.1f interrupts/s, %.1f times a second without the core", interrupts, lost)
	t.Log(disturbed)
	if quiet && quietLooks < enoughQuiet {
		t.Error(disturbed)
	}
	c.signal(unix.SIGTERM)
	c.wait()
	m.awaitIdle()
}

// holdsOther waits until one of two ranks of a core computes under the scheduler infinite and the
// other one is held, and gets no time.
func (m *machine) holdsOther() {
	m.t.Helper()
	var core rates.Core
	eventually(m.t, "rank that is held", func() bool {
		core = m.core()
		return len(core.Ranks) == 2 && strings.Contains(core.Ranks[0].Why, "(infinite)") && core.Ranks[0].CPU > 1 &&
			core.Ranks[1].Why == "held" && core.Ranks[1].CPU == 0
	}, func() string { return fmt.Sprintf("%+v", core) })
}

// enoughQuiet is the number of consecutive looks that must find nothing.
const enoughQuiet = 2

// disturbed looks at the one core of a machine until a rank computes there and, with quiet set,
// until the core is quiet. That need not be at once: starting and ending processes leaves work
// behind. It returns how often the core was interrupted and taken from its rank, per second, in the
// last look, and how many consecutive looks found nothing.
func (m *machine) disturbed(quiet bool) (interrupts, lost float64, quietLooks int) {
	m.t.Helper()
	computed := false
	for range 6 {
		noise := m.start("nodes", "--noise=2s") // names the sources of interrupts
		core := m.topView("--interval=2s").Cores[0]
		rows := noise.wait()
		m.t.Logf("%+v", core)
		if core.Ranks[0].CPU <= 50 {
			quietLooks = 0
			continue
		}
		computed = true
		if interrupts, lost = core.Interrupts, core.Ranks[0].Involuntary; interrupts+lost > 0 {
			m.t.Log(rows)
			quietLooks = 0
		} else {
			quietLooks++
		}
		if !quiet || quietLooks == enoughQuiet {
			break
		}
	}
	if !computed {
		m.t.Error("nobody computes in any look")
	}
	return interrupts, lost, quietLooks
}
