package slack

import (
	"errors"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// child starts a shell that starts a program, which prints its slack.
func child(t *testing.T) (slack time.Duration) {
	t.Helper()
	out, err := exec.Command("/bin/sh", "-c", "cat /proc/self/timerslack_ns; true").Output()
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}

// A child and its children have the slack, and the thread that started it has its own again.
func TestStart(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	err = Start(Daemon, func() error {
		if got := child(t); got != Daemon {
			t.Errorf("a child has a slack of %v", got)
		}
		return refused
	})
	if err != refused {
		t.Errorf("%v", err)
	}
	if now, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); now != own {
		t.Errorf("the slack of the thread was %d and is %d", own, now)
	}
	if got := child(t); got != time.Duration(own) {
		t.Errorf("a later child has a slack of %v, not %v", got, time.Duration(own))
	}
}
