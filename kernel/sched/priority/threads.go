package priority

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/sched"
	"margay/kernel/usage"
)

// level is the real-time priority of a task's threads, or ordinary.
type level uint32

// The levels. They are of SCHED_RR, not of SCHED_FIFO, so that the threads of one task do not shut
// each other out.
const (
	unknown   level = 1<<32 - 1
	inherited level = 1<<32 - 2 // from the thread that made it, whichever that was
	ordinary  level = 0         // as Linux likes
	ready     level = 1         // it has the core only when those above leave it
	chosen    level = 2
	// waking is the level of waiting threads, which get the core at once when they wake, and of
	// threads that are being given the core. Threads that must stop have it as well, because a
	// thread stops as soon as it runs.
	waking level = 3
)

// set gives a thread a level. A thread that has ended is not an error.
func set(tid int, l level) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: uint32(l)}
	if l == ordinary {
		attr.Policy = unix.SCHED_NORMAL
	}
	if err := unix.SchedSetAttr(tid, &attr, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("set priority %d of thread %d: %w", l, tid, err)
	}
	return nil
}

// slice is how long a thread of the node kernel that watches a core wants to have a CPU at a time,
// the least that Linux offers.
const slice = 100 * time.Microsecond

// soon lets the calling thread run before other ordinary ones when it wakes, since Linux 6.12,
// which prefers threads with short time slices. With a real-time priority the thread would spin in
// the Go runtime, waiting for threads that it keeps from running.
func soon() error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Runtime: uint64(slice)}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("set slice of %v: %w", slice, err)
	}
	return nil
}

// task is a task on its core.
type task struct {
	sched.Task
	threads   map[int]*thread // nil while the core is not shared
	ended     map[int]bool    // threads that have ended, and that proc(5) may still list
	processes map[int]bool
	spent     time.Duration // processor time at the last reading
	blocked   bool          // as last reported to the decision
	rested    time.Duration // spent, when it was found to wait
	held      bool
	told      uint32 // pending messages at the last Arrived
	ring      *ring  // nil: its core has the events
	stale     bool   // its threads have to be looked for again
}

// thread is one thread of a task.
type thread struct {
	process int
	level   level
	blocked bool
	since   id.Time // time of the state; older events are ignored
	number  int     // thread id in Linux's initial namespace; 0 until a tracepoint reports it
}

// is records a state from Linux.
func (x *thread) is(blocked bool, time id.Time) {
	if time > x.since {
		x.blocked, x.since = blocked, time
	}
}

// find looks for the threads of the task and of the processes that it has made.
func (t *task) find() { t.list(sched.Threads(t.PID)) }

// list takes the threads that proc(5) lists. It lists a thread for some time after the record of
// its end, as one that runs, and nothing would report that this one has stopped.
func (t *task) list(all []sched.Thread) {
	known, ended := t.threads, t.ended
	t.threads, t.processes, t.ended = make(map[int]*thread), make(map[int]bool), make(map[int]bool)
	for _, found := range all {
		if ended[found.ID] {
			t.ended[found.ID] = true
			continue
		}
		x := &thread{process: found.Process, level: unknown, since: now(), blocked: sleeps(found)}
		if was := known[found.ID]; was != nil && was.process == x.process {
			x.level, x.number = was.level, was.number
		}
		t.threads[found.ID], t.processes[x.process] = x, true
	}
}

// sleeps reports whether a thread does not want the core, from its line in proc(5): it waits, was
// stopped, or is a zombie.
func sleeps(x sched.Thread) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", x.Process, x.ID))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(text, []byte(") "))
	return ok && len(rest) > 0 && rest[0] != 'R'
}

// watch opens the ring of the task's threads.
func (t *task) watch() (err error) {
	if t.ring, err = openRing(t.PID, t.CPU); err != nil {
		return err
	}
	for tid := range t.threads {
		if tid == t.PID {
			continue
		}
		if err := t.ring.follow(tid); err != nil && !errors.Is(err, unix.ESRCH) {
			t.unwatch()
			return err
		}
	}
	t.find() // what began before that
	return nil
}

func (t *task) unwatch() {
	if t.ring != nil {
		t.ring.close()
		t.ring = nil
	}
}

// note processes Linux's records. It reports whether they are incomplete, so that the threads must
// be listed again.
func (t *task) note(r record) (incomplete bool) {
	switch r.what {
	case waits, runs:
		if x := t.threads[r.tid]; x != nil {
			x.is(r.what == waits, r.time)
			incomplete = x.number != r.number // it may have been woken up before that was known
			x.number = r.number
		}
	case begun:
		delete(t.ended, r.tid)
		t.threads[r.tid] = &thread{process: r.pid, level: inherited, since: r.time}
		t.processes[r.pid] = true
	case ended:
		if t.threads[r.tid] != nil {
			delete(t.threads, r.tid)
			t.forget(r.pid)
			t.ended[r.tid] = true
			incomplete = len(t.ended) > manyEnded // a list leaves only a few
		}
	case lost:
		incomplete = true
	}
	return incomplete
}

// manyEnded is how many threads may end before the threads are listed again.
const manyEnded = 1000

// forget notes the end of a process when none of its threads is left.
func (t *task) forget(pid int) {
	for _, x := range t.threads {
		if x.process == pid {
			return
		}
	}
	delete(t.processes, pid)
}

// waiting reports whether no thread of the task has anything to do.
func (t *task) waiting() bool {
	for _, x := range t.threads {
		if !x.blocked {
			return false
		}
	}
	return true
}

// become gives all threads of the task a level.
func (t *task) become(l level) error {
	var errs []error
	for tid, x := range t.threads {
		if x.level != l {
			// Tracepoints have not reported a thread without a level.
			t.stale = t.stale || x.level == unknown
			x.level = l
			errs = append(errs, set(tid, l))
		}
	}
	return errors.Join(errs...)
}

// at reports whether a thread of the task has a level.
func (t *task) at(l level) bool {
	for _, x := range t.threads {
		if x.level == l {
			return true
		}
	}
	return false
}

// hold keeps the task off the core, or lets it go on, from where it was.
func (t *task) hold(held bool) error {
	t.held = held
	if !held {
		for _, x := range t.threads {
			x.blocked = false // it looks again whether it has to wait
		}
		t.blocked = false
	}
	if err := t.Stop(held, slices.Collect(maps.Keys(t.processes))...); err != nil {
		return fmt.Errorf("job %d rank %d: %w", t.Job, t.Rank, err)
	}
	return nil
}

// ran returns how much processor time the task has had. What a process of it had that has ended may
// be missing.
func (t *task) ran() time.Duration {
	if t.processes == nil {
		return t.spent
	}
	var sum time.Duration
	for pid := range t.processes {
		if cpu, err := usage.CPU(pid); err == nil {
			sum += cpu
		}
	}
	t.spent = max(t.spent, sum)
	return t.spent
}
