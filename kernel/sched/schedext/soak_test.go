//go:build guest && soak

package schedext

import (
	"testing"

	"margay/kernel/sched/schedtest"
)

// TestTime is the suite by processor time.
func TestTime(t *testing.T) {
	c := config(t)
	c.Count = false
	schedtest.Run(t, c)
}
