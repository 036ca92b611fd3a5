package clock

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The clock agrees with CLOCK_MONOTONIC, apart from the error of the pair.
func TestMonotonic(t *testing.T) {
	const tolerance = 1_000_000_000 // for a host that stalls between two readings
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	before := uint64(ts.Nano())
	first := Monotonic()
	second := Monotonic()
	if second < first || first+tolerance < before {
		t.Errorf("%d, then %d; Linux said %d before", first, second, before)
	}
}
