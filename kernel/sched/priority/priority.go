// Package priority shares cores among processes by real-time priorities. It decides in the node
// kernel (sched.Core) and needs nothing of Linux that an ordinary kernel does not have.
//
// The threads of the chosen task have a higher priority than the threads of ready tasks. Ready
// tasks are not stopped, so that the core is not idle when the chosen task leaves it. A waiting
// task has a still higher priority: when it wakes, it gets the core until the policy has been
// asked. Held tasks are frozen, by their control group or by SIGSTOP. A chosen task that has the
// core without limit, on a CPU without other work, needs no priority.
//
// Two tracepoints of Linux, filtered by these priorities if the CPU has other work, report when a
// task begins to wait and when it is woken. They do so on another CPU, or when no task waits for
// the core. Without them, records of all context switches (perf_event_open) report it on the core
// itself at each switch: this is why a waiting task must get the core first. Linux patches its own
// code for the first user of either, and again after the last. The enforcer is both, so that no
// core stops for that while applications run.
//
// All of this applies only to a core that several tasks share or that has a policy; otherwise Linux
// schedules the task. Linux reserves 5 % of a CPU for tasks that are not real-time (the fair
// server, since Linux 6.12; before, sched_rt_runtime_us left 5 % idle). Only the host can change
// that. The node kernel itself is not real-time: a thread that reaps a process spins inside Linux,
// and one that returns from a system call sometimes spins in the Go runtime, waiting for threads
// that it would keep from running. It avoids the CPUs of shared cores. On a host that others use
// too, one CPU, the same for all nodes there, never gets real-time tasks: 5 % of each CPU would not
// be enough for the host.
//
// Without the right to set real-time priorities, on that CPU, and on a core whose CPU is the node
// kernel's last one, all tasks but the chosen one are stopped, unless they wait. Then polling
// detects blocking and waking, and the core is idle until it does. Lacks or the log reports that.
//
// Locks, outermost first: core.mu guards everything of a core, also while a policy is asked;
// Enforcer.mu guards the table of cores; core.ringing, taken last, keeps the doorbell open while it
// is rung. No holder of either waits for a goroutine.
package priority

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/hardware"
	"margay/kernel/sched"
)

// Enforcer shares cores. It implements sched.Enforcer.
type Enforcer struct {
	log    func(format string, args ...any)
	watch  atomic.Pointer[sched.Watcher]
	stops  error        // why priorities cannot be had; nil: they can
	deaf   error        // why context switches cannot be seen
	points *tracepoints // nil: all context switches are recorded
	asked  []*os.File   // silent events that keep these kinds enabled

	mu      sync.Mutex
	cores   map[id.Core]*core
	tasks   map[sched.ID]*core
	host    bool           // the first of the allowed CPUs is the host's
	allowed []id.CPU       // CPUs that the node kernel had before it left any to tasks
	taken   map[id.CPU]int // CPUs where tasks are real-time: on how many cores
}

// Open detects the available mechanisms. On a host, the CPUs have work besides the nodes.
func Open(host bool, log func(format string, args ...any)) *Enforcer {
	e := &Enforcer{log: log, host: host, cores: make(map[id.Core]*core), tasks: make(map[sched.ID]*core), taken: make(map[id.CPU]int)}
	if e.stops = tryPriorities(); e.stops != nil {
		e.deaf = e.stops
	} else {
		e.askEvents()
	}
	return e
}

// askEvents finds out whether and how context switches can be seen.
func (e *Enforcer) askEvents() {
	cpus, err := hardware.Allowed(os.Getpid())
	if err != nil {
		e.deaf = err
		return
	}
	points, err := findTracepoints()
	if err == nil {
		e.asked, err = points.ask(cpus[0])
	}
	if err == nil {
		e.points = points
		return
	}
	var f *os.File
	if f, e.deaf = askSwitches(cpus[0]); e.deaf == nil {
		e.asked = []*os.File{f}
		e.log("every context switch of shared cores is recorded, which delays waking tasks: %v", err)
	}
}

// tryPriorities finds out whether threads can be given priorities.
func tryPriorities() error {
	tried := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := set(0, ready)
		if err == nil {
			err = set(0, ordinary)
		}
		tried <- err
	}()
	return <-tried
}

// Watch implements sched.Enforcer.
func (e *Enforcer) Watch(w sched.Watcher) {
	if w == nil {
		e.watch.Store(nil)
		return
	}
	e.watch.Store(&w)
	for _, c := range e.opened() {
		c.mu.Lock()
		c.decision.TellAgain()
		c.mu.Unlock()
	}
}

// opened returns the cores that there are.
func (e *Enforcer) opened() []*core {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.cores))
}

// Name implements sched.Enforcer.
func (e *Enforcer) Name() string {
	if e.stops != nil {
		return "stop"
	}
	return "priority"
}

// Lacks implements sched.Enforcer.
func (e *Enforcer) Lacks() map[slot.Why]string {
	if e.deaf == nil {
		return nil
	}
	why := fmt.Sprintf("only every %d ms: %v", glance, e.deaf)
	return map[slot.Why]string{slot.Block: why, slot.Wake: why}
}

// Add implements sched.Enforcer.
func (e *Enforcer) Add(t sched.Task) error {
	c, err := e.core(t.Core)
	if err != nil {
		return err
	}
	if err := c.add(&task{Task: t}); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tasks[t.ID] = c
	return nil
}

// core returns a core, and creates it if necessary.
func (e *Enforcer) core(number id.Core) (*core, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.cores[number]; c != nil {
		return c, nil
	}
	c, err := newCore(e, number)
	if err == nil {
		e.cores[number] = c
	}
	return c, err
}

func (e *Enforcer) of(id sched.ID) *core {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tasks[id]
}

// Remove implements sched.Enforcer.
func (e *Enforcer) Remove(id sched.ID) {
	if c := e.of(id); c != nil {
		c.remove(id)
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.tasks, id)
	}
}

// SetPolicies implements sched.Enforcer.
func (e *Enforcer) SetPolicies(core id.Core, policies []*sched.Policy) error {
	c, err := e.core(core)
	if err != nil {
		return err
	}
	c.setPolicies(policies)
	return nil
}

// Arrived implements sched.Enforcer.
func (e *Enforcer) Arrived(id sched.ID, waiting uint32) {
	if c := e.of(id); c != nil {
		c.arrived(id, waiting)
	}
}

// Woken implements sched.Enforcer.
func (e *Enforcer) Woken(id sched.ID) {
	if c := e.of(id); c != nil {
		c.ring()
	}
}

// Cores implements sched.Enforcer.
func (e *Enforcer) Cores() []sched.CoreInfo {
	cores := e.opened()
	slices.SortFunc(cores, func(a, b *core) int { return cmp.Compare(a.number, b.number) })
	infos := make([]sched.CoreInfo, len(cores))
	for i, c := range cores {
		infos[i] = c.describe()
	}
	return infos
}

// Close implements sched.Enforcer.
func (e *Enforcer) Close() error {
	e.mu.Lock()
	cores := slices.Collect(maps.Values(e.cores))
	clear(e.cores)
	clear(e.tasks)
	e.mu.Unlock()
	var errs []error
	for _, c := range cores {
		errs = append(errs, c.close())
	}
	return errors.Join(append(errs, closeAll(e.asked))...)
}

// take keeps the node kernel away from a CPU where tasks are going to be real-time: what it does
// there would wait for its turn, and all of it for that. It reports false when the CPU is the
// host's, or when the node kernel would have no CPU left.
func (e *Enforcer) take(cpu id.CPU) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.taken) == 0 {
		e.allowed, _ = hardware.Allowed(os.Getpid()) // if it is not known, no CPU is left
	}
	if e.host && len(e.allowed) > 0 && e.allowed[0] == cpu {
		return false
	}
	e.taken[cpu]++
	if len(e.left()) == 0 {
		e.give(cpu)
		return false
	}
	e.confine(cpu)
	return true
}

// had reports whether the node kernel used to be on a CPU.
func (e *Enforcer) had(cpu id.CPU) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.allowed, cpu)
}

// leave undoes take.
func (e *Enforcer) leave(cpu id.CPU) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.give(cpu)
	e.confine(cpu)
}

// give counts a core less on a CPU. The caller holds the lock.
func (e *Enforcer) give(cpu id.CPU) {
	if e.taken[cpu]--; e.taken[cpu] == 0 {
		delete(e.taken, cpu)
	}
}

// left are the CPUs for the node kernel. The caller holds the lock.
func (e *Enforcer) left() []id.CPU {
	return slices.DeleteFunc(slices.Clone(e.allowed), func(cpu id.CPU) bool { return e.taken[cpu] > 0 })
}

// confine has the node kernel use the CPUs that are left, after a change of one. The caller holds
// the lock.
func (e *Enforcer) confine(changed id.CPU) {
	if !slices.Contains(e.allowed, changed) {
		return // it never was there
	}
	if err := hardware.Confine(e.left()); err != nil {
		e.log("the node kernel may be kept waiting by what it schedules: %v", err)
	}
}

var _ sched.Enforcer = (*Enforcer)(nil)
