package qemu

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// clockParameters returns the command line parameters that give Linux in an emulated VM the rate of
// its clock. An emulated processor's time-stamp counter (TSC) runs at the host's rate. Linux would
// measure the rate at boot against an emulated timer, and on a busy host sometimes measures one
// that is far too low; its clock then runs several times too fast until it ends. There are no
// parameters if the host's rate is not constant, or if the processor reports it to the guest, as on
// arm64.
func clockParameters() []string {
	if rate := tickRate(); rate > 0 {
		return []string{fmt.Sprintf("tsc_early_khz=%d", rate)}
	}
	return nil
}

// measuring is the time between the two readings of one measurement. Each is off by less than a
// microsecond.
const measuring = 20 * time.Millisecond

// reading holds the processor's counter and Linux's clock at the same time.
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

// read returns the best of several readings, because this process may lose its CPU during one.
func read(ticks func() uint64) (best reading) {
	shortest := ^uint64(0)
	for range 100 {
		var now unix.Timespec
		before := ticks()
		// It cannot fail for a clock that exists.
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &now)
		after := ticks()
		if took := after - before; took < shortest {
			shortest, best = took, reading{before + took/2, time.Duration(now.Nano())}
		}
	}
	return best
}
