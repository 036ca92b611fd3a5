//go:build guest && soak

package schedext

import (
	"testing"

	"margay/kernel/sched/schedtest"
)

// TestTime is the suite by processor time, with the times of a node.
func TestTime(t *testing.T) {
	c := config(t, watchdog)
	c.Count, c.Floor = false, nil
	schedtest.Run(t, c)
}
