package machine

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"margay/cluster/folder"
	"margay/qemu/console"
)

// maxLog is the size, in bytes, at which the log of a daemon is rotated. One older file is kept.
const maxLog = 8 << 20

// BoundLog returns a writer for the lines of a daemon. Where the daemon's standard error is the log
// that the machine keeps of it, the writer rotates that file: the rest of the process writes into
// the new file as well, such as Go's runtime in a crash. The writer is safe for concurrent use.
func BoundLog(d Dir, who string, output, stderr io.Writer) io.Writer {
	l := &boundLog{path: d.Log(who), limit: maxLog}
	for _, w := range []io.Writer{stderr, output} {
		if f, ok := w.(*os.File); ok && folder.IsStill(l.path, f) == nil {
			l.files = append(l.files, f)
		}
	}
	if len(l.files) == 0 || l.files[0] != stderr {
		return stderr
	}
	if info, err := l.files[0].Stat(); err == nil {
		l.size = info.Size()
	}
	return l
}

// boundLog is a log whose file is rotated.
type boundLog struct {
	path  string
	files []*os.File // the descriptors of the process that refer to the file
	limit int64

	mu   sync.Mutex
	size int64
}

// Write appends a line.
func (l *boundLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(line)) > l.limit {
		_ = l.rotate() // or the old file grows, and there is another try at twice the size
		l.size = 0
	}
	n, err := l.files[0].Write(line)
	l.size += int64(n)
	return n, err
}

// rotate gives the file the name of the older one, and lets the descriptors refer to a new one. The
// new one is made first: a full disk must not leave the log without a file.
func (l *boundLog) rotate() error {
	fresh := l.path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier try
		return err
	}
	next, err := folder.Open(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND)
	if err != nil {
		return err
	}
	defer next.Close()
	// A missing name was removed to save space.
	if err := os.Rename(l.path, l.path+console.OldSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, l.path); err != nil {
		return err
	}
	for _, f := range l.files {
		if err := unix.Dup3(int(next.Fd()), int(f.Fd()), 0); err != nil {
			return err
		}
	}
	return nil
}

// OpenLog opens the log of a daemon, and its older file, nil if there is none.
func (d Dir) OpenLog(who string) (log, old *os.File, err error) {
	if log, err = os.Open(d.Log(who)); err != nil {
		return nil, nil, err
	}
	old, err = os.Open(d.Log(who) + console.OldSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return log, nil, nil
	}
	if err != nil {
		return nil, nil, errors.Join(err, log.Close())
	}
	is, err1 := log.Stat()
	was, err2 := old.Stat()
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, errors.Join(err, log.Close(), old.Close())
	}
	if os.SameFile(is, was) { // it has just been rotated
		return log, nil, old.Close()
	}
	return log, old, nil
}
