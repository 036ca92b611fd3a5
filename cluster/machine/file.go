package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/cluster/way"
)

// openFile opens a file of a machine, and makes it if flag has os.O_CREATE. It follows no link,
// waits for no pipe, and accepts only a regular file of this user's with a single name, so that
// data for a machine's file is written nowhere else.
func openFile(path string, flag int) (*os.File, error) {
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

// writeFile writes a whole file of a machine.
func writeFile(path string, text []byte) error {
	f, err := openFile(path, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.Write(text)
	}
	return errors.Join(err, f.Close())
}

// syncFile waits until a file of a machine is on the disk.
func syncFile(path string) error {
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// readFile reads a whole file of a machine.
func readFile(path string) ([]byte, error) {
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// removeFiles removes files and empty folders, if they exist.
func removeFiles(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
