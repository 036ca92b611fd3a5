// Package schedtest is what every sched.Enforcer must do: the same policies, as they come out of the compiler, give real
// processes the same part of a real core, whoever enforces them.
package schedtest

import (
	"cmp"
	_ "embed"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/kernel/extension"
	"margay/kernel/sched"
	"margay/kernel/slot"
	"margay/nimble/engine"
)

// Config is what the suite needs to know.
type Config struct {
	Open   func(testing.TB) sched.Enforcer // a new one; the suite closes it
	Engine engine.Engine                   // that runs policies in the node kernel
	CPU    int                             // where the processes run
	Group  func(testing.TB, *Process)      // puts a process into a control group of its own, and says so in its Task; nil: none

	// Policies are objects for slot sched: weighted (3:1), roundrobin, infinite and message-first.
	Weighted, RoundRobin, Infinite, MessageFirst []byte

	// Watchdog is how long the longest test runs: longer than anything that looks for starving tasks.
	Watchdog time.Duration
	// Tolerance is how far a share of the time may be off, as a part of it.
	Tolerance float64

	// Abandon does to an enforcer what happens when its node kernel is killed.
	Abandon func(sched.Enforcer)
	// Refusal is what is said of a policy that works for too long, where that is found out before it runs. Empty: its faults are.
	Refusal string
}

//go:embed testdata/nonsense.o
var nonsense []byte

//go:embed testdata/starve.o
var starve []byte

//go:embed testdata/burn.o
var burn []byte

// core is the number of the core, as the machine would number it.
const core = 1

// job is the job whose processes and policies these are.
const job = 7

// Run runs the suite, or the tests of it that are named.
func Run(t *testing.T, c Config, only ...string) {
	for name, test := range map[string]func(*rig){
		"weighted":      testWeighted,
		"roundrobin":    func(r *rig) { r.even(r.insert(r.config.RoundRobin)) },
		"no policy":     func(r *rig) { r.even(nil) },
		"infinite":      testInfinite,
		"block":         testBlock,
		"arrival":       testArrival,
		"replaced":      testReplaced,
		"task ends":     testEnd,
		"let go":        testLetGo,
		"nonsense":      func(r *rig) { r.hostile(nonsense, "faults") },
		"starves":       func(r *rig) { r.hostile(starve, "it let tasks starve") },
		"burns fuel":    func(r *rig) { r.hostile(burn, cmp.Or(r.config.Refusal, "faults")) },
		"threads":       testThreads,
		"opened anew":   testReopened,
		"machine's own": testMachine,
	} {
		if len(only) == 0 || slices.Contains(only, name) {
			t.Run(name, func(t *testing.T) { test(newRig(t, c)) })
		}
	}
}

// rig is an enforcer with processes and policies.
type rig struct {
	*testing.T
	config   Config
	enforcer sched.Enforcer
	manager  *extension.Manager
	set      *extension.Set
	tasks    []*Process
}

func newRig(t *testing.T, c Config) *rig {
	r := &rig{T: t, config: c, enforcer: c.Open(t)}
	var err error
	if r.manager, err = extension.NewManager(c.Engine, 2, t.Logf); err != nil {
		t.Fatal(err)
	}
	r.set = r.manager.Open(job, 1<<20)
	t.Cleanup(func() {
		r.manager.Watch(slot.Sched, nil)
		for _, err := range []error{r.enforcer.Close(), r.set.Close(), r.manager.Machine().Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	r.manager.Watch(slot.Sched, func(uint32) { r.policies() })
	return r
}

// policies gives the enforcer the policies that there are.
func (r *rig) policies() {
	if err := r.enforcer.SetPolicies(core, sched.Policies(r.manager.Chain(job, slot.Sched))); err != nil {
		r.Error(err)
	}
}

// insert puts a policy into the job's slot.
func (r *rig) insert(object []byte, settings ...extension.Setting) *extension.Extension {
	r.Helper()
	x, err := r.set.Insert(extension.Request{Object: object, Settings: settings})
	if err != nil {
		r.Fatal(err)
	}
	return x
}

// start makes processes of the core.
func (r *rig) start(kinds ...Kind) {
	r.Helper()
	for _, kind := range kinds {
		p := Start(r, kind, r.config.CPU)
		p.Task.ID, p.Task.Core = sched.ID{Job: job, Rank: uint32(len(r.tasks))}, core
		if r.config.Group != nil {
			r.config.Group(r, p)
		}
		r.tasks = append(r.tasks, p)
		// A descriptor of the process is open for as long as the enforcer has the task.
		r.Cleanup(func() {
			p.Kill()
			r.enforcer.Remove(p.Task.ID)
		})
		if err := r.enforcer.Add(p.Task); err != nil {
			r.Fatal(err)
		}
	}
}

// spent measures what each process has of the core for some time.
func (r *rig) spent(d time.Duration) []time.Duration {
	r.Helper()
	before := make([]time.Duration, len(r.tasks))
	for i, p := range r.tasks {
		before[i] = p.Ran()
	}
	time.Sleep(d)
	spent := make([]time.Duration, len(r.tasks))
	for i, p := range r.tasks {
		spent[i] = p.Ran() - before[i]
	}
	r.Logf("of %v: %v", d, spent)
	return spent
}

// ratio checks that the processes have parts of the core in the ratio of the weights, within the tolerance. It measures for as long as it
// takes for what else happens on the machine to even out.
func (r *rig) ratio(weights ...float64) {
	r.Helper()
	sums := make([]time.Duration, len(weights))
	for round := 1; ; round++ {
		for i, s := range r.spent(measure) {
			sums[i] += s
		}
		if r.near(sums, weights) {
			return
		}
		if round == rounds {
			r.Errorf("they had %v, which is not as %v", sums, weights)
			return
		}
	}
}

// near reports whether times are in the ratio of the weights.
func (r *rig) near(times []time.Duration, weights []float64) bool {
	var time, weight float64
	for i, w := range weights {
		time += times[i].Seconds()
		weight += w
	}
	for i, w := range weights {
		if math.Abs(times[i].Seconds()/time-w/weight) > r.config.Tolerance*w/weight {
			return false
		}
	}
	return true
}

// info describes the core.
func (r *rig) info() sched.CoreInfo {
	r.Helper()
	for _, c := range r.enforcer.Cores() {
		if c.Core == core {
			return c
		}
	}
	r.Fatal("the core is not known")
	return sched.CoreInfo{}
}

// await waits until something is so.
func (r *rig) await(what string, d time.Duration, ok func() bool) {
	r.Helper()
	for deadline := time.Now().Add(d); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("not within %v: %s; the core is %+v", d, what, r.info())
		}
	}
}

// A ratio is measured over so many rounds at most, each long enough for the error of a turn to be small.
const (
	measure = 5 * time.Second
	rounds  = 10
)

func testWeighted(r *rig) {
	r.insert(r.config.Weighted)
	r.start(Spin, Spin)
	r.ratio(3, 1)
	if i := r.info(); i.Asked == 0 || i.Why == "turns" {
		r.Errorf("core %+v", i)
	}
}

// even checks that processes take turns.
func (r *rig) even(x *extension.Extension) {
	r.Helper()
	r.start(Spin, Spin)
	r.ratio(1, 1)
	if i := r.info(); i.Rescues != 0 || i.Asked > 0 != (x != nil) {
		r.Errorf("core %+v", i)
	}
	if x != nil && (x.Stats().Faults > 0 || x.Stats().Runs == 0 || x.Stats().Time == 0) {
		r.Errorf("stats %+v", x.Stats())
	}
}

// A process has the core for ever, and nobody counts the one that is held as starving.
func testInfinite(r *rig) {
	r.insert(r.config.Infinite)
	r.start(Spin, Spin)
	time.Sleep(100 * time.Millisecond)
	s := r.spent(r.config.Watchdog)
	if s[0] < r.config.Watchdog/2 || s[1] > s[0]/100 {
		r.Errorf("they had %v, not one all and the other nothing", s)
	}
	if i := r.info(); i.Rescues != 0 || i.Tasks[1].State != slot.Held || i.Running != 0 || len(r.manager.List()) != 1 {
		r.Errorf("core %+v", i)
	}
	r.enforcer.Remove(r.tasks[0].Task.ID)
	r.tasks[0].Kill()
	r.await("the other one runs", 5*time.Second, func() bool { return r.spent(100 * time.Millisecond)[1] > 10*time.Millisecond })
}

// Who waits does not count, and gets the core when it wakes up, however much another one computes.
func testBlock(r *rig) {
	if lacks := r.enforcer.Lacks(); lacks[slot.Block]+lacks[slot.Wake] != "" {
		r.Logf("not noticed here: %v", lacks)
		return
	}
	r.insert(r.config.RoundRobin)
	r.start(Spin, Wait)
	r.await("one waits", 5*time.Second, func() bool { return r.info().Tasks[1].State == slot.Blocked })
	if s := r.spent(time.Second); s[0] < time.Second/2 {
		r.Errorf("alone it had %v of a second", s[0])
	}
	for range 50 {
		r.tasks[1].Poke()
		r.enforcer.Woken(r.tasks[1].Task.ID)
		if !r.tasks[1].Answered(10 * time.Second) {
			r.Fatalf("it got no turn; core %+v", r.info())
		}
	}
	r.await("it waits again", 5*time.Second, func() bool { return r.info().Tasks[1].State == slot.Blocked })
	if i := r.info(); i.Rescues != 0 || i.Switches < 5 { // short turns may pass unseen
		r.Errorf("core %+v", i)
	}
}

// A message takes the core from a process that computes, and it gets the core back.
func testArrival(r *rig) {
	r.insert(r.config.MessageFirst, extension.Setting{Name: "quantum", Value: uint64(time.Second)})
	r.start(Spin, Spin)
	var computed time.Duration
	for range 5 {
		r.await("the first one has the core", 5*time.Second, func() bool { return r.info().Running == 0 })
		before := r.tasks[1].Ran()
		r.tasks[1].messages.Store(1)
		r.enforcer.Arrived(r.tasks[1].Task.ID, 1)
		r.await("the second one computes", 5*time.Second, func() bool {
			i := r.info()
			return i.Running == 1 && i.Tasks[1].Messages == 1 && r.tasks[1].Ran()-before > 5*time.Millisecond
		})
		before = r.tasks[0].Ran()
		r.tasks[1].messages.Store(0)
		r.enforcer.Arrived(r.tasks[0].Task.ID, 0) // or any other reason to ask
		r.await("the first one computes again", 5*time.Second, func() bool { return r.tasks[0].Ran() > before })
		computed += r.tasks[0].Ran() - before
	}
	if computed == 0 || r.info().Rescues != 0 {
		r.Errorf("core %+v", r.info())
	}
}

// One policy takes the place of another while processes run, and the time follows at once.
func testReplaced(r *rig) {
	r.start(Spin, Spin)
	first := r.insert(r.config.Infinite)
	r.await("one is held", 5*time.Second, func() bool {
		return r.info().Tasks[0].State == slot.Held || r.info().Tasks[1].State == slot.Held
	})
	second := r.insert(r.config.Weighted)
	if err := r.set.Remove(first.Handle(), "a test"); err != nil {
		r.Fatal(err)
	}
	r.ratio(3, 1)
	if err := r.set.Remove(second.Handle(), "a test"); err != nil {
		r.Fatal(err)
	}
	r.ratio(1, 1)
}

// Processes end, killed or not, and the others share what is left; a new one takes part.
func testEnd(r *rig) {
	r.insert(r.config.RoundRobin)
	r.start(Spin, Spin, Spin)
	r.tasks[0].Kill()
	r.ratio(0, 1, 1)
	r.enforcer.Remove(r.tasks[0].Task.ID)
	r.enforcer.Remove(r.tasks[1].Task.ID)
	r.tasks[1].Kill()
	r.tasks = r.tasks[2:]
	r.start(Spin)
	r.ratio(1, 1)
}

// A task that is let go, or whose enforcer is closed, runs as Linux likes, also when it was held.
func testLetGo(r *rig) {
	r.insert(r.config.Infinite)
	r.start(Spin, Spin, Spin)
	r.await("two are held", 5*time.Second, func() bool {
		i := r.info()
		return i.Tasks[1].State == slot.Held && i.Tasks[2].State == slot.Held
	})
	time.Sleep(200 * time.Millisecond)
	r.enforcer.Remove(r.tasks[1].Task.ID)
	if err := r.enforcer.Close(); err != nil {
		r.Fatal(err)
	}
	for i, s := range r.spent(3 * time.Second) {
		if s < 300*time.Millisecond {
			r.Errorf("task %d had %v of 3 s", i, s)
		}
	}
	r.enforcer = r.config.Open(r) // for the end of the test
}

// hostile checks that a policy does no harm for longer than it takes to remove it, and that people are told.
func (r *rig) hostile(object []byte, says string) {
	r.Helper()
	r.insert(object)
	r.start(Spin, Spin, Spin)
	r.await("it is removed", r.config.Watchdog, func() bool {
		list := r.manager.List()
		return len(list) == 1 && list[0].Removed != ""
	})
	if x := r.manager.List()[0]; !strings.Contains(x.Removed, says) || x.Stats.Faults == 0 && says != r.config.Refusal {
		r.Errorf("list %+v", x)
	}
	for i, p := range r.tasks {
		if p.Ran() == 0 {
			r.Errorf("task %d has had nothing", i)
		}
	}
	r.await("turns", 5*time.Second, func() bool { return r.info().Why == "turns" })
	for i, s := range r.spent(measure) {
		if s < measure/20 {
			r.Errorf("after that task %d had %v of %v", i, s, measure)
		}
	}
}

// All threads of a process count, also those that come later.
func testThreads(r *rig) {
	r.insert(r.config.RoundRobin)
	r.start(SpinThreads, Spin)
	r.ratio(1, 1)
	r.start(SpinThreads)
	r.enforcer.Remove(r.tasks[0].Task.ID)
	r.tasks[0].Kill()
	r.tasks = r.tasks[1:]
	r.ratio(1, 1)
}

// What an enforcer has left behind, because its node kernel was killed, is taken up by the next one.
func testReopened(r *rig) {
	r.insert(r.config.Infinite)
	r.start(Spin, Spin)
	r.await("one is held", 5*time.Second, func() bool { return r.info().Tasks[1].State == slot.Held })
	time.Sleep(200 * time.Millisecond)
	first := r.enforcer
	r.config.Abandon(first)
	r.enforcer = r.config.Open(r)
	for _, p := range r.tasks {
		if err := r.enforcer.Add(p.Task); err != nil {
			r.Fatal(err)
		}
	}
	r.ratio(1, 1)
	r.policies()
	time.Sleep(200 * time.Millisecond)
	if s := r.spent(2 * time.Second); min(s[0], s[1]) > max(s[0], s[1])/50 {
		r.Errorf("with the policy they had %v", s)
	}
	if err := first.Close(); err != nil {
		r.Error(err)
	}
}

// The machine's policy comes first.
func testMachine(r *rig) {
	r.insert(r.config.RoundRobin)
	if _, err := r.manager.Machine().Insert(extension.Request{Object: r.config.Weighted}); err != nil {
		r.Fatal(err)
	}
	r.start(Spin, Spin)
	r.ratio(3, 1)
}
