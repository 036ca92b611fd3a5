// Package usage finds out what a process has used of its cores, by asking Linux about it; the
// process itself notices nothing.
package usage

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a process has used since it was started.
type Usage struct {
	CPU     time.Duration // processor time of all its threads, the ended ones too
	Threads int
	// How often its threads have given up a core because they had to wait, and lost one because
	// others were to run.
	Voluntary, Involuntary uint64
	MajorFaults            uint64 // page faults that had to wait for a disk or a network
}

// ErrEnded reports that there is no such process any more.
var ErrEnded = errors.New("the process has ended")

// CPU returns the processor time of all threads of a process of this process's PID namespace, the
// ended ones too.
func CPU(pid int) (time.Duration, error) {
	var ts unix.Timespec
	clock := int32(^pid<<3 | 2) // clock_getcpuclockid(3); CPUCLOCK_SCHED in Linux
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, ended(pid, err, unix.EINVAL)
	}
	return time.Duration(ts.Nano()), nil
}

// Of asks about a process of this process's PID namespace.
func Of(pid int) (u Usage, err error) {
	if u.CPU, err = CPU(pid); err != nil {
		return u, err
	}
	if u.MajorFaults, err = majorFaults(pid); err != nil {
		return u, ended(pid, err, unix.ENOENT)
	}
	folder := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(folder)
	if err != nil {
		return u, ended(pid, err, unix.ENOENT)
	}
	for _, t := range threads {
		f, err := os.Open(filepath.Join(folder, t.Name(), "status"))
		if err != nil {
			continue // the thread has just ended
		}
		voluntary, involuntary, err := switches(f)
		f.Close()
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return u, fmt.Errorf("usage: thread %s: %w", t.Name(), err)
		}
		u.Threads++
		u.Voluntary += voluntary
		u.Involuntary += involuntary
	}
	return u, nil
}

func ended(pid int, err, how error) error {
	if errors.Is(err, how) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("usage: process %d: %w", pid, ErrEnded)
	}
	return fmt.Errorf("usage: process %d: %w", pid, err)
}

// majorFaults is how many there have been in all threads of a process, the ended ones too: field 12
// of proc_pid_stat(5).
func majorFaults(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from field 3 on
	if len(fields) < 10 {
		return 0, errors.New("its stat has no count of major faults")
	}
	return strconv.ParseUint(fields[9], 10, 64)
}

// switches finds the counts of context switches in a thread's status (proc_pid_status(5)).
func switches(r io.Reader) (voluntary, involuntary uint64, err error) {
	lines := bufio.NewScanner(r)
	found := 0
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		to := &voluntary
		switch name {
		case "voluntary_ctxt_switches":
		case "nonvoluntary_ctxt_switches":
			to = &involuntary
		default:
			continue
		}
		if *to, err = strconv.ParseUint(strings.TrimSpace(value), 10, 64); err != nil {
			return 0, 0, fmt.Errorf("%s is %q", name, value)
		}
		found++
	}
	if err := lines.Err(); err != nil {
		return 0, 0, err
	}
	if found != 2 {
		return 0, 0, errors.New("its status has no counts of context switches")
	}
	return voluntary, involuntary, nil
}
