package task

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"margay/kernel/abi/id"
	"margay/kernel/link"
)

// RankProcess is the process of a rank that runs.
type RankProcess struct {
	Rank  id.Rank
	PID   int      // in the node kernel's PID namespace
	File  *os.File // a pidfd of it; the receiver's to close
	Group string   // directory of its control group; empty where there is none
	Since id.Time  // when it was started: nanoseconds of CLOCK_MONOTONIC
}

// errEnded reports that a process has ended.
var errEnded = errors.New("the process has ended")

// rankProcess reads the word of a job's init that a rank runs. The message's files are closed
// unless they are returned.
func (c *Container) rankProcess(m link.Message) (p RankProcess, err error) {
	defer func() {
		if err != nil {
			m.CloseFiles()
		}
	}()
	var body ProcessBody
	if err := m.Decode(&body); err != nil {
		return p, err
	}
	if len(m.Files) != 1 {
		return p, fmt.Errorf("task: %d descriptors came for the process of rank %d, not one", len(m.Files), body.Rank)
	}
	p = RankProcess{Rank: body.Rank, File: m.Files[0], Since: body.Since}
	if p.PID, err = pidOf(p.File); err != nil {
		return p, fmt.Errorf("task: process of rank %d: %w", body.Rank, err)
	}
	if c.host.Cgroups != nil {
		p.Group = c.host.Cgroups.Job(c.group).Rank(body.Rank)
	}
	return p, nil
}

// pidOf returns the pid of pidfd f in this process's PID namespace (proc_pid_fdinfo(5)).
func pidOf(f *os.File) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(value))
			if err == nil && pid <= 0 { // -1 when it has ended, 0 when it is in another namespace
				err = errEnded
			}
			return pid, err
		}
	}
	return 0, errors.New("the descriptor is not a pidfd")
}
