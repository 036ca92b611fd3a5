package apt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/progress"
)

// Cache is a directory with one directory for each thing that was fetched.
type Cache struct {
	Dir    string // its path is absolute
	Record string // name of the file in each thing that says what it is; it is written last, before the rename
}

// scratchPrefix begins the names of unfinished fetches.
const scratchPrefix = ".new-"

// Names returns the names of the things that may be in the cache.
func (c Cache) Names() []string {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// Path returns the directory of a thing.
func (c Cache) Path(name string) string { return filepath.Join(c.Dir, name) }

// Read reads the record of a thing and reports whether there is one, which means that the thing was stored as a whole.
func (c Cache) Read(name string, record any) bool {
	data, err := os.ReadFile(filepath.Join(c.Path(name), c.Record))
	return err == nil && json.Unmarshal(data, record) == nil
}

// Store makes an unpacked tree the thing of that name. The caller holds the lock.
func (c Cache) Store(tree, name string, record any) error {
	data, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tree, c.Record), append(data, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Path(name)); err != nil {
		return err
	}
	return os.Rename(tree, c.Path(name))
}

// lockPoll is how often a taken lock is tried again.
const lockPoll = 200 * time.Millisecond

// Lock waits until this process alone may change the cache. The kernel of the host frees a dead process's lock.
func (c Cache) Lock(ctx context.Context, report progress.Func) (unlock func(), err error) {
	wrap := func(err error) error { return fmt.Errorf("lock %s: %w", c.Dir, err) }
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, wrap(err)
	}
	f, err := os.OpenFile(filepath.Join(c.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, wrap(err)
	}
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, wrap(err)
		}
		if !told {
			report.Report(progress.Step{Text: "waiting for another process that fetches to " + c.Dir})
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, wrap(ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}

// Scratch makes an empty directory for one fetch and removes what dead fetches left. The caller holds the lock.
func (c Cache) Scratch() (string, error) {
	left, err := os.ReadDir(c.Dir)
	for _, e := range left {
		if strings.HasPrefix(e.Name(), scratchPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(c.Dir, e.Name())))
		}
	}
	if err != nil {
		return "", fmt.Errorf("clean %s: %w", c.Dir, err)
	}
	return os.MkdirTemp(c.Dir, scratchPrefix)
}
