package sched

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Thread is a thread, by Linux's numbers.
type Thread struct{ Process, ID int }

// Threads lists the threads of a process and of its descendants, except those that end during the
// call.
func Threads(pid int) (threads []Thread) {
	processes := []int{pid}
	for i := 0; i < len(processes); i++ { // the loop extends the list
		dir := fmt.Sprintf("/proc/%d/task", processes[i])
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			tid, err := strconv.Atoi(entry.Name())
			if err != nil {
				continue
			}
			threads = append(threads, Thread{Process: processes[i], ID: tid})
			children, _ := os.ReadFile(filepath.Join(dir, entry.Name(), "children"))
			for _, word := range strings.Fields(string(children)) {
				if child, err := strconv.Atoi(word); err == nil && !slices.Contains(processes, child) {
					processes = append(processes, child)
				}
			}
		}
	}
	return threads
}

// Stop stops the task or resumes it: by the freezer of its control group, or without one by signals
// to these of its processes. A process that has ended is not an error.
func (t *Task) Stop(on bool, processes ...int) error {
	if t.Group != "" {
		return t.freeze(on)
	}
	if !on && t.Halted != nil && t.Halted() {
		return nil
	}
	sig := unix.SIGCONT
	if on {
		sig = unix.SIGSTOP
	}
	var errs []error
	for _, pid := range processes {
		if err := t.signal(pid, sig); err != nil && err != unix.ESRCH {
			errs = append(errs, fmt.Errorf("%v of process %d: %w", sig, pid, err))
		}
	}
	return errors.Join(errs...)
}

// signal sends a signal to a process of the task: by pidfd to its first one, whose PID may have
// been reused.
func (t *Task) signal(pid int, sig unix.Signal) error {
	if pid == t.PID {
		return unix.PidfdSendSignal(int(t.Process.Fd()), sig, nil, 0)
	}
	return unix.Kill(pid, sig)
}

func (t *Task) freeze(on bool) error {
	word := "0"
	if on {
		word = "1"
	}
	err := os.WriteFile(filepath.Join(t.Group, "cgroup.freeze"), []byte(word), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil // the group and all its processes have ended
	}
	return err
}
