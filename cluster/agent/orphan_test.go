package agent

import (
	"sync/atomic"
	"testing"
	"time"

	"margay/internal/check"
)

// A node of its own reboots when serve has been gone for a while, and not after a short absence.
func TestOrphan(t *testing.T) {
	for name, orphan := range map[string]time.Duration{"short": time.Hour, "long": 0} {
		t.Run(name, func(t *testing.T) {
			s := newServe(t)
			var reboots atomic.Int64
			a := s.agent(3, new(lines))
			a.config.Reboot, a.config.Orphan = func() { reboots.Add(1) }, orphan
			s.live(a, new(playedKernel))
			conn := s.next()
			check.AwaitFor(t, patience, "registration", func() bool {
				a.mu.Lock()
				defer a.mu.Unlock()
				return a.conn != nil
			})
			if name == "short" {
				conn.Close()
				s.next()
				if reboots.Load() != 0 {
					t.Error("it has rebooted")
				}
				return
			}
			s.listener.Close()
			conn.Close()
			check.AwaitFor(t, patience, "reboot", func() bool { return reboots.Load() > 0 })
		})
	}
}
