package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
)

// Data for a machine's files goes nowhere else, neither through a symbolic link nor through a
// second name of a file, and nothing is read from elsewhere.
func TestFilesElsewhere(t *testing.T) {
	const text = `{"name": "m"}`
	quick := []string{"/proc/self/exe", "-test.run=^$"}
	places := map[string]struct {
		place func(elsewhere, path string) error
		used  bool
	}{
		"a link":         {os.Symlink, false},
		"another name":   {os.Link, false},
		"a file like it": {func(_, path string) error { return os.WriteFile(path, []byte(text), 0o600) }, true},
	}
	for name, test := range map[string]struct {
		file func(Dir) string
		use  func(Dir) error
	}{
		"spec written": {Dir.specFile, func(d Dir) error { return d.writeSpec(Spec{}) }},
		"spec read":    {Dir.specFile, func(d Dir) error { _, err := d.ReadSpec(); return err }},
		"lock": {Dir.lockFile, func(d Dir) error {
			f, err := d.lock()
			f.Close()
			return err
		}},
		"boot configuration": {func(d Dir) string { return d.nodeFile(0) }, func(d Dir) error {
			return (&hosted{dir: d, spec: Spec{Name: "m", Substrate: node.Hosted, Cores: 1, MemoryMiB: 128, Secret: "s"}, cert: []byte("c")}).writeConfig(0, 1)
		}},
		"log of serve": {func(d Dir) string { return d.Log("serve") }, func(d Dir) error {
			return (&holder{dir: d, serve: quick}).runServe(t.Context())
		}},
		"log of the holder": {func(d Dir) string { return d.Log("holder") }, func(d Dir) error {
			cmd, err := startHolder(d, UpOptions{Holder: quick})
			if err != nil {
				return err
			}
			return cmd.Wait()
		}},
		"console": {func(d Dir) string { return d.ConsoleLog(0) }, func(d Dir) error {
			if tail(d.ConsoleLog(0), 1) == nil {
				return errors.New("it is not read")
			}
			return nil
		}},
	} {
		for kind, place := range places {
			t.Run(name+" is "+kind, func(t *testing.T) {
				dir := base(t)
				d := created(t, "m")
				tree(t, dir, "elsewhere", text)
				elsewhere := filepath.Join(dir, "elsewhere")
				if err := place.place(elsewhere, test.file(d)); err != nil {
					t.Fatal(err)
				}
				if err := test.use(d); (err == nil) != place.used {
					t.Errorf("it is used: %v", err)
				}
				if got, err := os.ReadFile(elsewhere); err != nil || string(got) != text {
					t.Errorf("the file elsewhere became %q, %v", got, err)
				}
			})
		}
	}
}

// A pipe in the place of a file blocks no caller.
func TestPipeForFile(t *testing.T) {
	base(t)
	d := created(t, "m")
	if err := unix.Mkfifo(d.lockFile(), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, alive := d.Holder(); pid != 0 || alive {
		t.Errorf("the holder is process %d, alive %v", pid, alive)
	}
	if _, err := d.lock(); err == nil {
		t.Error("the pipe is locked")
	}
}

// machine down ends the process that has the machine locked, whatever the lock file says.
func TestDownOfHolder(t *testing.T) {
	base(t)
	d := created(t, "m")
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	hold(t, d)
	f, err := os.OpenFile(d.lockFile(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(writeAt(f, fmt.Sprintln(bystander.Process.Pid)), f.Close(), Down(ctx, d, t.Logf)); err != nil {
		t.Error(err)
	}
	_ = bystander.Process.Kill() // it may have ended
	_ = bystander.Wait()
	if how := bystander.ProcessState.Sys().(syscall.WaitStatus).Signal(); how != unix.SIGKILL {
		t.Errorf("the process that the lock file names has got signal %v", how)
	}
}

// A process that only queries the lock file, or takes the machine's lock as a file, is not a
// holder.
func TestHolderIsAProcess(t *testing.T) {
	base(t)
	d := created(t, "m")
	f, err := os.OpenFile(d.lockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(lockOpen(f), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	if sent, err := endingOf(t, d).signal(unix.SIGTERM); sent || err != nil {
		t.Errorf("a signal is sent: %v, %v", sent, err)
	}
}
