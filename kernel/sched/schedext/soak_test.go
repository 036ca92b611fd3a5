//go:build guest && soak

package schedext

import (
	"testing"

	"margay/kernel/sched/schedtest"
)

// TestTime runs the suite by processor time, with the time limits of a node.
func TestTime(t *testing.T) {
	c := config(t, watchdog)
	c.Count, c.StarvationLimit = false, nil
	schedtest.Run(t, c)
}
