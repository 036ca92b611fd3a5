package guest

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/initramfs"
	"margay/qemu"
)

var (
	pattern  = flag.String("tests", "", "run only those tests in the guest that match the `regular expression`")
	profiles = flag.String("profiles", "", "write the coverage profiles of the tests in the guest to `folder`")
)

// Processes share the application core of a guest. What they get of it is measured, which takes a while.
func TestSharedCore(t *testing.T) {
	needQEMU(t)
	results, err := Run(inTime(t), Spec{
		Packages: []string{"margay/kernel/sched/priority"}, Dir: t.TempDir(), Pattern: *pattern, Timeout: 10 * time.Minute, Told: t.Logf,
	})
	Show(t, results)
	if err != nil {
		t.Error(err)
	}
}

// What needs root, control groups or a network of its own is tested in here.
func TestInGuest(t *testing.T) {
	inGuest(t, Spec{Packages: []string{
		"margay/kernel/cgroup",
		"margay/kernel/hardware",
		"margay/kernel/pid1",
		"margay/kernel/reap",
		"margay/kernel/task",
		"margay/nimble/engine/linux",
	}})
}

// What needs sched_ext, which is there for a whole machine and does not attach to one whose cores are isolated.
func TestInSchedGuest(t *testing.T) {
	inGuest(t, Spec{
		Packages: []string{"margay/kernel/sched/schedext", "margay/kernel/sched/list"}, Boot: initramfs.Sched,
		Timeout: 14 * time.Minute,
	})
}

func inGuest(t *testing.T, s Spec) {
	needQEMU(t)
	s.Dir, s.Pattern, s.Profile, s.Told = t.TempDir(), *pattern, *profiles != "", t.Logf
	results, err := Run(inTime(t), s)
	Show(t, results)
	if err != nil {
		t.Error(err)
	}
	for _, r := range results {
		if *profiles == "" || r.Profile == nil {
			continue
		}
		name := strings.ReplaceAll(r.Package, "/", "-") + ".cover"
		if err := os.WriteFile(filepath.Join(*profiles, name), r.Profile, 0o644); err != nil {
			t.Error(err)
		}
	}
}

// inTime returns a context that ends before the time of go test is over, so that there is time left to say what was missing.
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
	_ = os.Getenv("MARGAY_RUN") // another one, and go test does not take an earlier result: see tools/test
	if _, err := qemu.Find(t.Context(), qemu.AMD64, ""); errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs QEMU: ", err)
	}
}
