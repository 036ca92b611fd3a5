package record

import "margay/internal/clock"

// Time is a time of the node's clock: nanoseconds of CLOCK_MONOTONIC, which is what an extension
// gets of ktime_get_ns and Linux puts into the records of its events.
type Time int64

// Now reads the node's clock.
func Now() Time { return Time(clock.Monotonic()) }
