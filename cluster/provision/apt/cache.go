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

// Cache is a directory with one directory for each fetched item.
type Cache struct {
	Dir    string // its path is absolute
	Record string // name of the file in each thing that says what it is; it is written last, before the rename
}

// scratchPrefix begins the names of unfinished fetches.
const scratchPrefix = ".new-"

// Names returns the names of the items that may be in the cache.
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

// Path returns the directory of an item.
func (c Cache) Path(name string) string { return filepath.Join(c.Dir, name) }

// Read reads the record of an item and reports whether it exists, that is, whether the item is
// complete.
func (c Cache) Read(name string, record any) bool {
	data, err := os.ReadFile(filepath.Join(c.Path(name), c.Record))
	return err == nil && json.Unmarshal(data, record) == nil
}

// Store stores an unpacked tree as the item of that name. The caller holds the lock.
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

// lockPoll is the interval between attempts to take a held lock.
const lockPoll = 200 * time.Millisecond

// Lock waits for the exclusive right to change the cache. The kernel releases a dead process's
// lock.
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

// Scratch creates an empty directory for one fetch and removes the leftovers of dead fetches. The
// caller holds the lock.
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
