package hardware

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
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

// A process that has declined huge pages for all memory does not get them back for a part of it.
func TestDeclinedCompletely(t *testing.T) {
	if HugePagesDeclined() {
		t.Skip("this test was started without huge pages")
	}
	if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer AcceptHugePages()
	if err := DeclineHugePages(); err != nil {
		t.Fatal(err)
	}
	if declined, err := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0); err != nil || declined != completely {
		t.Errorf("Linux reports %d, %v", declined, err)
	}
}

// A child that is started without huge pages has none, and later children have them again.
func TestWithoutHugePages(t *testing.T) {
	const child = "MARGAY_TEST_DECLINED"
	if os.Getenv(child) != "" {
		fmt.Println("declined:", HugePagesDeclined())
		return
	}
	if HugePagesDeclined() {
		t.Skip("this test was started without huge pages")
	}
	for _, c := range []struct {
		around func(start func() error) error
		want   string
	}{
		{WithoutHugePages, "declined: true\n"},
		{func(start func() error) error { return start() }, "declined: false\n"},
	} {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestWithoutHugePages$")
		cmd.Env = append(os.Environ(), child+"=1")
		var out strings.Builder
		cmd.Stdout = &out
		if err := c.around(cmd.Start); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("%q, %v, want %q", out.String(), err, c.want)
		}
	}
}
