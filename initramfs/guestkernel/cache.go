package guestkernel

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
)

// scratchPrefix begins the names of unfinished fetches.
const scratchPrefix = ".new-"

// recordName is the file of a cached kernel that says what it is. It is written last, before the rename.
const recordName = "kernel.json"

// cache is a directory with one directory a kernel release.
type cache struct{ dir string }

// record is what a cached kernel needs beside its files.
type record struct {
	Version string `json:"version"`
	Arch    string `json:"arch"`
	Source  string `json:"source"`
}

// newest returns the newest cached kernel for arch.
func (c cache) newest(arch Arch) (Kernel, bool) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return Kernel{}, false
	}
	var best Kernel
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !e.IsDir() {
			continue
		}
		k, ok := c.open(e.Name(), arch)
		if ok && (best.Version == "" || compareVersions(k.Version, best.Version) > 0) {
			best = k
		}
	}
	return best, best.Version != ""
}

// open returns a cached release, if it is there, whole and for arch.
func (c cache) open(release string, arch Arch) (Kernel, bool) {
	dir := filepath.Join(c.dir, release)
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return Kernel{}, false
	}
	var r record
	if json.Unmarshal(data, &r) != nil || r.Version != release || r.Arch != arch.Name {
		return Kernel{}, false
	}
	k, ok := openRelease(dir, release)
	if !ok {
		return Kernel{}, false
	}
	k.Arch, k.Source = r.Arch, r.Source
	return k, k.load() == nil
}

// install makes an unpacked tree the cached kernel of a release. The caller holds the lock.
func (c cache) install(tree, release string, arch Arch, source string) (Kernel, error) {
	wrap := func(err error) error { return &Error{Op: "store", Object: release, Err: err} }
	if _, ok := openRelease(tree, release); !ok {
		return Kernel{}, wrap(fmt.Errorf("its packages have %w or no modules", ErrNoImage))
	}
	data, err := json.MarshalIndent(record{Version: release, Arch: arch.Name, Source: source}, "", "  ")
	if err != nil {
		return Kernel{}, wrap(err)
	}
	if err := os.WriteFile(filepath.Join(tree, recordName), append(data, '\n'), 0o644); err != nil {
		return Kernel{}, wrap(err)
	}
	target := filepath.Join(c.dir, release)
	if err := os.RemoveAll(target); err != nil {
		return Kernel{}, wrap(err)
	}
	if err := os.Rename(tree, target); err != nil {
		return Kernel{}, wrap(err)
	}
	k, ok := c.open(release, arch)
	if !ok {
		return Kernel{}, wrap(errors.New("the stored kernel cannot be read back"))
	}
	return k, nil
}

// lockPoll is how often a taken lock is tried again.
const lockPoll = 200 * time.Millisecond

// lock waits until this process alone may change the cache. The kernel of the host frees a dead process's lock.
func (c cache) lock(ctx context.Context, progress Progress) (unlock func(), err error) {
	wrap := func(err error) error { return &Error{Op: "lock the cache", Object: c.dir, Err: err} }
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, wrap(err)
	}
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
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
			progress.Report(Step{Text: "waiting for another process that fetches a kernel"})
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, wrap(ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}

// scratch makes an empty directory for one fetch and removes what dead fetches left. The caller holds the lock.
func (c cache) scratch() (string, error) {
	left, err := os.ReadDir(c.dir)
	for _, e := range left {
		if strings.HasPrefix(e.Name(), scratchPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(c.dir, e.Name())))
		}
	}
	if err != nil {
		return "", &Error{Op: "clean the cache", Object: c.dir, Err: err}
	}
	dir, err := os.MkdirTemp(c.dir, scratchPrefix)
	if err != nil {
		return "", &Error{Op: "use the cache", Object: c.dir, Err: err}
	}
	return dir, nil
}
