//go:build guest

package schedext

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/sched/infinite"
	"margay/ext/sched/messagefirst"
	"margay/ext/sched/roundrobin"
	"margay/ext/sched/weighted"
	"margay/kernel/sched"
	"margay/kernel/sched/schedtest"
	"margay/kernel/slot"
	"margay/nimble"
	"margay/nimble/engine/list"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/verify"
)

// cpu is the application core of the guest.
const cpu = 1

// TestMain lets the test binary be a process that shares the core.
func TestMain(m *testing.M) {
	if role := os.Getenv("MARGAY_TEST_ROLE"); role != "" {
		play(role)
		return
	}
	schedtest.Main()
	os.Exit(m.Run())
}

// play does what a role says until the process is killed.
func play(role string) {
	fmt.Println("up")
	switch role {
	case "spin":
		spin()
	case "spin4": // on several threads
		runtime.GOMAXPROCS(4)
		for range 3 {
			go spin()
		}
		spin()
	case "leave": // takes a scheduling policy before which all others have to wait
		runtime.LockOSThread()
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
		}
		if err := setPolicy(0, unix.SCHED_NORMAL); err == nil {
			spin()
		}
	case "blink": // computes and waits in turns
		for {
			for end := time.Now().Add(5 * time.Millisecond); time.Now().Before(end); {
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func spin() {
	for n := 0; ; n++ {
	}
}

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

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t}
	e, err := New(func(format string, args ...any) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.said = append(r.said, fmt.Sprintf(format, args...))
	})
	if err != nil {
		t.Fatal(err)
	}
	r.e = e
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, line := range r.said {
			t.Log("log: ", line)
		}
	})
	return r
}

// process is a process on the core.
type process struct {
	*exec.Cmd
	r  *rig
	id sched.ID
}

// start starts a process in a role, as the task with that rank.
func (r *rig) start(role string, rank uint32) *process {
	r.t.Helper()
	p := &process{r: r, id: sched.ID{Job: 1, Rank: rank}}
	p.Cmd = exec.Command("/proc/self/exe")
	p.Env = []string{"MARGAY_TEST_ROLE=" + role}
	out, err := p.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	group := filepath.Join("/sys/fs/cgroup", fmt.Sprintf("rank%d", rank))
	if err := os.MkdirAll(group, 0o755); err != nil {
		r.t.Fatal(err)
	}
	dir, err := os.Open(group)
	if err != nil {
		r.t.Fatal(err)
	}
	defer dir.Close()
	pidfd := -1
	p.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), PidFD: &pidfd}
	func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var all, one unix.CPUSet
		_ = unix.SchedGetaffinity(0, &all)
		one.Set(cpu)
		_ = unix.SchedSetaffinity(0, &one)
		err = p.Start()
		_ = unix.SchedSetaffinity(0, &all)
	}()
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		p.Process.Kill()
		os.WriteFile(filepath.Join(group, "cgroup.freeze"), []byte("0"), 0)
		p.Wait()
	})
	task := sched.Task{Refuse: p.refuse, ID: p.id, Core: cpu, CPU: cpu, PID: p.Process.Pid, Process: os.NewFile(uintptr(pidfd), "pidfd"), Group: group}
	if err := r.e.Add(task); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// refuse notes what the process was refused.
func (p *process) refuse(err error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.refused = append(p.r.refused, fmt.Sprintf("rank %d: %v", p.id.Rank, err))
}

// ran returns how much processor time a process has had, as Linux counts it.
func (p *process) ran() (sum time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.Process.Pid))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if words := strings.Fields(string(text)); len(words) > 0 {
			n, _ := strconv.ParseInt(words[0], 10, 64)
			sum += time.Duration(n)
		}
	}
	return sum
}

// during returns what share of the processes' time each one had.
func during(d time.Duration, all ...*process) []float64 {
	before := make([]time.Duration, len(all))
	for i, p := range all {
		before[i] = p.ran()
	}
	time.Sleep(d)
	shares, sum := make([]float64, len(all)), time.Duration(0)
	for i, p := range all {
		before[i] = p.ran() - before[i]
		sum += before[i]
	}
	for i := range shares {
		shares[i] = float64(before[i]) / float64(max(sum, 1))
	}
	return shares
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

var lastHandle uint32

func (r *rig) set(policies ...*sched.Policy) {
	r.t.Helper()
	start := time.Now()
	if err := r.e.SetPolicies(cpu, policies); err != nil {
		r.t.Fatal(err)
	}
	r.t.Logf("set %d policies in %v", len(policies), time.Since(start))
}

// follows waits until the first of the processes has such a share of their time.
func follows(t *testing.T, what string, want float64, all ...*process) {
	t.Helper()
	var got []float64
	for range 10 {
		got = during(3*time.Second, all...)
		t.Logf("%s: %.3f, want %.2f", what, got, want)
		if got[0] > want-0.05 && got[0] < want+0.05 {
			return
		}
	}
	t.Errorf("%s: %.3f, want %.2f", what, got, want)
}

func (r *rig) noFaults() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) > 0 || len(r.said) > 0 {
		r.t.Errorf("faults %v, log %q", r.faults, r.said)
	}
}

// TestSuite is what every enforcer must do.
func TestSuite(t *testing.T) {
	schedtest.Run(t, schedtest.Config{
		Open: func(t testing.TB) sched.Enforcer {
			e, err := New(t.Logf)
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
		Engine: list.Automatic(), CPU: cpu, Group: schedtest.Group, Watchdog: 31 * time.Second, Tolerance: 0.05,
		Weighted: weighted.Object, RoundRobin: roundrobin.Object, Infinite: infinite.Object, MessageFirst: messagefirst.Object,
		Abandon: func(e sched.Enforcer) { abandon(t, e.(*Enforcer)) },
		Refusal: "sched_ext does not take it",
	})
}

// abandon closes what Linux would close when the node kernel is killed, and gives nothing back.
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

// TestHold has a process keep the core for longer than Linux's watchdog would let others wait.
func TestHold(t *testing.T) {
	r := newRig(t)
	a, b := r.start("spin", 0), r.start("spin", 1)
	follows(t, "turns", 0.5, a, b)
	endless := r.policy(infinite.Object, nil)
	r.set(endless)
	chain := r.e.cores[cpu].chain
	r.set(endless)
	if r.e.cores[cpu].chain != chain {
		t.Error("a policy that is there was given to Linux again")
	}
	time.Sleep(time.Second)
	before := interrupts()
	shares := during(35*time.Second, a, b)
	t.Logf("infinite: %.3f, %d interrupts a second; %+v", shares, (interrupts()-before)/35, r.e.Cores())
	if shares[0] != 0 && shares[1] != 0 {
		t.Errorf("infinite: %.3f", shares)
	}
	r.set()
	follows(t, "turns again", 0.5, a, b)
	r.noFaults()
}

// interrupts returns how many there were on the core.
func interrupts() (n int) {
	text, _ := os.ReadFile("/proc/interrupts")
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > cpu+1 && strings.HasSuffix(words[0], ":") {
			count, _ := strconv.Atoi(words[cpu+1])
			n += count
		}
	}
	return n
}

// assembled makes a policy of assembly.
func (r *rig) assembled(lines ...string) *sched.Policy {
	r.t.Helper()
	p := r.policy(roundrobin.Object, nil)
	p.Spec = &object.Spec{Name: "assembled", Section: "sched"}
	for _, line := range lines {
		i, err := isa.Parse(line)
		if err != nil {
			r.t.Fatal(err)
		}
		p.Spec.Instructions = isa.Append(p.Spec.Instructions, i)
	}
	return p
}

// until waits for something to come about.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
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

// TestNonsense has answers that make no sense: tasks take turns all the same, and somebody hears of it.
func TestNonsense(t *testing.T) {
	r := newRig(t)
	a, b := r.start("spin", 0), r.start("spin", 1)
	r.set(r.assembled("mov r0, 7", "exit"))
	until(t, "task 7 of 2", r.blamed("it chose task 7 of 2"))
	follows(t, "with nonsense", 0.5, a, b)
	r.set(r.assembled("stdw [r1+32], 3", "mov r0, 1", "exit"))
	until(t, "task 1 held", r.blamed("it chose task 1, which it holds"))
	follows(t, "with more nonsense", 0.5, a, b)
	// What a policy writes into its context does not change what it is told.
	r.set(r.assembled("stw [r1+8], 8", "mov r0, 5", "exit"))
	until(t, "task 5 of 2", r.blamed("it chose task 5 of 2"))
	// The next one of the chain is asked, and the first that has an opinion decides.
	r.set(r.assembled("lddw r0, 0xffffffffffffffff", "exit"), r.assembled("mov r0, 255", "exit"),
		r.assembled("mov r0, 1", "exit"))
	follows(t, "chain", 0.005, a, b)
	// An answer is a number: addresses of Linux's are not shown to anybody.
	r.set(r.assembled("mov r0, r10", "exit"))
	until(t, "an address refused", r.blamed("sched_ext does not take it: refused by Linux"))
}

// TestSlow has a policy that works for too long, as far as Linux lets it: tasks take turns all the same, and somebody hears of it.
func TestSlow(t *testing.T) {
	r := newRig(t)
	a, b := r.start("spin", 0), r.start("spin", 1)
	work := slices.Repeat([]string{"call 5"}, 12<<10) // the time
	r.set(r.assembled(append(work, "mov r0, 255", "exit")...))
	until(t, "a fault", r.blamed("it worked for "))
	r.set()
	follows(t, "turns", 0.5, a, b)
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("%d runs took %v", r.runs, r.took)
	if r.runs < 4 || r.took < time.Duration(r.runs)*500*time.Microsecond {
		t.Errorf("%d runs took %v", r.runs, r.took)
	}
}

// TestLeave has a process that wants to be none of sched_ext's any more.
func TestLeave(t *testing.T) {
	r := newRig(t)
	a, b := r.start("spin", 0), r.start("leave", 1)
	until(t, "a refusal", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.refused) > 0
	})
	follows(t, "after it was put back", 0.5, a, b)
	if want := "rank 1: " + errLeft.Error(); len(r.refused) != 1 || r.refused[0] != want {
		t.Errorf("refused: %q, want %q once", r.refused, want)
	}
}

// TestBlocking has processes that wait now and then, and some with many threads.
func TestBlocking(t *testing.T) {
	r := newRig(t)
	many, one := r.start("spin4", 0), r.start("spin", 1)
	follows(t, "4 threads and one", 0.5, many, one)
	many.end()
	blink := r.start("blink", 2)
	if shares := during(3*time.Second, blink, one); shares[0] < 0.1 || shares[1] < 0.4 {
		t.Errorf("who waits and who does not: %.3f", shares)
	}
	r.set(r.policy(roundrobin.Object, nil))
	if shares := during(3*time.Second, blink, one); shares[0] < 0.1 || shares[1] < 0.4 {
		t.Errorf("who waits and who does not: %.3f", shares)
	}
	for _, c := range r.e.Cores() {
		if len(c.Tasks) != 2 || c.Tasks[0].Rank != 1 || c.Tasks[1].Rank != 2 || c.Rescues > 0 {
			t.Errorf("%+v", c)
		}
	}
	r.noFaults()
}

// end kills a process and tells the enforcer.
func (p *process) end() {
	p.Process.Kill()
	p.Wait()
	p.r.e.Remove(p.id)
}

// TestEviction has Linux end the skeleton, again and again. Code of Linux changes with that, and emulation does not always stand that
// while all cores are busy: so they are once.
func TestEviction(t *testing.T) {
	r := newRig(t)
	evict := func(n int) {
		t.Helper()
		until(t, "attached", func() bool { // again, which it is not yet when the log has the end before
			state, err := os.ReadFile("/sys/kernel/sched_ext/state")
			return err == nil && string(state) == "enabled\n"
		})
		if err := os.WriteFile("/proc/sysrq-trigger", []byte("S"), 0); err != nil {
			t.Fatal(err)
		}
		until(t, "eviction", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.said) >= n
		})
	}
	r.set(r.policy(weighted.Object, map[string]any{"weight0": uint32(3), "weight1": uint32(1)}))
	a, b := r.start("spin", 0), r.start("spin", 1)
	evict(1)
	follows(t, "weighted after an eviction", 0.75, a, b)
	a.end()
	b.end()
	for n := 2; n <= maxEvictions; n++ {
		evict(n)
	}
	err := r.e.SetPolicies(cpu, nil)
	if err == nil || !strings.Contains(err.Error(), "ended the scheduler 3 times") {
		t.Error(err)
	}
}

// TestArrival has a policy that gives the core to whom a message has come for.
func TestArrival(t *testing.T) {
	r := newRig(t)
	a, b := r.start("spin", 0), r.start("spin", 1)
	r.set(r.policy(messagefirst.Object, map[string]any{"quantum": uint64(time.Second)}))
	var took []time.Duration
	for n := range 200 {
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
	if len(took) < 50 {
		t.Errorf("it changed hands only %d times", len(took))
	}
	r.noFaults()
}

// TestThreads finds the threads of this process and of its child.
func TestThreads(t *testing.T) {
	child := exec.Command("/proc/self/exe")
	child.Env = []string{"MARGAY_TEST_ROLE=blink"}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	seen := make(map[int]int)
	if err := each(os.Getpid(), func(tid int) error { seen[tid]++; return nil }); err != nil {
		t.Fatal(err)
	}
	if seen[os.Getpid()] != 1 || seen[child.Process.Pid] != 1 {
		t.Errorf("%v has not %d and %d once", seen, os.Getpid(), child.Process.Pid)
	}
	if err := each(1<<30, func(tid int) error { return fmt.Errorf("thread %d", tid) }); err != nil {
		t.Errorf("a process that is not there: %v", err)
	}
}
