//go:build soak

package soak

import (
	"testing"
	"time"

	"margay/initramfs"
	"margay/testsuite/guest"
)

// The kernel of a guest agrees with the reference on all facts and on random programs. The programs
// are loaded slowly.
func TestKernelAgrees(t *testing.T) {
	inGuest(t, "margay/nimble/engine/linux", "^(TestAllFacts|TestManyRandom)$", initramfs.Isolated)
}

// Shares of a core are measured by time, which the load of the host disturbs.
func TestShares(t *testing.T) {
	for pkg, boot := range map[string]initramfs.Profile{
		"margay/kernel/sched/priority": initramfs.Isolated,
		"margay/kernel/sched/schedext": initramfs.Sched,
	} {
		inGuest(t, pkg, "^TestTime$", boot)
	}
}

// inGuest runs long tests of a package in a guest.
func inGuest(t *testing.T, pkg, tests string, boot initramfs.Profile) {
	t.Helper()
	results, err := guest.Run(t.Context(), guest.Spec{
		Packages: []guest.Package{{Path: pkg, Timeout: 20 * time.Minute}},
		Programs: []string{"margay/testsuite/programs/worker"},
		Tags:     "soak", Pattern: tests, Dir: t.TempDir(), Boot: boot, Told: t.Logf,
	})
	guest.Show(t, results)
	if err != nil {
		t.Error(err)
	}
}
