//go:build guest

package schedext

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"margay/ext/sched/infinite"
	"margay/ext/sched/messagefirst"
	"margay/ext/sched/roundrobin"
	"margay/ext/sched/weighted"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/sched"
	"margay/kernel/sched/schedtest"
	"margay/nimble"
	"margay/nimble/engine/list"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/verify"
)

// cpu is the application core of the guest.
const cpu = 1

// rig is an enforcer and the processes on its core.
type rig struct {
	t *testing.T
	e *Enforcer

	mu   sync.Mutex
	said []string

	faults  []error
	refused []string
	runs    uint64
	took    time.Duration
}

// lasting is an enforcer that tests reuse, because Linux takes seconds to verify the skeleton.
// current is the rig that uses it.
var (
	lasting *Enforcer
	current atomic.Pointer[rig]
)

// newRig makes a rig with the enforcer of the previous rig.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t}
	current.Store(r)
	if lasting == nil {
		e, err := New(func(format string, args ...any) { current.Load().log(format, args...) })
		if err != nil {
			t.Fatal(err)
		}
		lasting = e
	}
	r.e = lasting
	t.Cleanup(func() {
		r.e.Watch(nil)
		if t.Failed() || r.e.SetPolicies(cpu, nil) != nil { // in an unknown state
			unshare(t)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, line := range r.said {
			t.Log("log: ", line)
		}
		times := make(map[string]int)
		for _, err := range r.faults {
			times[err.Error()]++
		}
		for fault, n := range times { // a guest's console takes a processor a millisecond for each line
			t.Logf("fault, %d times: %s", n, fault)
		}
	})
	return r
}

// unshare closes the enforcer that tests reuse: only one can be attached at a time.
func unshare(t *testing.T) {
	t.Helper()
	if lasting == nil {
		return
	}
	if err := lasting.Close(); err != nil {
		t.Error(err)
	}
	lasting = nil
}

func (r *rig) log(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

// process is a process on the core.
type process struct {
	*schedtest.Process
	r  *rig
	id sched.ID
}

// start starts a process as the task with this rank.
func (r *rig) start(kind schedtest.Kind, rank id.Rank) *process {
	r.t.Helper()
	p := r.launch(kind, rank)
	p.begin()
	return p
}

// two starts processes with the ranks 0 and 1. The first begins when the second is there, as Begin
// demands.
func (r *rig) two(first, second schedtest.Kind) (a, b *process) {
	r.t.Helper()
	a, b = r.launch(first, 0), r.launch(second, 1)
	a.begin()
	b.begin()
	r.t.Cleanup(func() { schedtest.KillAll([]*schedtest.Process{a.Process, b.Process}) })
	return a, b
}

// launch starts a process that waits for its begin.
func (r *rig) launch(kind schedtest.Kind, rank id.Rank) *process {
	r.t.Helper()
	p := &process{Process: schedtest.Start(r.t, kind, cpu), r: r, id: sched.ID{Job: 1, Rank: rank}}
	p.Task.Refuse, p.Task.ID, p.Task.Core, p.Task.Waiting = p.refuse, p.id, cpu, nil
	schedtest.Group(r.t, p.Process)
	r.t.Cleanup(p.end)
	return p
}

// begin lets the process compute, and makes it a task.
func (p *process) begin() {
	p.r.t.Helper()
	p.Begin()
	if err := p.r.e.Add(p.Task); err != nil {
		p.r.t.Fatal(err)
	}
}

// end kills the process and removes it from the enforcer.
func (p *process) end() {
	p.Kill()
	p.r.e.Remove(p.id)
}

// refuse records a call of Task.Refuse.
func (p *process) refuse(err error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.refused = append(p.r.refused, fmt.Sprintf("rank %d: %v", p.id.Rank, err))
}

// stopped reports whether the freezer has stopped the process. Before, it runs for a moment though
// it is held.
func (p *process) stopped() bool {
	events, err := os.ReadFile(filepath.Join(p.Task.Group, "cgroup.events"))
	return err == nil && strings.Contains(string(events), "frozen 1")
}

// turns counts how often each task got the core, by decider.
type turns struct {
	mu    sync.Mutex
	count map[sched.ID]int
	by    map[sched.ID]map[string]bool
}

// count begins to count turns.
func (r *rig) count() *turns {
	c := &turns{count: make(map[sched.ID]int), by: make(map[sched.ID]map[string]bool)}
	r.e.Watch(func(_ id.Core, _ id.Time, to sched.ID, why string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if to == (sched.ID{}) {
			return
		}
		if c.by[to] == nil {
			c.by[to] = make(map[string]bool)
		}
		c.count[to]++
		c.by[to][why] = true
	})
	return c
}

// of returns how many turns a process had.
func (c *turns) of(p *process) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[p.id]
}

// String says how often each task got the core.
func (c *turns) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.count)
}

// counted is the number of turns over which tests judge a scheduler. Their length depends on the
// host.
const counted = 24

// takeTurns waits until all processes have had an equal number of turns.
func (r *rig) takeTurns(what string, all ...*process) {
	r.t.Helper()
	before := ran(all)
	c := r.count()
	defer r.e.Watch(nil)
	check.AwaitFor(r.t, 2*time.Minute, what, func() bool {
		least, most := c.of(all[0]), c.of(all[0])
		for i, p := range all {
			least, most = min(least, c.of(p)), max(most, c.of(p))
			if p.Ran() == before[i] {
				return false
			}
		}
		return least > counted/len(all) && least > most*9/10
	})
	r.t.Logf("%s: %v", what, c)
}

// share waits until the first process has had this share of the processes' time, after enough turns
// to rule out chance: the policy makes up for disturbances by the host.
func (r *rig) share(what string, want float64, all ...*process) {
	r.t.Helper()
	before := ran(all)
	c := r.count()
	defer r.e.Watch(nil)
	check.AwaitFor(r.t, 2*time.Minute, what, func() bool {
		now, sum := ran(all), time.Duration(0)
		for i := range now {
			sum += now[i] - before[i]
		}
		got := float64(now[0]-before[0]) / float64(max(sum, 1))
		return c.of(all[0])+c.of(all[1]) > counted && got > want-0.02 && got < want+0.02
	})
}

// ran returns how much processor time each process has had.
func ran(all []*process) (times []time.Duration) {
	for _, p := range all {
		times = append(times, p.Ran())
	}
	return times
}

// policy makes a policy of an object.
func (r *rig) policy(file []byte, variables map[string]any) *sched.Policy {
	r.t.Helper()
	specs, err := object.ELF(file)
	if err != nil {
		r.t.Fatal(err)
	}
	services, err := service.NewTable(service.Linux()...)
	if err != nil {
		r.t.Fatal(err)
	}
	lastHandle++
	p := &sched.Policy{
		Handle: lastHandle, Name: specs[0].Name, Spec: specs[0],
		Insert: nimble.Options{
			Services: services, Context: verify.Context{Size: slot.SchedSize, Readable: true, Writable: true}, Variables: variables,
		},
	}
	p.Fault = func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.faults = append(r.faults, err)
	}
	p.Remove = func(why string) { p.Fault(errors.New(why)) }
	p.Ran = func(runs uint64, took time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.runs, r.took = r.runs+runs, r.took+took
	}
	return p
}

var lastHandle id.Handle

func (r *rig) set(policies ...*sched.Policy) {
	r.t.Helper()
	start := time.Now()
	if err := r.e.SetPolicies(cpu, policies); err != nil {
		r.t.Fatal(err)
	}
	r.t.Logf("set %d policies in %v", len(policies), time.Since(start))
}

func (r *rig) noFaults() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) > 0 || len(r.said) > 0 {
		r.t.Errorf("faults %v, log %q", r.faults, r.said)
	}
}

// TestSuite runs the suite that every enforcer must pass.
func TestSuite(t *testing.T) {
	unshare(t)
	schedtest.Run(t, config(t))
}

// config configures the suite for the application core of a guest. Shares are counted in turns;
// TestTime measures time.
func config(t *testing.T) schedtest.Config {
	return schedtest.Config{
		Open: func(t testing.TB) sched.Enforcer {
			e, err := New(t.Logf)
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
		Engine: list.Automatic(), CPU: cpu, Group: schedtest.Group, Hold: schedtest.StarvationLimit * 3 / 2, Tolerance: 0.05, Count: true,
		Weighted: weighted.Object, RoundRobin: roundrobin.Object, Infinite: infinite.Object, MessageFirst: messagefirst.Object,
		Abandon:         func(e sched.Enforcer) { abandon(t, e.(*Enforcer)) },
		StarvationLimit: func(e sched.Enforcer, d time.Duration) { e.(*Enforcer).skeleton.given(cpu).StarvationLimit = uint64(d) },
		Refusal:         "sched_ext does not take it",
	}
}

// abandon closes what Linux closes when a node kernel is killed, and releases no task.
func abandon(t *testing.T, e *Enforcer) {
	e.mu.Lock()
	e.closed = true
	close(e.done)
	err := e.skeleton.detach()
	e.skeleton.wake()
	e.mu.Unlock()
	e.running.Wait()
	for _, c := range e.cores {
		err = errors.Join(err, e.drop(c.chain))
	}
	if err := errors.Join(err, e.skeleton.Close()); err != nil {
		t.Error(err)
	}
}

// TestHold lets a process keep the core, under a policy that is loaded once. TestTime does so for
// longer than the timeout of Linux's watchdog.
func TestHold(t *testing.T) {
	r := newRig(t)
	a, b := r.two(schedtest.Spin, schedtest.Spin)
	r.takeTurns("turns", a, b)
	endless := r.policy(infinite.Object, nil)
	r.set(endless)
	chain := r.e.cores[cpu].chain
	r.set(endless)
	if r.e.cores[cpu].chain != chain {
		t.Error("a policy that is there was given to Linux again")
	}
	check.AwaitFor(t, 2*time.Minute, "one stopped", func() bool { return a.stopped() != b.stopped() })
	runs, still := a, b
	if a.stopped() {
		runs, still = b, a
	}
	computes := func(d time.Duration) {
		begin := runs.Ran()
		check.AwaitFor(t, 2*time.Minute, "processor time", func() bool { return runs.Ran()-begin > d })
	}
	computes(0) // so the core has left the one that is stopped
	before, c := still.Ran(), r.count()
	computes(300 * time.Millisecond)
	if after := still.Ran(); after != before || c.of(still) > 0 {
		t.Errorf("from %v to %v, turns %v", before, after, c)
	}
	r.set()
	r.takeTurns("turns again", a, b)
	r.noFaults()
}

// assembled makes a policy of assembly.
func (r *rig) assembled(lines ...string) *sched.Policy {
	r.t.Helper()
	p := r.policy(roundrobin.Object, nil)
	p.Name, p.Spec = "assembled", &object.Spec{Name: "assembled", Section: "sched"}
	for _, line := range lines {
		i, err := isa.Parse(line)
		if err != nil {
			r.t.Fatal(err)
		}
		p.Spec.Instructions = isa.Append(p.Spec.Instructions, i)
	}
	return p
}

func (r *rig) blamed(text string) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, err := range r.faults {
			if strings.Contains(err.Error(), text) {
				return true
			}
		}
		return false
	}
}

// byStarvationLimit waits until the starvation limit has given the core to the first process, and
// checks that the policy gives it only to the other one.
func (r *rig) byStarvationLimit(a, b *process) {
	r.t.Helper()
	check.AwaitFor(r.t, 2*time.Minute, "the policy's choice", func() bool { return r.e.Cores()[0].Why == "assembled" })
	c := r.count()
	defer r.e.Watch(nil)
	check.AwaitFor(r.t, 2*time.Minute, "a rescue, and the policy's choice again", func() bool { return c.of(a) >= 1 && c.of(b) >= 1 })
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.by[a.id]) != 1 || !c.by[a.id]["starvation limit"] || len(c.by[b.id]) != 1 || !c.by[b.id]["assembled"] {
		r.t.Errorf("the core was given by %v", c.by)
	}
}

// TestNonsense returns invalid answers: tasks still take turns, and the faults are reported.
func TestNonsense(t *testing.T) {
	r := newRig(t)
	a, b := r.two(schedtest.Spin, schedtest.Spin)
	r.set(r.assembled("mov r0, 7", "exit"))
	check.AwaitFor(t, 2*time.Minute, "task 7 of 2", r.blamed("it chose task 7 of 2"))
	r.takeTurns("with nonsense", a, b)
	r.set(r.assembled("stdw [r1+32], 3", "mov r0, 1", "exit"))
	check.AwaitFor(t, 2*time.Minute, "task 1 held", r.blamed("it chose task 1, which it holds"))
	r.takeTurns("with more nonsense", a, b)
	// A policy's changes to its context do not change its later input.
	r.set(r.assembled("stw [r1+8], 8", "mov r0, 5", "exit"))
	check.AwaitFor(t, 2*time.Minute, "task 5 of 2", r.blamed("it chose task 5 of 2"))
	// The next one of the chain is asked, and the first that has an opinion decides.
	r.set(r.assembled("lddw r0, 0xffffffffffffffff", "exit"), r.assembled("mov r0, 255", "exit"),
		r.assembled("mov r0, 1", "exit"))
	r.byStarvationLimit(a, b)
	// An answer is a number: kernel addresses are never shown.
	r.set(r.assembled("mov r0, r10", "exit"))
	check.AwaitFor(t, 2*time.Minute, "an address refused", r.blamed("sched_ext does not take it: refused by Linux"))
}

// TestSlow inserts policies that run as long as Linux allows, always or in three of four runs:
// tasks still take turns, and the faults are reported.
func TestSlow(t *testing.T) {
	r := newRig(t)
	a, b := r.two(schedtest.Spin, schedtest.Spin)
	work := []string{"mov r7, 0", "call 5", "add r7, 1", "jlt r7, 12288, -3"} // the time, 12,288 times
	r.set(r.assembled(append(work, "mov r0, 255", "exit")...))
	check.AwaitFor(t, 2*time.Minute, "a fault", r.blamed("it worked for "))
	r.set()
	r.takeTurns("turns", a, b)
	r.mu.Lock()
	t.Logf("%d runs took %v", r.runs, r.took)
	if r.runs < 4 || r.took < time.Duration(r.runs)*500*time.Microsecond {
		t.Errorf("%d runs took %v", r.runs, r.took)
	}
	r.faults = nil
	r.mu.Unlock()
	count := []string{"ldxdw r6, [r1+72]", "add r6, 1", "stxdw [r1+72], r6", "and r6, 3", fmt.Sprintf("jeq r6, 0, +%d", len(work))}
	r.set(r.assembled(slices.Concat(count, work, []string{"mov r0, 255", "exit"})...))
	check.AwaitFor(t, 2*time.Minute, "a fault of three runs in four", r.blamed("it worked for "))
	r.set()
	r.takeTurns("turns again", a, b)
}

// TestLeave runs a process that leaves sched_ext.
func TestLeave(t *testing.T) {
	r := newRig(t)
	a, b := r.two(schedtest.Spin, schedtest.Leave)
	check.AwaitFor(t, 2*time.Minute, "a refusal", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.refused) > 0
	})
	r.takeTurns("after it was put back", a, b)
	if want := "rank 1: " + errLeft.Error(); len(r.refused) != 1 || r.refused[0] != want {
		t.Errorf("refused: %q, want %q once", r.refused, want)
	}
}

// TestBorn runs a process whose threads make threads outside sched_ext, as each does that Linux is
// copying while the node kernel gives it to its task.
func TestBorn(t *testing.T) {
	r := newRig(t)
	p := r.start(schedtest.Breed, 0)
	owner, makers := r.e.tasks[p.id].owner, make(map[int]bool)
	threads := r.e.skeleton.collection.Maps["threads"]
	if err := each(p.Task.PID, func(tid int) error {
		makers[tid] = true
		err := threads.Delete(int32(tid))
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil // a thread of Go's runtime that has just been made
		}
		return errors.Join(err, setPolicy(tid, unix.SCHED_NORMAL), threads.Put(int32(tid), owner))
	}); err != nil {
		t.Fatal(err)
	}
	inside := func(which func(tid int) bool) func() bool {
		return func() bool {
			all, inside := 0, 0
			if err := each(p.Task.PID, func(tid int) error {
				a, err := unix.SchedGetAttr(tid, 0)
				if err == nil && which(tid) {
					all++
					if a.Policy == unix.SCHED_EXT {
						inside++
					}
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return all >= 4 && inside == all
		}
	}
	check.AwaitFor(t, 2*time.Minute, "new threads in sched_ext", inside(func(tid int) bool { return !makers[tid] }))
	// When events were lost, threads of all ages are looked for.
	r.e.skeleton.core(cpu).lost().Add(1)
	check.AwaitFor(t, 2*time.Minute, "all threads in sched_ext", inside(func(int) bool { return true }))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refused) > 0 {
		t.Errorf("refused: %q", r.refused)
	}
}

// TestBlocking runs processes that sometimes wait, and some with many threads. A task that the
// host of the guest keeps waiting is none that a policy lets starve, so the limit is long.
func TestBlocking(t *testing.T) {
	r := newRig(t)
	given := r.e.skeleton.given(cpu)
	before := given.StarvationLimit
	given.StarvationLimit = uint64(10 * time.Minute)
	defer func() { given.StarvationLimit = before }()
	many, one := r.two(schedtest.SpinFour, schedtest.Spin)
	rescues := r.e.Cores()[0].Rescues
	r.takeTurns("4 threads and one", many, one)
	many.end()
	blink := r.start(schedtest.Blink, 2)
	r.bothGetOn("turns", blink, one)
	r.set(r.policy(roundrobin.Object, nil))
	r.bothGetOn("roundrobin", blink, one)
	for _, c := range r.e.Cores() {
		if len(c.Tasks) != 2 || c.Tasks[0].Rank != 1 || c.Tasks[1].Rank != 2 || c.Rescues > rescues {
			t.Errorf("%+v", c)
		}
	}
	r.noFaults()
}

// bothGetOn waits until the named decider has often given the core to each of two processes, one of
// which pauses.
func (r *rig) bothGetOn(why string, all ...*process) {
	r.t.Helper()
	check.AwaitFor(r.t, 2*time.Minute, why, func() bool { return r.e.Cores()[0].Why == why })
	before := ran(all)
	c := r.count()
	defer r.e.Watch(nil)
	check.AwaitFor(r.t, 2*time.Minute, "turns of who waits and who does not", func() bool {
		for i, p := range all {
			if c.of(p) < counted/2 || p.Ran()-before[i] < 50*time.Millisecond {
				return false
			}
		}
		return true
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range all {
		if len(c.by[p.id]) != 1 || !c.by[p.id][why] {
			r.t.Errorf("rank %d was given the core by %v, not by %s", p.id.Rank, c.by[p.id], why)
		}
	}
}

// TestArrival inserts a policy that gives the core to a task with a message.
func TestArrival(t *testing.T) {
	r := newRig(t)
	a, b := r.two(schedtest.Spin, schedtest.Spin)
	r.set(r.policy(messagefirst.Object, map[string]any{"quantum": uint64(time.Second)}))
	var took []time.Duration
	for n := range 30 {
		p := []*process{a, b}[n%2]
		place := uint32(n % 2)
		state := r.e.skeleton.core(cpu)
		before := state.Switches
		start := time.Now()
		r.e.Arrived(p.id, 1)
		for end := time.Now().Add(5 * time.Second); state.current().Load() != place && time.Now().Before(end); {
		}
		if state.current().Load() != place {
			t.Fatalf("message %d: %+v", n, r.e.Cores())
		}
		if state.Switches != before {
			took = append(took, time.Since(start))
		}
		r.e.Arrived(p.id, 0)
		time.Sleep(3 * time.Millisecond)
	}
	slices.Sort(took)
	t.Logf("from arrival to running, %d times: median %v, 99 %% %v", len(took), took[len(took)/2], took[len(took)*99/100])
	if len(took) < 8 {
		t.Errorf("it changed hands only %d times", len(took))
	}
	r.noFaults()
}

// TestThreads finds the threads of this process and of its child.
func TestThreads(t *testing.T) {
	child := schedtest.Start(t, schedtest.Blink, cpu)
	seen := make(map[int]int)
	if err := each(os.Getpid(), func(tid int) error { seen[tid]++; return nil }); err != nil {
		t.Fatal(err)
	}
	if seen[os.Getpid()] != 1 || seen[child.Task.PID] != 1 {
		t.Errorf("%v has not %d and %d once", seen, os.Getpid(), child.Task.PID)
	}
	if err := each(1<<30, func(tid int) error { return fmt.Errorf("thread %d", tid) }); err != nil {
		t.Errorf("a process that is not there: %v", err)
	}
}

// TestEviction makes Linux eject the skeleton repeatedly. This patches Linux's code, which
// emulation does not always survive while all cores are busy: so they are busy only once. It is the
// last test, because no other can use the enforcer after it.
func TestEviction(t *testing.T) {
	r := newRig(t)
	evict := func(n int) {
		t.Helper()
		check.AwaitFor(t, 2*time.Minute, "attached", func() bool { // again, which it is not yet when the log has the end before
			state, err := os.ReadFile("/sys/kernel/sched_ext/state")
			return err == nil && string(state) == "enabled\n"
		})
		if err := os.WriteFile("/proc/sysrq-trigger", []byte("S"), 0); err != nil {
			t.Fatal(err)
		}
		check.AwaitFor(t, 2*time.Minute, "eviction", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.said) >= n
		})
	}
	r.set(r.policy(weighted.Object, map[string]any{"weight0": uint32(3), "weight1": uint32(1)}))
	a, b := r.two(schedtest.Spin, schedtest.Spin)
	evict(1)
	r.share("weighted after an eviction", 0.75, a, b)
	a.end()
	b.end()
	evict(2)
	r.e.skeleton.wake() // the event of the next one is lost
	for n := 3; n <= maxEvictions; n++ {
		evict(n)
	}
	err := r.e.SetPolicies(cpu, nil)
	if err == nil || !strings.Contains(err.Error(), "ended the scheduler 3 times") {
		t.Error(err)
	}
}
