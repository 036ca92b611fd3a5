// Package schedtest is the contract suite of sched.Enforcer: the same compiled policies give real
// processes the same share of a real core under every enforcer.
package schedtest

import (
	"cmp"
	_ "embed"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/sched"
	"margay/nimble/engine"
)

// Config is what the suite needs to know.
type Config struct {
	Open   func(testing.TB) sched.Enforcer // a new one; the suite closes it, and has one for all its tests but for those that close it
	Engine engine.Engine                   // that runs policies in the node kernel
	CPU    id.CPU                          // where the processes run
	Group  func(testing.TB, *Process)      // puts a process into a control group of its own, and says so in its Task; nil: none

	// Policies are objects for slot sched: weighted (3:1), roundrobin, infinite and message-first.
	Weighted, RoundRobin, Infinite, MessageFirst []byte

	// Hold is how long a task is held: longer than the limit of waiting. Linux's own watchdog looks
	// at runnable threads only, and a held task must have none.
	Hold time.Duration
	// StarvationLimit sets the core's limit of waiting, for the tests of the starvation limit. nil:
	// they take as long as on a node.
	StarvationLimit func(sched.Enforcer, time.Duration)
	// Tolerance is how far a share may be off, as a part of it.
	Tolerance float64
	// Count has turns counted where shares are equal, and time added up until it is as it should be
	// where they are not. Without it time is measured in windows, which is for soak tests: in an
	// emulated guest the host decides when a CPU runs, and so how long a turn really is.
	Count bool
	// Obeyed returns an error if Linux's settings differ from the last decision. nil: unknown.
	Obeyed func(sched.Enforcer) error

	// Abandon does to an enforcer what happens when its node kernel is killed.
	Abandon func(sched.Enforcer)
	// Refusal is the error about a policy that runs too long, if that is detected before it runs.
	// Empty: its faults are reported.
	Refusal string
}

//go:embed testdata/nonsense.o
var nonsense []byte

//go:embed testdata/starve.o
var starve []byte

//go:embed testdata/burn.o
var burn []byte

// StarvationLimit is what a task waits for in tests of the starvation limit.
const StarvationLimit = 250 * time.Millisecond

// core is the number of the core, as the machine would number it.
const core = 1

// job is the job whose processes and policies these are.
const job = 7

// Run runs the suite, or the tests of it that are named.
func Run(t *testing.T, c Config, only ...string) {
	var last sched.Enforcer
	defer func() {
		if last != nil {
			if err := last.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
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
		"starves":       testStarves,
		"burns fuel":    func(r *rig) { r.hostile(burn, cmp.Or(r.config.Refusal, "faults")) },
		"threads":       testThreads,
		"opened again":  testReopened,
		"machine's own": testMachine,
	} {
		if len(only) == 0 || slices.Contains(only, name) {
			t.Run(name, func(t *testing.T) {
				if last == nil {
					last = c.Open(t)
				}
				test(newRig(t, c, &last))
			})
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
	before   *sched.CoreInfo // the core when the first task had come; its counters go on from test to test
}

// newRig makes a rig of the enforcer that last points to, and leaves the one there that it has at
// its end.
func newRig(t *testing.T, c Config, last *sched.Enforcer) *rig {
	r := &rig{T: t, config: c, enforcer: *last}
	var err error
	if r.manager, err = extension.NewManager(c.Engine, 2, t.Logf); err != nil {
		t.Fatal(err)
	}
	r.set = r.manager.Open(job, 1<<20)
	t.Cleanup(func() {
		r.manager.Watch(slot.Sched, nil)
		for _, err := range []error{r.enforcer.SetPolicies(core, nil), r.set.Close(), r.manager.Machine().Close()} {
			if err != nil {
				t.Error(err)
			}
		}
		*last = r.enforcer
		if t.Failed() { // in an unknown state
			if err := r.enforcer.Close(); err != nil {
				t.Error(err)
			}
			*last = nil
		}
	})
	r.manager.Watch(slot.Sched, func(id.Job) { r.policies() })
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
	first := len(r.tasks)
	for _, kind := range kinds {
		p := Start(r, kind, r.config.CPU)
		p.Task.ID, p.Task.Core = sched.ID{Job: job, Rank: id.Rank(len(r.tasks))}, core
		if r.config.Group != nil {
			r.config.Group(r, p)
		}
		r.tasks = append(r.tasks, p)
	}
	for _, p := range r.tasks[first:] {
		p.Begin()
		// A descriptor of the process is open for as long as the enforcer has the task.
		r.Cleanup(func() {
			p.Kill()
			r.enforcer.Remove(p.Task.ID)
		})
		if err := r.enforcer.Add(p.Task); err != nil {
			r.Fatal(err)
		}
		if r.before == nil {
			info := r.info()
			r.before = &info
		}
	}
	r.Cleanup(func() { KillAll(r.tasks) })
}

// spent measures what each process has of the core for some time, or longer: the CPU of the test
// may be late, too.
func (r *rig) spent(d time.Duration) []time.Duration {
	r.Helper()
	before, start := r.ran(), time.Now()
	time.Sleep(d)
	spent := r.since(before)
	r.Logf("of %v: %v", time.Since(start).Round(time.Millisecond), spent)
	return spent
}

// ran returns the processor time of each process.
func (r *rig) ran() []time.Duration {
	all := make([]time.Duration, len(r.tasks))
	for i, p := range r.tasks {
		all[i] = p.Ran()
	}
	return all
}

// since returns what processor time each process has had since ran was asked.
func (r *rig) since(before []time.Duration) []time.Duration {
	all := r.ran()
	for i := range all {
		all[i] -= before[i]
	}
	return all
}

// computes waits until a process has had so much more processor time.
func (r *rig) computes(task int, d time.Duration) {
	r.Helper()
	before := r.tasks[task].Ran()
	r.await("it computes", patience, func() bool { return r.tasks[task].Ran()-before >= d })
}

// holds waits until all but one process are held and stopped, checks that they remain so while that
// one computes, and returns it. It is not always the first: on a slow host the starvation limit may
// give the core to another one before that is held.
func (r *rig) holds(d time.Duration) (running int) {
	r.Helper()
	r.await("all but one are held", patience, func() bool {
		i := r.info()
		running = i.Running
		for task := range r.tasks {
			if task != running && i.Tasks[task].State != slot.Held {
				return false
			}
		}
		return running >= 0
	})
	others := func(spent []time.Duration) (sum time.Duration) {
		for task, d := range spent {
			if task != running {
				sum += d
			}
		}
		return sum
	}
	// A stopping thread wakes others of its process, and each of them stops when it next gets the
	// core, which a busy host may delay: it is runnable until then, also for a second look.
	looks := 0
	r.await("the others have stopped", patience, func() bool {
		looks++
		for task, p := range r.tasks {
			if task != running && p.runnable() {
				looks = 0
			}
		}
		return looks >= 2
	})
	r.computes(running, look) // a turn before may be reported late
	turns := r.count()
	defer r.enforcer.Watch(nil)
	before := r.ran()
	r.computes(running, d)
	spent := r.since(before)
	r.Logf("one is held: %v", spent)
	if n := turns.sum() - turns.of(running); others(spent) > 0 || n > 0 {
		r.Errorf("they had %v, and the others %d turns, while one is to have all", spent, n)
	}
	return running
}

// ratio checks that the processes have parts of the core in the ratio of the weights, within the
// tolerance. A host that does not let the CPU of a guest run for a while spoils a measurement, so
// it is the median that counts.
func (r *rig) ratio(weights ...float64) {
	r.Helper()
	switch {
	case r.config.Count && equal(weights):
		r.turns(weights)
		return
	case r.config.Count:
		r.approach(weights)
		return
	}
	all := make([][]time.Duration, len(weights))
	for range rounds {
		median := make([]time.Duration, len(weights))
		for i, s := range r.spent(measure) {
			all[i] = append(all[i], s)
			sorted := slices.Sorted(slices.Values(all[i]))
			median[i] = sorted[len(sorted)/2]
		}
		if r.near(median, weights) {
			return
		}
	}
	r.Errorf("they had %v, which is not as %v", all, weights)
}

// approach waits until the processes have had processor time in the ratio of the weights, over so
// many turns that it cannot come about by others: a policy that goes by what tasks have had makes
// up for whatever the host did. It does not make up for what was before it was in force, so the
// measurement begins again, each time after twice as many turns: a policy with another ratio has
// few chances.
func (r *rig) approach(weights []float64) {
	r.Helper()
	turns := r.count()
	defer r.enforcer.Watch(nil)
	before, first, most := r.ran(), 0, 4*counted
	var spent []time.Duration
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(look) {
		sum := turns.sum()
		spent = r.since(before)
		if sum-first > counted && r.near(spent, weights) {
			r.Logf("%d turns, the last %d with %v", sum, sum-first, spent)
			return
		}
		if sum-first > most {
			before, first, most = r.ran(), sum, 2*most
		}
	}
	r.Errorf("they had %d turns, and then %v, which is not as %v", turns.sum(), spent, weights)
}

// equal reports whether all weights are the same, but for those that are 0.
func equal(weights []float64) bool {
	highest := slices.Max(weights)
	return !slices.ContainsFunc(weights, func(w float64) bool { return w != 0 && w != highest })
}

// count is how often each process has been given the core.
type count struct {
	mu    sync.Mutex
	total int
	turns []time.Duration // numbers: near takes durations
}

// count begins to count. It ends when the enforcer is watched for something else.
func (r *rig) count() *count {
	c := &count{turns: make([]time.Duration, len(r.tasks))}
	r.enforcer.Watch(func(number id.Core, _ id.Time, to sched.ID, _ string) {
		if number == core {
			c.note(r.tasks, to)
		}
	})
	return c
}

// lastTurn watches the turns of the core. The function it returns returns the length of the last
// turn that ended, and the process that the core went to then.
func (r *rig) lastTurn() func() (next sched.ID, length time.Duration) {
	var mu sync.Mutex
	var next sched.ID
	var begin id.Time
	var length time.Duration
	r.enforcer.Watch(func(number id.Core, at id.Time, to sched.ID, _ string) {
		mu.Lock()
		defer mu.Unlock()
		if number == core {
			next, length, begin = to, time.Duration(at-begin), at
		}
	})
	return func() (sched.ID, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		return next, length
	}
}

// sum returns how many turns there were.
func (c *count) sum() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// of returns how many turns a process had.
func (c *count) of(task int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.turns[task])
}

// turns checks that the processes with a weight get the core equally often, that Linux's settings
// agree, and that each one computes.
func (r *rig) turns(weights []float64) {
	r.Helper()
	before, c := r.ran(), r.count()
	defer r.enforcer.Watch(nil)
	for round := range rounds {
		r.await("turns", patience, func() bool {
			if r.config.Obeyed != nil {
				if err := r.config.Obeyed(r.enforcer); err != nil {
					r.Fatal(err)
				}
			}
			return c.sum() > (round+1)*counted
		})
		c.mu.Lock()
		r.Logf("turns %d", c.turns)
		good := r.near(c.turns, weights)
		c.mu.Unlock()
		for i, spent := range r.since(before) {
			good = good && (weights[i] == 0 || spent > 0)
		}
		if good {
			return
		}
	}
	r.Errorf("turns are not as %v, or a process does not compute", weights)
}

// note takes in that the core goes to a process.
func (c *count) note(tasks []*Process, to sched.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range tasks {
		if p.Task.ID == to && i < len(c.turns) {
			c.turns[i]++
			c.total++
		}
	}
}

// near reports whether times, or numbers of turns, are in the ratio of the weights.
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

// info describes the core, with what was counted in this test.
func (r *rig) info() sched.CoreInfo {
	r.Helper()
	for _, c := range r.enforcer.Cores() {
		if c.Core != core {
			continue
		}
		if r.before != nil {
			c.Switches, c.Asked, c.Rescues = c.Switches-r.before.Switches, c.Asked-r.before.Asked, c.Rescues-r.before.Rescues
		}
		return c
	}
	r.Fatal("the core is not known")
	return sched.CoreInfo{}
}

// await waits until something is so.
func (r *rig) await(what string, d time.Duration, ok func() bool) {
	r.Helper()
	for deadline := time.Now().Add(d); !ok(); time.Sleep(look) {
		if time.Now().After(deadline) {
			r.Fatalf("not within %v: %s; the core is %+v", d, what, r.info())
		}
	}
}

// look is the suite's polling interval. Polling takes the enforcer's CPU and its lock.
const look = 10 * time.Millisecond

// patience is how long anything is waited for that has to come about, however slow the machine is.
const patience = 2 * time.Minute

// A ratio is measured over so many rounds at most, each long enough for the error of a turn to be
// small: a time, or a number of turns.
const (
	measure = 2 * time.Second
	counted = 24
	rounds  = 25
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

// A process has the core for ever, and the held one does not count as starving.
func testInfinite(r *rig) {
	r.insert(r.config.Infinite)
	r.impatient()
	r.start(Spin, Spin)
	r.await("one is held", patience, func() bool { return slices.ContainsFunc(r.info().Tasks, held) })
	rescues := r.info().Rescues
	running := r.holds(r.config.Hold)
	r.await("no thread of the held one is runnable", patience, func() bool { return !r.tasks[1-running].runnable() })
	if i := r.info(); i.Rescues != rescues || i.Running != running || !held(i.Tasks[1-running]) || len(r.manager.List()) != 1 {
		r.Errorf("core %+v", i)
	}
	r.enforcer.Remove(r.tasks[running].Task.ID)
	r.tasks[running].Kill()
	r.computes(1-running, 10*time.Millisecond)
}

// A waiting process does not count, and gets the core when it wakes, however much another one
// computes.
func testBlock(r *rig) {
	if lacks := r.enforcer.Lacks(); lacks[slot.Block]+lacks[slot.Wake] != "" {
		r.Fatalf("not noticed here: %v", lacks)
	}
	r.insert(r.config.RoundRobin)
	r.start(Spin, Wait)
	waits := func() bool { return r.info().Tasks[1].State == slot.Blocked }
	r.await("one waits", patience, waits)
	turns := r.count()
	r.computes(0, 300*time.Millisecond) // 30 turns
	r.enforcer.Watch(nil)
	if n := turns.of(1); n > 10 {
		r.Errorf("the one that waits was given the core %d times", n)
	}
	for range 20 {
		r.tasks[1].Poke()
		r.enforcer.Woken(r.tasks[1].Task.ID)
		if !r.tasks[1].Answered(patience) {
			r.Fatalf("it got no turn; core %+v", r.info())
		}
	}
	r.await("it waits again", patience, waits)
	if i := r.info(); i.Rescues != 0 || i.Switches < 5 { // short turns may pass unseen
		r.Errorf("core %+v", i)
	}
}

// A message takes the core from a process in the middle of its turn, and it gets the core back. On
// a slow host a turn may have ended before the message comes.
func testArrival(r *rig) {
	const quantum = 250 * time.Millisecond
	r.insert(r.config.MessageFirst, extension.Setting{Name: "quantum", Value: uint64(quantum)})
	last := r.lastTurn()
	defer r.enforcer.Watch(nil)
	r.start(Spin, Spin)
	var computed time.Duration
	for round, early := 0, 0; early < 3; round++ {
		if round == rounds {
			r.Fatalf("a message interrupted a turn %d times in %d rounds", early, round)
		}
		r.await("the first one has the core", patience, func() bool { return r.info().Running == 0 })
		before := r.tasks[1].Ran()
		r.tasks[1].messages.Store(1)
		r.enforcer.Arrived(r.tasks[1].Task.ID, 1)
		var length time.Duration
		r.await("the second one computes", patience, func() bool {
			i := r.info()
			var next sched.ID
			next, length = last()
			return i.Running == 1 && i.Tasks[1].Messages == 1 && r.tasks[1].Ran()-before > 5*time.Millisecond && next == r.tasks[1].Task.ID
		})
		if length < quantum {
			early++
		}
		before = r.tasks[0].Ran()
		r.tasks[1].messages.Store(0)
		r.enforcer.Arrived(r.tasks[0].Task.ID, 0) // or any other reason to ask
		r.await("the first one computes again", patience, func() bool { return r.tasks[0].Ran() > before })
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
	r.await("one is held", patience, func() bool { return slices.ContainsFunc(r.info().Tasks, held) })
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

// Processes end, killed or not, and the others share the core; a new one takes part.
func testEnd(r *rig) {
	r.insert(r.config.RoundRobin)
	r.start(Spin, Spin, Spin)
	r.tasks[0].Kill()
	turns := r.count()
	r.await("turns of the others", patience, func() bool { return turns.sum() > len(r.tasks) }) // its last one may be reported late
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
	running := r.holds(100 * time.Millisecond)
	r.enforcer.Remove(r.tasks[(running+1)%3].Task.ID)
	if err := r.enforcer.Close(); err != nil {
		r.Fatal(err)
	}
	for i := range r.tasks {
		r.computes(i, 20*time.Millisecond)
	}
	KillAll(r.tasks)
	r.enforcer = r.config.Open(r) // for the end of the test, and the next one
}

// impatient lowers the starvation limit until the test ends. The core has to be known, by a policy.
func (r *rig) impatient() {
	if r.config.StarvationLimit == nil {
		return
	}
	r.config.StarvationLimit(r.enforcer, StarvationLimit)
	r.Cleanup(func() { r.config.StarvationLimit(r.enforcer, sched.StarvationLimit) })
}

// A policy that lets tasks starve is removed, and the starvation limit gives them turns until then.
func testStarves(r *rig) {
	r.insert(starve)
	r.impatient()
	r.unharmed("it let tasks starve")
}

// hostile checks that a policy does harm only until it is removed, and that its removal is
// reported.
func (r *rig) hostile(object []byte, says string) {
	r.Helper()
	r.insert(object)
	r.unharmed(says)
}

// unharmed does what hostile does, with the policy that there is.
func (r *rig) unharmed(says string) {
	r.Helper()
	r.start(Spin, Spin, Spin)
	r.await("it is removed", patience, func() bool {
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
	r.await("turns", patience, func() bool { return r.info().Why == "turns" })
	for i := range r.tasks {
		r.computes(i, 20*time.Millisecond)
	}
}

// All threads of a process count, also of one that comes later.
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

// What an enforcer has left behind, because its node kernel was killed, is taken up by the next
// one.
func testReopened(r *rig) {
	r.insert(r.config.Infinite)
	r.start(Spin, Spin)
	r.holds(100 * time.Millisecond)
	first := r.enforcer
	r.config.Abandon(first)
	r.enforcer = r.config.Open(r)
	for _, p := range r.tasks {
		if err := r.enforcer.Add(p.Task); err != nil {
			r.Fatal(err)
		}
	}
	r.before = nil
	r.ratio(1, 1)
	r.policies()
	r.await("one is held", patience, func() bool { return slices.ContainsFunc(r.info().Tasks, held) })
	r.holds(100 * time.Millisecond)
	if err := first.Close(); err != nil {
		r.Error(err)
	}
}

func held(t slot.SchedTask) bool { return t.State == slot.Held }

// The machine's policy comes first.
func testMachine(r *rig) {
	r.insert(r.config.RoundRobin)
	if _, err := r.manager.Machine().Insert(extension.Request{Object: r.config.Weighted}); err != nil {
		r.Fatal(err)
	}
	r.start(Spin, Spin)
	r.ratio(3, 1)
}
