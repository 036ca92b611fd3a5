//go:build guest && soak

package priority

import (
	"testing"
	"time"

	"margay/kernel/sched/schedtest"
)

// TestTime is the suite by processor time, and for as long as Linux could take a held task for a
// starved one.
func TestTime(t *testing.T) {
	c := config()
	c.Group, c.Count, c.Hold, c.StarvationLimit = schedtest.Group, false, 31*time.Second, nil
	schedtest.Run(t, c)
}
