package folder

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/cluster/way"
)

// Open opens a file of a machine, and makes it if flag has os.O_CREATE. It follows no link,
// waits for no pipe, and accepts only a regular file of this user's with a single name, so that
// data for a machine's file is written nowhere else.
func Open(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || way.UID(info) != os.Getuid() || info.Sys().(*syscall.Stat_t).Nlink > 1) {
		err = fmt.Errorf("%s is not a machine's file: it must be a regular file of this user with a single name", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read reads a whole file of a machine.
func Read(path string) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// Locked reports whether another process or open file has a file locked. It queries the lock and
// does not take it: taking it would make a concurrent attempt to lock the file fail.
func Locked(f *os.File) bool {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &whole)
	return err != nil || whole.Type != unix.F_UNLCK
}
