package trip

import (
	"testing"
	"time"
)

func TestTimeout(t *testing.T) {
	const ms = time.Millisecond
	b := Bounds{First: 20 * ms, Least: 2 * ms, Most: 250 * ms, Granularity: ms, Delay: ms}
	for _, c := range []struct {
		samples []time.Duration
		others  int
		want    time.Duration
	}{
		{nil, 0, 20 * ms},
		{nil, 2, 80 * ms},
		{nil, 1000, 250 * ms},
		{[]time.Duration{0}, 0, 2*ms + 1}, // counts as a nanosecond
		{[]time.Duration{8 * ms}, 0, 8*ms + 4*4*ms + ms},
		{[]time.Duration{8 * ms, 16 * ms}, 0, 9*ms + 4*5*ms + ms},
		{[]time.Duration{8 * ms, 16 * ms}, 1, 60 * ms},
		{[]time.Duration{time.Hour}, 8, 250 * ms},
	} {
		var e Estimate
		for _, took := range c.samples {
			e.Sample(took)
		}
		if got := e.Timeout(b, c.others); got != c.want {
			t.Errorf("after %v and %d time-outs: %v, want %v", c.samples, c.others, got, c.want)
		}
	}
}
