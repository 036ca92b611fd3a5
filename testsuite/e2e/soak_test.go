//go:build soak

package e2e

import (
	"fmt"
	"testing"

	"margay/internal/check"
)

// The examples for newcomers succeed, however often they run.
func TestSoakExamples(t *testing.T) { examples(t, 50) }

func TestSoakLatencyEndsWell(t *testing.T) { latencyEndsWell(t, 15) }

// On emulated nodes, processes have their shares of a core by the time that they get.
func TestSoakSchedulers(t *testing.T) {
	t.Run("qemu", func(t *testing.T) { up(t, "qemu", 1, 1).schedulers("priority") })
	t.Run("sched_ext", func(t *testing.T) { up(t, "qemu", 1, 1, "--profile", "sched").schedulers("sched_ext") })
}

// TestNetboot with UEFI firmware, which takes several times as long. make netboot runs this test.
func TestSoakFirmware(t *testing.T) {
	for _, way := range []string{"uefi", "http"} {
		t.Run(way, func(t *testing.T) {
			netboot(t, way, "it fetches iPXE", "its firmware has got an address", "it fetches iPXE", "it has got its address",
				"it fetches the script", "it fetches the kernel", "it fetches the node image", "it has fetched everything, and starts Linux")
		})
	}
}

// heldMemory returns the resources of the node kernel that has most of each.
func (m *machine) heldMemory() (most weight) {
	m.t.Helper()
	for _, kernel := range m.nodeKernels() {
		w := weigh(m.t, kernel)
		most = weight{max(most.memory, w.memory), max(most.threads, w.threads), max(most.descriptors, w.descriptors), max(most.memories, w.memories)}
	}
	return most
}

// sameMemory waits until the node kernels have the resources that they had before. Memory in KiB
// may differ, because Go keeps some.
func (m *machine) sameMemory(before weight) {
	m.t.Helper()
	m.awaitIdle()
	var now weight
	eventually(m.t, "resources as before", func() bool {
		now = m.heldMemory()
		return now.memory <= max(before.memory, collected)+8192 && now.descriptors <= before.descriptors && now.memories <= before.memories
	}, func() string { return fmt.Sprintf("before %v, now %v", before, now) })
	m.t.Logf("before %v, now %v", before, now)
}

// A round of TestLossyWire with longer storms, after which the node kernels have the memory that
// they had before.
func TestSoakLossyWire(t *testing.T) {
	inC, inGo := operationPrograms(t)
	for _, fabric := range []string{"tcp-trusted", "udp"} {
		t.Run(fabric, func(t *testing.T) {
			seed := check.Seed(t)
			m := up(t, "hosted", 4, 2, "--fabric", fabric)
			w := m.hostileWire()
			operations{m, inC, inGo, seed}.check(60, 200)
			before := m.heldMemory()
			for range 2 {
				m.storm(w, inGo, seed, 20)
			}
			m.sameMemory(before)
			m.usable()
		})
	}
}

func TestSoakHostileSchedulers(t *testing.T) {
	up(t, "qemu", 1, 1, "--profile", "sched").hostileSchedulers(misbehaving(t, 7))
}
