package hardware

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Trying whether there are huge pages takes few page faults: each hosted node does it when it
// starts.
func TestHugePagesIsCheap(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	faults := func() int64 {
		var used unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
			t.Fatal(err)
		}
		return used.Minflt
	}
	before := faults()
	if _, err := HugePages(); err != nil {
		t.Fatal(err)
	}
	if n := faults() - before; n > 200 {
		t.Errorf("it takes %d page faults", n)
	}
}
