package flock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// One open file has the lock; another one waits for it, or has an error when its time is over.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, second := open(t, path), open(t, path)
	if err := Lock(first, unix.LOCK_EX, 0); err != nil {
		t.Fatal(err)
	}
	var failed *fs.PathError
	if err := Lock(second, unix.LOCK_SH, time.Millisecond); !errors.As(err, &failed) || !errors.Is(err, unix.EWOULDBLOCK) || failed.Path != path {
		t.Errorf("a lock that another file has: %v", err)
	}
	got := make(chan error)
	go func() { got <- Lock(second, unix.LOCK_EX, time.Minute) }()
	select {
	case err := <-got:
		t.Fatalf("two files have the lock, %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	if err := <-got; err != nil {
		t.Errorf("the lock of a file that was closed: %v", err)
	}
}

func TestLockOfClosedFile(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "lock"))
	f.Close()
	if err := Lock(f, unix.LOCK_EX, time.Minute); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
}
