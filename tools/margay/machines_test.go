package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A folder of all machines that cannot be used is an error, the same as that of a command for one machine.
func TestListInForeignFolder(t *testing.T) {
	base := t.TempDir()
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	const way = "set MARGAY_DIR to a folder of your own that nobody else can write to"
	folders := map[string]string{
		open:                       open + " can be written by others: chmod go-w " + open + ", or " + way,
		filepath.Join(open, "sub"): filepath.Join(open, "sub") + " leads through " + open + ", which can be written by others (mode drwxrwxrwx): chmod go-w " + open + ", or " + way,
	}
	if os.Getuid() == 0 {
		other := filepath.Join(base, "other")
		if err := os.Mkdir(other, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(other, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		folders[other] = other + " belongs to another user: " + way
	}
	for folder, why := range folders {
		t.Setenv("MARGAY_DIR", folder)
		want := "folder of all machines: " + why + "\n"
		for _, args := range [][]string{{"machine", "list"}, {"machine", "list", "--json"}} {
			status, stdout, stderr := margay("", args...)
			if status != 125 || stdout != "" || stderr != "margay: "+want {
				t.Errorf("%v: status %d, %q, %q", args, status, stdout, stderr)
			}
		}
		status, _, stderr := margay("", "run", "true")
		wants(t, status, 125, stderr, want)
	}
}
