package serve

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onOwnDisk is set in the environment of a process that runs one test.
const onOwnDisk = "MARGAY_TEST_ON_OWN_DISK"

// A write beyond the limit of fullDisk must be an error, not a signal. This cannot be set inside a
// synctest bubble.
func TestMain(m *testing.M) {
	if os.Getenv(onOwnDisk) != "" {
		signal.Ignore(unix.SIGXFSZ)
	}
	os.Exit(m.Run())
}

// ownDisk runs a test that fills the disk in its own process, and returns true in the process that
// has nothing left to do. The limit of fullDisk applies to all files of a process, and the process
// of the other tests has files of go test open.
func ownDisk(t *testing.T) (done bool) {
	t.Helper()
	if os.Getenv(onOwnDisk) != "" {
		return false
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v"}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(deadline.Add(-5*time.Second)).String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	child := exec.CommandContext(ctx, self, args...)
	child.Env = append(os.Environ(), onOwnDisk+"=1")
	output, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("in a process of its own: %v\n%s", err, output)
	}
	t.Logf("in a process of its own:\n%s", output)
	return true
}

// onFullDisk runs a test that fills the disk in a bubble, in its own process.
func onFullDisk(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if !ownDisk(t) {
		bubble(t, f)
	}
}

// fullDisk makes writes beyond a position in any file of this process fail until room is called.
func fullDisk(t *testing.T, position uint64) (room func()) {
	t.Helper()
	if os.Getenv(onOwnDisk) == "" {
		t.Fatal("a test of a full disk begins with ownDisk")
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: position, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
			t.Error(err)
		}
	}
}
