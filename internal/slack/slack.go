// Package slack lets Linux end the waits of some processes late: their timer slack (prctl(2)).
//
// A thread of Go's runtime looks every 20 us, and less often later, for a goroutine that has the
// processor for too long, for as long as some goroutine runs or could run. With the two programs of
// each node and a job init for each job, these looks took a quarter of the processor time of a job
// on 64 hosted nodes. With slack, Linux puts them together with other work, or off. No time-out of
// these processes must be exact to some milliseconds, and an event ends a wait at once.
package slack

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// How late a wait may end: of a process that runs a machine, of the init of a job, which may live
// for less than 100 ms, and of users' programs, as Linux has it by default.
const (
	Daemon      = time.Millisecond
	Init        = 5 * time.Millisecond
	Application = 50 * time.Microsecond
)

// Start calls start. The processes that it starts from the calling thread, as os/exec and
// syscall.ForkExec do, have the given slack, and so have those that they start. This process keeps
// its own, unless start executes another program in it. Where a host does not let slack be set,
// everything keeps what it has.
func Start(slack time.Duration, start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return start()
	}
	Set(slack)
	defer Set(time.Duration(own))
	return start()
}

// Set gives the calling thread a slack, and what it starts later, if the host lets it. The
// goroutine must be locked to the thread.
func Set(slack time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
}
