package machine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/tools/margay/machine"
	"margay/tools/margay/margaytest"
)

// A folder of all machines that cannot be used is an error, the same as for a command about one
// machine.
func TestListInForeignFolder(t *testing.T) {
	base := t.TempDir()
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	const way = "set MARGAY_DIR to a folder of your own that no other user can write to"
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
			status, stdout, stderr := margaytest.Margay("", args...)
			if status != 125 || stdout != "" || stderr != "margay: "+want {
				t.Errorf("%v: status %d, %q, %q", args, status, stdout, stderr)
			}
		}
		status, _, stderr := margaytest.Margay("", "run", "true")
		margaytest.Wants(t, status, 125, stderr, want)
	}
}

func TestMachineList(t *testing.T) {
	m := margaytest.Play(t, "one", func(*control.Conn, *control.Frame) {})
	margaytest.PlayIn(t, m.Base, "two", func(*control.Conn, *control.Frame) {})
	made := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, name := range []string{"one", "two"} {
		if err := os.Chtimes(filepath.Join(m.Base, name, "machine.json"), made, made); err != nil {
			t.Fatal(err)
		}
	}
	status, stdout, stderr := margaytest.Margay("", "machine", "list", "--json")
	var list []machine.State
	if err := json.Unmarshal([]byte(stdout), &list); status != 0 || err != nil || len(list) != 2 {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	for i, name := range []string{"one", "two"} {
		if x := list[i]; x.Machine != name || x.State != "up" || x.Substrate != "hosted" || x.Nodes != 4 || x.Cores != 2 || x.HolderPID != 4711 || !x.Since.Equal(made) || x.Owner == "" {
			t.Errorf("%+v", x)
		}
	}
	status, stdout, stderr = margaytest.Margay("", "machine", "list")
	margaytest.Wants(t, status, 0, stdout+stderr, "MACHINE  STATE  SUBSTRATE  NODES  CORES/NODE  OWNER", "\none      up     hosted     4      2  ", "\ntwo ", "4711\n")

	// One that is being made, and one whose making was killed.
	dir := filepath.Join(m.Base, "two")
	making, err := os.Create(filepath.Join(dir, "making"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "machine.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.FcntlFlock(making.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr = margaytest.Margay("", "machine", "list")
	margaytest.Wants(t, status, 0, stdout+stderr, "\ntwo      making ")
	making.Close()
	status, stdout, stderr = margaytest.Margay("", "machine", "list")
	margaytest.Wants(t, status, 0, stdout+stderr, "\ntwo      dead ", "\ntwo is dead: margay machine down -m two removes the rest\n")

	base := t.TempDir()
	t.Setenv("MARGAY_DIR", base)
	if status, stdout, stderr = margaytest.Margay("", "machine", "list", "--json"); status != 0 || stdout != "[]\n" || stderr != "" {
		t.Errorf("without machines: status %d, %q, %q", status, stdout, stderr)
	}
	t.Chdir(filepath.Dir(base))
	t.Setenv("MARGAY_DIR", filepath.Base(base)) // the folder is named whole
	if status, _, stderr = margaytest.Margay("", "machine", "list"); status != 0 || stderr != "margay: there is no machine in "+base+"\n" {
		t.Errorf("without machines: status %d, %q", status, stderr)
	}
	for _, other := range []string{"photos", "work"} {
		if err := os.Mkdir(filepath.Join(base, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	want := "margay: " + base + " has no machine of yours; these folders in it are none: photos, work\n"
	if status, stdout, stderr = margaytest.Margay("", "machine", "list", "--json"); status != 0 || stdout != "[]\n" || stderr != want {
		t.Errorf("beside folders of others: status %d, %q, %q", status, stdout, stderr)
	}
}
