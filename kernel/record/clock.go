package record

import (
	"margay/internal/clock"
	"margay/kernel/abi/id"
)

// Now reads the node's clock.
func Now() id.Time { return id.Time(clock.Monotonic()) }
