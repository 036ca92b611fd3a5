package qemu

import (
	"math"
	"testing"
	"time"
)

// A counter is measured within a tenth of a per mille, ten times better than Linux wants it, or the
// next time: this process may lose its CPU.
func TestMeasure(t *testing.T) {
	start := time.Now()
	const rate = 2_345_678 // kHz
	counts := func() uint64 { return uint64(float64(time.Since(start).Nanoseconds()) * rate / 1e6) }
	var got uint64
	for range 10 {
		if got = measure(counts); math.Abs(float64(got)-rate) < rate/1e4 {
			return
		}
	}
	t.Errorf("%d kHz, want %d", got, rate)
}

// Two measurements of this processor agree.
func TestTickRate(t *testing.T) {
	rate := tickRate()
	if rate == 0 {
		if p := clockParameters(); len(p) > 0 {
			t.Errorf("no rate, and yet %v", p)
		}
		return
	}
	if again := again(); math.Abs(float64(again)-float64(rate)) > float64(rate)/1e3 || len(clockParameters()) != 1 {
		t.Errorf("%d kHz, then %d; %v", rate, again, clockParameters())
	}
	t.Logf("%d kHz", rate)
}
