package job

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/tools/margay/command"
)

// A signal that asks margay debug to end goes on to gdb, which lets the rank go on then. margay
// debug ends by it, too, and no folder is left.
func TestRunGDBEnds(t *testing.T) {
	program, ready, temporary := filepath.Join(t.TempDir(), "gdb"), filepath.Join(t.TempDir(), "ready"), t.TempDir()
	script := "#!/bin/sh\ntrap 'exit 3' HUP\necho \"$@\" >" + ready + "\nwhile :; do sleep 0.01; done\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temporary)
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	ended := make(chan error, 1)
	go func() { ended <- runGDB(program, []string{"-batch"}, near) }()
	var told string
	for begun := time.Now(); !strings.HasSuffix(told, "\n"); time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(ready) // it is not there at first
		told = string(text)
		if time.Since(begun) > time.Minute {
			t.Fatal("gdb has not begun")
		}
	}
	if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	var status *command.ExitStatus
	if err := <-ended; !errors.As(err, &status) || status.Signal != unix.SIGHUP {
		t.Error(err)
	}
	if !strings.HasSuffix(told, " -batch\n") || !strings.Contains(told, "target remote "+temporary) {
		t.Errorf("gdb's arguments: %s", told)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("%v is left: %v", left, err)
	}
}
