package qemu

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// clockParameters are parameters of the command line with which Linux in an emulated VM knows the rate of its clock. An emulated processor
// counts time (TSC) as this host's does. Linux would measure the rate while it boots, against a timer that QEMU emulates, and on a busy
// host now and then gets one that is much too low: then its clock is some times too fast for as long as it runs. There are none
// where this host's rate is not constant, or where the processor says it to the guest, as on arm64.
func clockParameters() []string {
	if rate := tickRate(); rate > 0 {
		return []string{fmt.Sprintf("tsc_early_khz=%d", rate)}
	}
	return nil
}

// measuring is between the two readings that make a rate. Each is off by less than a microsecond.
const measuring = 20 * time.Millisecond

// reading is what the processor's counter and Linux's clock say at the same time.
type reading struct {
	ticks uint64
	time  time.Duration
}

// measure returns the rate of a counter in kHz.
func measure(ticks func() uint64) uint64 {
	from := read(ticks)
	time.Sleep(measuring)
	to := read(ticks)
	return uint64(float64(to.ticks-from.ticks) / (to.time - from.time).Seconds() / 1000)
}

// read takes the best of some readings: between the two looks of one at the counter this process may lose its CPU.
func read(ticks func() uint64) (best reading) {
	shortest := ^uint64(0)
	for range 100 {
		var now unix.Timespec
		before := ticks()
		// It fails for no clock that there is.
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &now)
		after := ticks()
		if took := after - before; took < shortest {
			shortest, best = took, reading{before + took/2, time.Duration(now.Nano())}
		}
	}
	return best
}
