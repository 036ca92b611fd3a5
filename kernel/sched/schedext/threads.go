package schedext

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The scheduling policies of Linux that threads have here.
const (
	policyOther = 0 // SCHED_OTHER
	policyExt   = 7 // SCHED_EXT
)

// adopt makes all threads of a task's process, and of its children, threads of the task. Those that they make from then on are so
// from their beginning.
func (s *skeleton) adopt(t *task) error {
	return each(t.PID, func(tid int) error {
		return s.set(tid, policyExt, s.collection.Maps["threads"].Put(int32(tid), t.owner))
	})
}

// release gives all threads back to Linux's default scheduler.
func (s *skeleton) release(t *task) error {
	return each(t.PID, func(tid int) error {
		return s.set(tid, policyOther, s.collection.Maps["threads"].Delete(int32(tid)))
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

// each calls f with every thread of a process and of its descendants. It goes on until there is none that it has not seen: what a
// thread was made to be before it makes another one, that one is, too.
func each(pid int, f func(tid int) error) error {
	seen := make(map[int]bool)
	for {
		var fresh []int
		for _, tid := range threadsOf(pid) {
			if !seen[tid] {
				seen[tid] = true
				fresh = append(fresh, tid)
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		for _, tid := range fresh {
			if err := f(tid); err != nil {
				return err
			}
		}
	}
}

// threadsOf lists the threads of a process and of its descendants. What ends meanwhile is left out.
func threadsOf(pid int) (tids []int) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		if tid, err := strconv.Atoi(entry.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	for _, tid := range slices.Clone(tids) {
		text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(tid), "children"))
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				tids = append(tids, threadsOf(child)...)
			}
		}
	}
	return tids
}

// stop has the process of a task do nothing any more, or go on. The freezer does that for all of its control group; where there is
// none a signal does it for the process alone.
func (t *task) stop(on bool) error {
	t.held = on
	if t.Group == "" {
		signal := unix.SIGCONT
		if on {
			signal = unix.SIGSTOP
		}
		err := unix.PidfdSendSignal(int(t.Process.Fd()), signal, nil, 0)
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}
	word := "0"
	if on {
		word = "1"
	}
	err := os.WriteFile(filepath.Join(t.Group, "cgroup.freeze"), []byte(word), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil // the group is gone, and so is the process
	}
	return err
}
