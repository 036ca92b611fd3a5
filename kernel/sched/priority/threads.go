package priority

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/sched"
)

// level is the real-time priority of a task's threads, or ordinary.
type level uint32

// The levels. They are of SCHED_RR, not of SCHED_FIFO, so that the threads of one task do not shut each other out.
const (
	unknown  level = 1<<32 - 1
	ordinary level = 0 // as Linux likes
	ready    level = 1 // it has the core only when those above leave it
	chosen   level = 2
	// waking is for who waits for something: when it wakes up it gets the core at once, which is how that is noticed.
	waking level = 3
	// above is for threads of the node kernel.
	above level = 4
)

// set gives a thread a level. One that has ended is no error.
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

// task is a task on its core.
type task struct {
	sched.Task
	threads   map[int]*thread // nil while the core is not shared
	processes map[int]bool
	spent     time.Duration // processor time when its processes were looked at last
	blocked   bool          // as the decision has been told
	held      bool
	told      uint32 // messages that wait for it, as Arrived has told last
	ring      *ring
}

// messages returns how many messages wait for the task.
func (t *task) messages() uint32 {
	if t.Waiting != nil {
		return t.Waiting()
	}
	return t.told
}

// thread is one thread of a task.
type thread struct {
	process int
	level   level
	blocked bool
}

// find looks for the threads of the task and of the processes that it has made.
func (t *task) find() {
	t.threads, t.processes = make(map[int]*thread), make(map[int]bool)
	t.findProcess(t.PID)
}

func (t *task) findProcess(pid int) {
	if t.processes[pid] {
		return
	}
	dir := fmt.Sprintf("/proc/%d/task", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // it has ended
	}
	t.processes[pid] = true
	for _, entry := range entries {
		tid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		t.threads[tid] = &thread{process: pid, level: unknown, blocked: waits(filepath.Join(dir, entry.Name(), "stat"))}
		children, err := os.ReadFile(filepath.Join(dir, entry.Name(), "children"))
		if err != nil {
			continue
		}
		for _, child := range strings.Fields(string(children)) {
			if pid, err := strconv.Atoi(child); err == nil {
				t.findProcess(pid)
			}
		}
	}
}

// waits reports whether a thread waits for something, from its line in proc(5).
func waits(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(text, []byte(") "))
	return ok && len(rest) > 0 && (rest[0] == 'S' || rest[0] == 'D')
}

// watch opens the ring that tells of the task's threads.
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

// note takes in what Linux tells. It reports whether something is lost.
func (t *task) note(r record) (lost bool) {
	switch r.kind {
	case unix.PERF_RECORD_SWITCH:
		if x := t.threads[r.tid]; x != nil {
			x.blocked = r.flags&unix.PERF_RECORD_MISC_SWITCH_OUT != 0 && r.flags&unix.PERF_RECORD_MISC_SWITCH_OUT_PREEMPT == 0
		}
	case unix.PERF_RECORD_FORK:
		t.threads[r.tid] = &thread{process: r.pid, level: unknown}
		t.processes[r.pid] = true
	case unix.PERF_RECORD_EXIT:
		delete(t.threads, r.tid)
		t.forget(r.pid)
	case unix.PERF_RECORD_LOST:
		return true
	}
	return false
}

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
			x.level = l
			errs = append(errs, set(tid, l))
		}
	}
	return errors.Join(errs...)
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
	if t.Group != "" {
		word := "0"
		if held {
			word = "1"
		}
		err := os.WriteFile(filepath.Join(t.Group, "cgroup.freeze"), []byte(word), 0)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil // it has ended, or done
		}
		return fmt.Errorf("job %d rank %d: %w", t.Job, t.Rank, err)
	}
	sig := unix.SIGCONT
	if held {
		sig = unix.SIGSTOP
	}
	var errs []error
	for pid := range t.processes {
		if err := unix.Kill(pid, sig); err != nil && err != unix.ESRCH {
			errs = append(errs, fmt.Errorf("job %d rank %d: %v of process %d: %w", t.Job, t.Rank, sig, pid, err))
		}
	}
	return errors.Join(errs...)
}

// ran returns how much processor time the task has had. What a process of it had that has ended may be missing.
func (t *task) ran() time.Duration {
	if t.processes == nil {
		return t.spent
	}
	var sum time.Duration
	for pid := range t.processes {
		var ts unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err == nil { // the processor time clock of a process
			sum += time.Duration(ts.Nano())
		}
	}
	t.spent = max(t.spent, sum)
	return t.spent
}
