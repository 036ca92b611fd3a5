//go:build guest && soak

package schedext

import (
	"testing"
	"time"

	"margay/kernel/sched/schedtest"
)

// TestTime runs the suite by processor time, with the time limits of a node.
func TestTime(t *testing.T) {
	c := config(t)
	// Linux checks for starved tasks whenever half of the limit has passed.
	c.Count, c.StarvationLimit, c.Hold = false, nil, watchdog*3/2+time.Second
	schedtest.Run(t, c)
}
