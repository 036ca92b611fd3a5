package schedext

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"margay/kernel/sched"
)

// adopt makes all threads of a task's process, and of its children, threads of the task. Those that
// they make from then on are so from their beginning.
func (s *skeleton) adopt(t *task) error {
	return each(t.PID, func(tid int) error {
		return s.set(tid, unix.SCHED_EXT, s.collection.Maps["threads"].Put(int32(tid), t.owner))
	})
}

// release gives all threads back to Linux's default scheduler.
func (s *skeleton) release(t *task) error {
	return each(t.PID, func(tid int) error {
		return s.set(tid, unix.SCHED_NORMAL, s.collection.Maps["threads"].Delete(int32(tid)))
	})
}

// set changes the policy of a thread that has been marked. A thread that has ended is none.
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

// putBack returns a thread to sched_ext, and reports whether it had left. A thread that has ended
// has not.
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

// each calls f with every thread of a process and of its descendants. It goes on until there is
// none that it has not seen: what a thread was made to be before it makes another one, that one is,
// too.
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

// stop has the process of a task do nothing any more, or go on. Without a control group that is the
// process alone.
func (t *task) stop(on bool) error {
	t.held = on
	return t.Stop(on, t.PID)
}
