package kernel

import "testing"

// The node keeps memory for itself, on a small node no more than half of the free memory.
func TestMemoryForJobs(t *testing.T) {
	const mib = 1 << 20
	for free, want := range map[int64]int64{0: 0, 40 * mib: 20 * mib, 128 * mib: 64 * mib, 256 * mib: 188 * mib, 64 << 30: 63<<30 - 64*mib} {
		if got := forJobs(free); got != want {
			t.Errorf("of %d MiB jobs have %d, not %d", free/mib, got/mib, want/mib)
		}
	}
}

// A node of 512 MiB has room for the libraries of a program of MPI, and a large one has a bound.
// One of many on a host has a bound of its own.
func TestContentBudget(t *testing.T) {
	const mib = 1 << 20
	for memory, want := range map[int64]int64{120 * mib: 20 * mib, 400 * mib: 64 * mib, 1200 * mib: 100 * mib, 64 << 30: 1 << 30} {
		if got := contentBudget(memory, 0); got != want {
			t.Errorf("of %d MiB files have %d, not %d", memory/mib, got/mib, want/mib)
		}
		if got, most := contentBudget(memory, 6*mib), int64(6*mib); got != most {
			t.Errorf("of %d MiB files have %d, not %d", memory/mib, got/mib, most/mib)
		}
	}
}
