package bench

import (
	"runtime/metrics"
	"testing"
	"time"

	"margay/nimble/engine/portable"
)

// TestMeasureStops stops the world beside every kind of loop.
func TestMeasureStops(t *testing.T) {
	o := options(t, portable.New())
	for loop := range Loops {
		s, err := MeasureStops(&o, loop, 20*time.Millisecond)
		if err != nil || s.Count == 0 || s.Median <= 0 || s.P99 < s.Median || s.Longest < s.P99 {
			t.Errorf("%s: %+v, %v", loop, s, err)
		}
	}
	if s, err := MeasureStops(nil, "", 20*time.Millisecond); err != nil || s.Count == 0 {
		t.Errorf("loops of Go: %+v, %v", s, err)
	}
	o = options(t, refusing{})
	if _, err := MeasureStops(&o, "add", time.Millisecond); err == nil {
		t.Error("an engine that takes nothing was measured")
	}
}

func TestNewStops(t *testing.T) {
	buckets := []float64{0, 1e-6, 2e-6, 3e-6, 4e-6}
	for _, c := range []struct {
		counts []uint64
		want   Stops
	}{
		{[]uint64{0, 0, 0, 0}, Stops{}},
		{[]uint64{0, 1, 0, 0}, Stops{1, 2000, 2000, 2000}},
		{[]uint64{98, 0, 1, 1}, Stops{100, 1000, 3000, 4000}},
		{[]uint64{99, 0, 0, 1}, Stops{100, 1000, 1000, 4000}},
		{[]uint64{1, 1, 0, 2}, Stops{4, 2000, 4000, 4000}},
	} {
		if got := newStops(&metrics.Float64Histogram{Counts: c.counts, Buckets: buckets}); got != c.want {
			t.Errorf("%v: got %+v, want %+v", c.counts, got, c.want)
		}
	}
}
