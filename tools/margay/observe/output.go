package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// traceFile is the output of margay record. A regular file gets its name when it is complete, so
// that no part of a trace has it.
type traceFile struct {
	*os.File
	path    string // its name at the end; empty: the file is open already, such as /dev/stdout
	replace bool
}

// isOpen reports whether a path names a file that is open already, such as /dev/stdout.
func isOpen(path string) bool {
	return path == "/dev/stdout" || path == "/dev/stderr" || slices.Contains([]string{"/dev/fd", "/proc/self/fd"}, filepath.Dir(path))
}

// checkTrace refuses an output that exists, unless force is set or it is open already. It refuses
// one that is not a regular file, except for open pipes and terminals: data written to a pipe
// without a reader is lost.
func checkTrace(path string, force bool) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case isOpen(path) && (info.Mode().IsRegular() || info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) != 0):
		return nil
	case !info.Mode().IsRegular():
		return fmt.Errorf("record: %s is not a regular file: name one with --output", path)
	case !force:
		return errExists(path)
	}
	return nil
}

func errExists(path string) error {
	return fmt.Errorf("record: %s exists: --force replaces it, --output names another file", path)
}

// createTrace opens the output. An open pipe is written and not read.
func createTrace(path string, force bool) (*traceFile, error) {
	if isOpen(path) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		return &traceFile{File: f}, err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // the link stays
	}
	f, err := os.OpenFile(fmt.Sprintf("%s.%d.part", path, os.Getpid()), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	return &traceFile{f, path, force}, err
}

// keep closes the file, which is complete, and gives it its name.
func (f *traceFile) keep() error {
	if err := f.Close(); err != nil || f.path == "" {
		return err
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if f.replace {
		flags = 0
	}
	part := f.Name()
	err := unix.Renameat2(unix.AT_FDCWD, part, unix.AT_FDCWD, f.path, flags)
	switch {
	case errors.Is(err, unix.EEXIST):
		exists := errExists(f.path)
		f.path = "" // the recording stays
		return fmt.Errorf("%w; this trace is in %s", exists, part)
	case errors.Is(err, unix.EINVAL): // a file system without that flag
		err = os.Rename(part, f.path)
	}
	if err == nil {
		f.path = ""
	}
	return err
}

// discard removes the file unless it has been kept.
func (f *traceFile) discard() {
	_ = f.Close() // an error of a complete file was reported by keep
	if f.path != "" {
		_ = os.Remove(f.Name())
	}
}
