package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Stopwatch measures how much of a processor a goroutine takes: what other
// processes of a busy machine take is not in it.
type Stopwatch struct{ start time.Duration }

// Start begins to measure. Until Stop, the goroutine stays on its thread.
func Start() Stopwatch {
	runtime.LockOSThread()
	return Stopwatch{threadTime()}
}

// Stop ends the measurement.
func (s Stopwatch) Stop() time.Duration {
	defer runtime.UnlockOSThread()
	return threadTime() - s.start
}

// threadTime returns the processor time of this thread so far.
func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic("bench: no clock for threads: " + err.Error())
	}
	return time.Duration(now.Nano())
}
