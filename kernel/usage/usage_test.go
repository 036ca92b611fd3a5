package usage

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that computes uses processor time; one that sleeps now and then gives its core up.
func TestOf(t *testing.T) {
	before, err := Of(os.Getpid())
	if err != nil || before.Threads == 0 {
		t.Fatalf("%+v, %v", before, err)
	}
	for start := time.Now(); time.Since(start) < 30*time.Millisecond; {
	}
	for range 5 {
		time.Sleep(time.Millisecond)
	}
	after, err := Of(os.Getpid())
	if err != nil || after.CPU <= before.CPU || after.Voluntary <= before.Voluntary || after.Involuntary < before.Involuntary {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if u, err := Of(cmd.Process.Pid); err != nil || u.CPU > time.Second || u.Threads != 1 {
		t.Errorf("sleep: %+v, %v", u, err)
	}
}

// The page of a file that Linux has to read again is a major fault, and counted as getrusage(2)
// does.
func TestMajorFaults(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "page"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
	page, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(page)
	if page[4096] != 0 {
		t.Error("the file is not what was written")
	}
	var before, after unix.Rusage
	err = unix.Getrusage(unix.RUSAGE_SELF, &before)
	u, errOf := Of(os.Getpid())
	if err := errors.Join(err, errOf, unix.Getrusage(unix.RUSAGE_SELF, &after)); err != nil {
		t.Fatal(err)
	}
	if u.MajorFaults < uint64(before.Majflt) || u.MajorFaults > uint64(after.Majflt) {
		t.Errorf("%d major faults, Linux says %d to %d", u.MajorFaults, before.Majflt, after.Majflt)
	}
	t.Log(u.MajorFaults)
}

func TestEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if u, err := Of(cmd.Process.Pid); !errors.Is(err, ErrEnded) {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestSwitches(t *testing.T) {
	v, i, err := switches(strings.NewReader("Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n"))
	if v != 12 || i != 3 || err != nil {
		t.Error(v, i, err)
	}
	for _, text := range []string{"", "voluntary_ctxt_switches:\t12\n", "voluntary_ctxt_switches:\t-1\nnonvoluntary_ctxt_switches:\t3\n"} {
		if v, i, err := switches(strings.NewReader(text)); err == nil {
			t.Errorf("%q was taken as %d, %d", text, v, i)
		}
	}
}

// What a look at a process costs.
func BenchmarkOf(b *testing.B) {
	for b.Loop() {
		if _, err := Of(os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}
