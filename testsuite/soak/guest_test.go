//go:build soak

package soak

import (
	"testing"
	"time"

	"margay/initramfs"
	"margay/testsuite/guest"
)

// In a guest processes have their shares of a core by the time that they get, which the load of the host disturbs.
func TestShares(t *testing.T) {
	for pkg, boot := range map[string]initramfs.Profile{
		"margay/kernel/sched/priority": initramfs.Isolated,
		"margay/kernel/sched/schedext": initramfs.Sched,
	} {
		results, err := guest.Run(t.Context(), guest.Spec{
			Packages: []guest.Package{{Path: pkg, Timeout: 20 * time.Minute}},
			Tags:     "soak", Pattern: "^TestTime$", Dir: t.TempDir(), Boot: boot, Told: t.Logf,
		})
		guest.Show(t, results)
		if err != nil {
			t.Error(err)
		}
	}
}
