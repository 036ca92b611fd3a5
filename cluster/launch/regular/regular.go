// Package regular opens regular files and nothing else. A name that was a file a moment ago may be
// a FIFO by now: opening that would wait for its writer, and opening a device may do something.
package regular

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrNot is the reason for not opening a file that is not regular.
var ErrNot = errors.New("not a regular file")

// Open opens a regular file for reading, and never waits. Symbolic links are followed. The error is
// a *fs.PathError.
func Open(path string) (*os.File, error) {
	if err := check(path, func() (fs.FileInfo, error) { return os.Stat(path) }); err != nil {
		return nil, err
	}
	return open(path)
}

// open opens a file that was regular when it was looked at.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := check(path, f.Stat); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// check returns an error if the file described by stat must not be read.
func check(path string, stat func() (fs.FileInfo, error)) error {
	info, err := stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNot}
	}
	return err
}
