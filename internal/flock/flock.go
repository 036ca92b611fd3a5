// Package flock locks files among processes, by flock(2).
package flock

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the pause between two attempts to take a lock that another process has.
const (
	firstPause   = 100 * time.Microsecond
	longestPause = 20 * time.Millisecond
)

// Lock takes a lock of a file (unix.LOCK_EX or unix.LOCK_SH), and waits for it if another open file
// has it. The lock ends when f is closed, also by the end of the process. An error is an
// *fs.PathError; after wait it wraps unix.EWOULDBLOCK.
func Lock(f *os.File, how int, wait time.Duration) error {
	pause := firstPause
	for deadline := time.Now().Add(wait); ; pause = min(2*pause, longestPause) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || !time.Now().Before(deadline) {
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		time.Sleep(pause)
	}
}
