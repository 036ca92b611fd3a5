package margay

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Upcalls enables upcalls, messages with the verdict UPCALL, until Finalize: their handlers run as
// soon as they arrive. They run on their own thread, in parallel with the goroutines that compute:
// Linux gives that thread the core, and no goroutine is preempted. Handlers still run one at a
// time, after a running Poll of another goroutine, which handles upcalls as well. Without Upcalls
// they are delivered like other messages.
//
// Upcalls from one rank arrive in the order of sending. They may overtake messages; a message never
// overtakes an upcall that the same rank sent before it.
func (j *Job) Upcalls() {
	j.interrupting.Do(func() {
		// The thread needs a P of the Go scheduler when it wakes, and computing goroutines do not
		// release theirs.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
		go j.takeUpcalls()
	})
}

// takeUpcalls waits for the upcall doorbell and handles upcalls.
func (j *Job) takeUpcalls() {
	runtime.LockOSThread() // and never unlocked: the thread ends with this
	defer func() {
		j.mu.Lock() // stopUpcalls uses it
		defer j.mu.Unlock()
		j.upcallDoorbell.Close()
	}()
	fd := int(j.upcallDoorbell.Fd())
	var rung [64]byte
	for {
		if j.handleUpcalls() {
			j.announce()
		}
		n, err := unix.Read(fd, rung[:])
		if n == 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// handleUpcalls handles the pending upcalls and arms the upcall doorbell for the next one. It
// reports whether there were any.
func (j *Job) handleUpcalls() (some bool) {
	j.handling.Lock()
	defer j.handling.Unlock()
	if j.finalized.Load() {
		return false
	}
	for ready := true; ready; ready = !j.in.WaitUpcalls() {
		for {
			record, ok, err := j.in.NextUpcall()
			if _, ok := j.handle(&record, ok, err); !ok {
				break
			}
			some = true
		}
	}
	if some {
		j.transmitDue()
	}
	return some
}

// stopUpcalls ends the goroutine that waits for the upcall doorbell. The caller holds Job.mu.
func (j *Job) stopUpcalls() {
	waits := true
	j.interrupting.Do(func() { waits = false })
	if waits {
		j.area.Armed().Store(0)
		_ = unix.Shutdown(int(j.upcallDoorbell.Fd()), unix.SHUT_RD)
	} else {
		j.upcallDoorbell.Close()
	}
}
