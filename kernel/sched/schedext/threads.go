package schedext

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"margay/kernel/sched"
)

// adopt assigns all threads of a task's process and of its descendants to the task, and to
// sched_ext. New threads inherit both.
func (s *skeleton) adopt(t *task) error {
	return each(t.PID, func(tid int) error {
		return s.set(tid, unix.SCHED_EXT, s.collection.Maps["threads"].Put(int32(tid), t.owner))
	})
}

// release returns all threads of a task to Linux's default scheduler.
func (s *skeleton) release(t *task) error {
	return each(t.PID, func(tid int) error {
		return s.set(tid, unix.SCHED_NORMAL, s.collection.Maps["threads"].Delete(int32(tid)))
	})
}

// set changes the scheduling policy of a thread after an update of the table of threads, which
// returned err. A thread that has ended is not an error.
func (s *skeleton) set(tid, policy int, err error) error {
	if err == nil || errors.Is(err, ebpf.ErrKeyNotExist) {
		err = setPolicy(tid, policy)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("thread %d: %w", tid, err)
	}
	return nil
}

// setPolicy changes the scheduling policy of a thread, which keeps its nice value.
func setPolicy(tid, policy int) error {
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return err
	}
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: uint32(policy), Nice: a.Nice}, 0)
}

// putBack returns a thread to sched_ext, and reports whether it had left. For a thread that has
// ended it reports false.
func putBack(tid int) (back bool, err error) {
	a, err := unix.SchedGetAttr(tid, 0)
	if err == nil && a.Policy != unix.SCHED_EXT {
		back, err = true, setPolicy(tid, unix.SCHED_EXT)
	}
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	return back, err
}

// each calls f for every thread of a process and of its descendants. It lists them until there are
// no new ones: a thread that f has not seen may have made another one.
func each(pid int, f func(tid int) error) error {
	seen := make(map[int]bool)
	for before := -1; len(seen) > before; {
		before = len(seen)
		for _, x := range sched.Threads(pid) {
			if seen[x.ID] {
				continue
			}
			seen[x.ID] = true
			if err := f(x.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// stop stops or resumes a task. Without a control group, only its first process is stopped.
func (t *task) stop(on bool) error {
	t.held = on
	return t.Stop(on, t.PID)
}
