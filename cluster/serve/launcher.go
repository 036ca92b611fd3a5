package serve

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// A job whose client has lost its connection waits for that client. How long depends on the process
// of the client, if serve can see it: a margay run that is stopped cannot connect again, and may be
// stopped for days.

// launcher names a process for good: a PID is used again, but not with the same time of start. It
// is zero if serve cannot see the process.
type launcher struct {
	pid   int32
	start uint64 // in ticks since the boot of this host
}

// known reports whether serve can see the process.
func (l launcher) known() bool { return l.pid != 0 }

// ProcessState is whether a process can do anything.
type ProcessState int

const (
	ProcessRuns    ProcessState = iota
	ProcessStopped              // by a signal, or by a debugger
	ProcessEnded
)

// StateOf returns the state of a process, and when it was started, in ticks since the boot. An
// error means that there may be such a process.
func StateOf(pid int32) (state ProcessState, start uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH):
		return ProcessEnded, 0, nil
	case err != nil:
		return ProcessRuns, 0, err
	}
	return parseStat(text)
}

// parseStat reads the state of a process and its time of start: fields 3 and 22 of
// proc_pid_stat(5).
func parseStat(text []byte) (state ProcessState, start uint64, err error) {
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // behind the name, which may hold anything
	if len(fields) < 20 {
		return ProcessRuns, 0, fmt.Errorf("serve: %q is not the state of a process", text)
	}
	switch fields[0] {
	case "T", "t":
		state = ProcessStopped
	case "Z", "X":
		state = ProcessEnded
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return state, start, err
}

// launcherOf returns the process at the other end of a client's connection.
func (s *Server) launcherOf(peer control.Peer) launcher {
	if peer.PID <= 0 {
		return launcher{}
	}
	state, start, err := s.config.Process(peer.PID)
	if err != nil || state == ProcessEnded {
		return launcher{}
	}
	return launcher{peer.PID, start}
}

// look returns the state of a process that is known.
func (s *Server) look(l launcher) ProcessState {
	state, start, err := s.config.Process(l.pid)
	switch {
	case err != nil: // it may be there
		return ProcessRuns
	case start != l.start:
		return ProcessEnded
	}
	return state
}

// How often a job that has lost its client looks for the client's process: the second is for one
// that is stopped, maybe for days.
const (
	lookPause = 500 * time.Millisecond
	lookLater = 5 * time.Second
)

// awaitClient ends a job that has lost its client when the process of the client has ended. A
// process that is stopped is waited for as long as it takes, and one that runs for Timing.Alive: it
// may have given the job up while serve was away. If serve cannot see the process, the job waits
// for the given time, or if it is stopped, for Timing.Stopped: its client may be stopped, too. Time
// in which serve itself is stopped, or has no CPU, counts for little. lost is the reason for the
// end of a job whose client does not come (clientGone). The caller holds Server.mu.
func (s *Server) awaitClient(j *job, wait time.Duration, lost string) {
	j.losses++
	loss, waited := j.losses, time.Duration(0)
	var look func()
	look = func() {
		if j.client != nil || j.losses != loss {
			return
		}
		waited += lookPause
		state, most := ProcessRuns, wait
		if j.launcher.known() {
			state, most = s.look(j.launcher), s.config.Timing.Alive
		} else if j.stopped() {
			most = s.config.Timing.Stopped
		}
		switch {
		case state == ProcessEnded:
			s.clientGone(j, isGone)
		case state == ProcessStopped:
			waited = 0 // once it continues, it needs time to connect
			s.later(j, lookLater, look)
		case waited >= most:
			s.clientGone(j, lost)
		default:
			s.later(j, lookPause, look)
		}
	}
	s.later(j, lookPause, look)
}
