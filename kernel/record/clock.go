package record

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time is a time of the node's clock: nanoseconds of CLOCK_MONOTONIC, which is what an extension gets of ktime_get_ns and Linux
// puts into the records of its events.
type Time int64

// The same instant on CLOCK_MONOTONIC and for the runtime, whose clock is that one too, read without a system call, but has
// its own zero.
var base, zero = anchor()

// anchor reads both clocks, of several times the one when they were read soonest after each other.
func anchor() (base time.Time, zero Time) {
	best := time.Duration(1 << 62)
	for range 8 {
		before := time.Now()
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic(err) // every Linux has it
		}
		if d := time.Since(before); d < best {
			best, base, zero = d, before, Time(ts.Nano())-Time(d/2)
		}
	}
	return base, zero
}

// Now reads the node's clock.
func Now() Time { return zero + Time(time.Since(base)) }
