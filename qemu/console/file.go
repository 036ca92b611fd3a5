package console

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// A file is the bounded file of a log. With the previous one it uses about twice its limit on disk.
type file struct {
	path  string
	limit int64
	f     *os.File // nil: to be opened by the next write
	size  int64
	lost  int64 // bytes not written
	err   error // why, the last reason
}

func openFile(path string, limit int64) (*file, error) {
	w := &file{path: path, limit: limit}
	if err := w.open(); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return w, nil
}

func (w *file) open() error {
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w.f, w.size = f, info.Size()
	return nil
}

// write appends the text, whole lines, or counts it as lost.
func (w *file) write(text []byte) {
	if err := w.makeRoom(int64(len(text))); err != nil {
		w.lose(len(text), err)
		return
	}
	n, err := w.f.Write(text)
	w.size += int64(n)
	if err != nil {
		w.lose(len(text)-n, err)
	}
}

func (w *file) lose(n int, err error) {
	w.lost += int64(n)
	w.err = err
}

// makeRoom opens the file if necessary, and rotates it if n more bytes would exceed the limit.
func (w *file) makeRoom(n int64) error {
	if w.f == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	if w.size == 0 || w.size+n <= w.limit {
		return nil
	}
	err := w.f.Close()
	w.f = nil
	if err != nil {
		return err
	}
	// A missing name was removed to save space: start a new file.
	if err := os.Rename(w.path, w.path+OldSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return w.open()
}

func (w *file) close() error {
	if w.f == nil {
		return nil
	}
	return w.f.Close()
}
