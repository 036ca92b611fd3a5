package margay

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Upcalls has the handlers of upcalls, messages for which an extension has answered UPCALL, run as soon as they come, until
// Finalize. They run on a thread of their own, beside the goroutines that compute: Linux gives that thread the core, and no
// goroutine has to be preempted for it. Handlers still run one at a time, and a Poll under way on another goroutine, which takes
// upcalls too, is waited for. Without Upcalls, they come like all other messages.
//
// Upcalls from one rank come in the order in which they were sent. They may come before other messages that were sent before
// them; a message never comes before an upcall that the same rank has sent before it.
func (j *Job) Upcalls() {
	j.interrupting.Do(func() {
		// The thread needs a processor of the Go scheduler when it wakes, and those who compute do not give theirs away.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
		go j.takeUpcalls()
	})
}

// takeUpcalls waits for the alarm and handles upcalls.
func (j *Job) takeUpcalls() {
	runtime.LockOSThread() // and never unlocked: the thread ends with this
	defer func() {
		j.mu.Lock() // stopUpcalls uses it
		defer j.mu.Unlock()
		j.alarm.Close()
	}()
	alarm := int(j.alarm.Fd())
	var rung [64]byte
	for {
		if j.handleUpcalls() {
			j.announce()
		}
		n, err := unix.Read(alarm, rung[:])
		if n == 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// handleUpcalls handles the upcalls that have come, and has the next one ring the alarm. It reports whether there were any.
func (j *Job) handleUpcalls() (some bool) {
	j.handling.Lock()
	defer j.handling.Unlock()
	if j.finalized.Load() {
		return false
	}
	for ready := true; ready; ready = !j.upcalls.Wait() {
		for j.handleNext(j.upcalls) {
			some = true
		}
	}
	return some
}

// stopUpcalls ends what waits for the alarm. The caller holds Job.mu.
func (j *Job) stopUpcalls() {
	waits := true
	j.interrupting.Do(func() { waits = false })
	if waits {
		j.area.Armed().Store(0)
		_ = unix.Shutdown(int(j.alarm.Fd()), unix.SHUT_RD)
	} else {
		j.alarm.Close()
	}
}
