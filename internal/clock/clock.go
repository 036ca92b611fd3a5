// Package clock reads CLOCK_MONOTONIC without a system call. Extensions get the same clock from
// ktime_get_ns, and Linux stamps its event records with it.
package clock

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// started and startedAt are one instant on Go's monotonic clock and on CLOCK_MONOTONIC. The two
// clocks run in step.
var started, startedAt = pair()

// pair reads both clocks several times and returns the pair of readings with the least time between
// them. If a pair is interrupted in the middle, all later times are wrong by the interruption.
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
