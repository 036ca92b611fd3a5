//go:build guest

package hardware

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// All processes get huge pages once they are offered, except those that declined them and do not
// ask for them.
func TestHugePages(t *testing.T) {
	before, err := FreeMemory()
	if err != nil {
		t.Fatal(err)
	}
	if err := OfferHugePages(); err != nil {
		t.Fatal(err)
	}
	// Other activity in the guest takes some MiB, such as this process when its pages become huge.
	// Linux's reserve would be 5 % of memory, and half of that again would count as unavailable.
	after, err := FreeMemory()
	if err != nil || after < before-8<<20 {
		t.Errorf("of %d MiB for applications huge pages leave %d, %v", before>>20, after>>20, err)
	}
	if have, err := HugePages(); err != nil || !have {
		t.Errorf("offered: %v, %v", have, err)
	}
	if err := DeclineHugePages(); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0)
	if have, err := HugePages(); err != nil || have {
		t.Errorf("declined: %v, %v", have, err)
	}
	huge, err := inHugePages()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(-1, 0, 2*hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	if err := unix.Madvise(memory, unix.MADV_HUGEPAGE); err != nil {
		t.Fatal(err)
	}
	for i := range memory {
		memory[i] = 1
	}
	if after, err := inHugePages(); err != nil || after <= huge {
		t.Errorf("a program that asks has %d KiB in huge pages after %d, %v", after, huge, err)
	}
}

// Memory is locked, and the Go runtime can still give some of it back.
func TestLockMemory(t *testing.T) {
	if swaps, err := Swaps(); err != nil || swaps {
		t.Errorf("this guest has swap: %v, %v", swaps, err)
	}
	if err := LockMemory(); err != nil {
		t.Fatal(err)
	}
	defer unix.Munlockall()
	for range 8 {
		garbage := make([]byte, 8<<20)
		for i := range garbage {
			garbage[i] = 1
		}
	}
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil || !strings.Contains(string(status), "VmLck:") || strings.Contains(string(status), "VmLck:\t       0 kB") {
		t.Errorf("nothing is locked: %v\n%s", err, status)
	}
}
