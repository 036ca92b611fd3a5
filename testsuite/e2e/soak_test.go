//go:build soak

package e2e

import "testing"

// The examples for newcomers succeed, however often they run.
func TestSoakExamples(t *testing.T) { examples(t, 50) }

func TestSoakLatencyEndsWell(t *testing.T) { latencyEndsWell(t, 15) }

// On emulated nodes, processes have their shares of a core by the time that they get.
func TestSoakSchedulers(t *testing.T) {
	t.Run("qemu", func(t *testing.T) { up(t, "qemu", 1, 1).schedulers("priority") })
	t.Run("sched_ext", func(t *testing.T) { up(t, "qemu", 1, 1, "--profile", "sched").schedulers("sched_ext") })
}

func TestSoakHostileSchedulers(t *testing.T) {
	up(t, "qemu", 1, 1, "--profile", "sched").hostileSchedulers(misbehaving(t, 7))
}
