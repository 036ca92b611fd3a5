package schedext

import "golang.org/x/sys/unix"

// monotonic is the skeleton's clock, in nanoseconds.
func monotonic() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint64(t.Nano())
}
