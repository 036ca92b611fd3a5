package jobinit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/task"
)

func TestPlaceOfDumps(t *testing.T) {
	for _, k := range []struct {
		pattern string
		pid     bool // core_uses_pid
		want    string
	}{
		{"core\n", false, "/work/core"},
		{"core\n", true, "/work/core.7"},
		{"core.%p", true, "/work/core.7"},
		{"/dev/dumps/%p\n", false, "/dev/dumps/7"},
		{"sub/%%core", false, "/work/sub/%core"},
		{"|/usr/lib/systemd/systemd-coredump %P", false, ""},
		{"@/run/dumps.socket", false, ""},
		{"core.%e", false, ""},
		{"\n", false, ""},
	} {
		d, err := placeOfDumps(k.pattern, k.pid, "/work")
		got := ""
		if err == nil {
			got = d.dir + "/" + d.file(7)
		}
		if got != k.want {
			t.Errorf("%q: %q, %v", k.pattern, got, err)
		}
	}
}

// A file that a rank names as its module is opened with the rights of the user of the ranks, and
// never memory of a process.
func TestOpenModule(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test needs root, which may read what another user may not")
	}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	of := func(user int) *initProcess { return &initProcess{spec: task.Spec{UID: user, GID: user}} }
	f, err := of(0).openModule(secret)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := of(70001).openModule(secret); !errors.Is(err, unix.EACCES) {
		t.Errorf("a file that the user may not read: %v", err)
	}
	for _, name := range []string{"/proc/self/mem", "/proc/self/maps", os.DevNull, dir} {
		if f, err := of(0).openModule(name); err == nil {
			f.Close()
			t.Errorf("%s is opened", name)
		}
	}
	if f, err := os.Open(secret); err != nil { // other threads are root still
		t.Error(err)
	} else {
		f.Close()
	}
}
