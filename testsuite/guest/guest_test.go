package guest

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/initramfs"
	"margay/qemu"
)

var (
	only     = flag.String("packages", "", "run only the tests of those packages in a guest that match the `regular expression`")
	pattern  = flag.String("tests", "", "run only those tests in the guest that match the `regular expression`")
	profiles = flag.String("profiles", "", "write the coverage profiles of the tests in the guest to `folder`")
)

// workers has the processes of tests of schedulers.
var workers = []string{"margay/testsuite/programs/worker"}

// Tests that need root, control groups or their own network run in this guest, followed by the
// packages for the ways in which tests can end. The guests run in parallel, because tests in both
// of them wait.
func TestInGuest(t *testing.T) {
	t.Parallel()
	packages := []Package{
		{Path: "margay/kernel/cgroup"},
		{Path: "margay/kernel/hardware"},
		{Path: "margay/kernel/klog"},
		{Path: "margay/kernel/pid1"},
		{Path: "margay/kernel/sched/priority", Timeout: 10 * time.Minute},
		{Path: "margay/kernel/task", All: true}, // jobs have control groups here
	}
	if *pattern != "" || *only != "" {
		inGuest(t, Spec{Programs: workers}, packages)
		return
	}
	results := inGuest(t, Spec{Programs: workers}, packages, endings...)
	t.Run("verdicts", func(t *testing.T) { verdicts(t, results) })
}

// Tests that need sched_ext, which does not attach if cores are isolated. Programs for the Linux
// kernel run in either guest; this one has less to do.
func TestInSchedGuest(t *testing.T) {
	t.Parallel()
	inGuest(t, Spec{Boot: initramfs.Sched, Programs: workers}, []Package{
		{Path: "margay/kernel/sched/schedext", Timeout: 14 * time.Minute},
		{Path: "margay/kernel/border"},
		{Path: "margay/kernel/sched/list"},
		{Path: "margay/nimble/engine/linux", Timeout: 10 * time.Minute},
	})
}

// inGuest runs and shows the tests of packages in a guest, and returns the results of more
// packages.
func inGuest(t *testing.T, s Spec, packages []Package, more ...Package) []Result {
	needQEMU(t)
	if *profiles != "" {
		for i := range packages {
			packages[i].Profile = true
		}
	}
	packages = slices.DeleteFunc(packages, func(p Package) bool { return !regexp.MustCompile(*only).MatchString(p.Path) })
	if len(packages) == 0 {
		t.Skipf("no package of this guest matches %s", *only)
	}
	s.Packages = append(packages, more...)
	s.Dir, s.Pattern, s.Told = t.TempDir(), *pattern, t.Logf
	results, err := Run(inTime(t), s)
	if err != nil && strings.Contains(err.Error(), "Oops: int3: ") {
		// A bug of the emulator: see RATIONALE, "Why a private QEMU on Debian 12?".
		t.Logf("a CPU ran what Linux had replaced; the guest is started once more: %v", err)
		s.Dir = t.TempDir()
		results, err = Run(inTime(t), s)
	}
	Show(t, results[:min(len(packages), len(results))])
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results[:len(packages)] {
		if *profiles == "" || r.Profile == nil {
			continue
		}
		name := strings.ReplaceAll(r.Package, "/", "-") + ".cover"
		if err := os.WriteFile(filepath.Join(*profiles, name), r.Profile, 0o644); err != nil {
			t.Error(err)
		}
	}
	return results[len(packages):]
}

// inTime returns a context that ends before the timeout of go test, which leaves time to report the
// missing results.
func inTime(t *testing.T) context.Context {
	end, ok := t.Deadline()
	if !ok {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), end.Add(-15*time.Second))
	t.Cleanup(cancel)
	return ctx
}

func needQEMU(t *testing.T) {
	t.Helper()
	if _, err := qemu.Find(t.Context(), qemu.AMD64, ""); errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs QEMU: ", err)
	}
}
