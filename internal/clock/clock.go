// Package clock reads CLOCK_MONOTONIC of Linux, which extensions get of ktime_get_ns and Linux puts into the records of its
// events, without a system call.
package clock

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// started pairs a reading of Go's monotonic clock with CLOCK_MONOTONIC, which it runs in step with.
var started, startedAt = pair()

// pair reads both clocks several times and takes the pair with the least time between them: a reading that was interrupted in the
// middle would make every later time wrong by that much.
func pair() (started time.Time, at uint64) {
	least := time.Duration(math.MaxInt64)
	for range 8 {
		var ts unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic("clock: no monotonic clock: " + err.Error())
		}
		if took := time.Since(before); took < least {
			least, started, at = took, before.Add(took/2), uint64(ts.Nano())
		}
	}
	return started, at
}

// Monotonic returns the time in nanoseconds.
func Monotonic() uint64 { return startedAt + uint64(time.Since(started)) }
