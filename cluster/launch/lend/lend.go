// Package lend puts programs and libraries of jobs into a folder that the hosted nodes of a machine
// see (node.Lent). So they travel to no node, and no node keeps a copy: all jobs of the host
// execute the same pages of memory.
//
// The folder belongs to the owner of the machine, whose margay run is the only one that writes to
// it, and only the owner's jobs get files from there. Each file is named by the digest of its
// content (archive.Digest). A content may vanish at any time: then nodes ask for it as without the
// folder.
package lend

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// Most bounds the contents, in bytes. They take no more than a quarter of the room that the file
// system has without them either, since it may be in memory.
const Most = archive.MaxSize

const (
	mode    = 0o555     // of each file: a job may read and execute it
	partial = "partial" // begins the names of files that are not complete

	// A content that was offered as recently as this is not removed: a launch may need it.
	recent = time.Minute
	// How old the time of the last offer may become before it is noted.
	noted = 10 * time.Second

	patience = 2 * time.Second      // for the process that changes the folder
	pause    = 5 * time.Millisecond // between two tries
)

// Folder is such a folder. Several processes may use it at the same time.
type Folder struct{ root *os.Root }

// Open opens the folder at a path. It refuses one that others than this user can see, and one on a
// file system without programs (noexec). The error is fs.ErrNotExist if there is none.
func Open(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("lend: %w", err)
	}
	f := &Folder{root}
	if err := f.check(); err != nil {
		root.Close()
		return nil, fmt.Errorf("lend: %s: %w", path, err)
	}
	return f, nil
}

func (f *Folder) check() error {
	info, err := f.root.Stat(".")
	if err != nil {
		return err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return errors.New("it is not for this user alone")
	}
	system, err := f.system()
	if err == nil && system.Flags&unix.ST_NOEXEC != 0 {
		err = errors.New("its file system has no programs (noexec)")
	}
	return err
}

// system returns the state of the file system.
func (f *Folder) system() (st unix.Statfs_t, err error) {
	dir, err := f.root.Open(".")
	if err != nil {
		return st, err
	}
	defer dir.Close()
	return st, unix.Fstatfs(int(dir.Fd()), &st)
}

// Close closes the folder.
func (f *Folder) Close() error { return f.root.Close() }

// Offer puts a content of size bytes into the folder, unless it is there. It makes room by removing
// contents that were not offered recently. open opens the file that should have the content; Offer
// checks that it has. The error is ErrBusy if another process has changed the folder for 2 s.
func (f *Folder) Offer(digest archive.Digest, size int64, open func() (io.ReadCloser, error)) error {
	if there, err := f.has(digest, size); there || err != nil {
		return err
	}
	release, err := f.lock()
	if err != nil {
		return err
	}
	defer release()
	if there, err := f.has(digest, size); there || err != nil { // another process has put it there
		return err
	}
	if err := f.makeRoom(size); err != nil {
		return err
	}
	in, err := open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := f.create()
	if err != nil {
		return fmt.Errorf("lend: %w", err)
	}
	defer out.Close()
	err = errors.Join(fill(out, in, digest, size), out.Chmod(mode))
	if err == nil {
		err = f.name(out, digest.String())
	}
	if err != nil {
		return fmt.Errorf("lend %v: %w", digest, errors.Join(err, f.abandon(out)))
	}
	return nil
}

// create makes a file that has no name yet, so that nothing of it is left if this process is
// killed. A file system may have no such files: then it is a partial one.
func (f *Folder) create() (*os.File, error) {
	dir, err := f.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), nameless), nil
	}
	return f.root.OpenFile(partial+rand.Text(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// nameless is what a file without a name is called here.
const nameless = "without a name"

// name gives a file that create has made a name, in place of whatever has it. It closes the file
// before: Linux executes none that is open for writing.
func (f *Folder) name(file *os.File, name string) error {
	if file.Name() != nameless {
		if err := file.Close(); err != nil {
			return err
		}
		return f.root.Rename(filepath.Base(file.Name()), name)
	}
	whole, err := os.Open(link(file))
	if err != nil {
		return err
	}
	defer whole.Close()
	if err := file.Close(); err != nil {
		return err
	}
	dir, err := f.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return unix.Linkat(unix.AT_FDCWD, link(whole), int(dir.Fd()), name, unix.AT_SYMLINK_FOLLOW)
}

// link is a link to an open file that may have no name.
func link(file *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", file.Fd()) }

// abandon removes a file that create has made and name has not named.
func (f *Folder) abandon(file *os.File) error {
	if file.Name() == nameless {
		return nil
	}
	return f.root.Remove(filepath.Base(file.Name()))
}

// has reports whether a content is there, and notes that it was offered.
func (f *Folder) has(digest archive.Digest, size int64) (there bool, err error) {
	info, err := f.root.Lstat(digest.String())
	if err != nil || !info.Mode().IsRegular() || info.Size() != size {
		return false, nil
	}
	if now := time.Now(); now.Sub(info.ModTime()) > noted {
		err = f.root.Chtimes(digest.String(), now, now)
	}
	return err == nil, err
}

// ErrBusy reports that another process changes the folder, or is stopped while it does.
var ErrBusy = errors.New("lend: another process changes the folder")

// lock lets no other process change the folder until release is called.
func (f *Folder) lock() (release func(), err error) {
	dir, err := f.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("lend: %w", err)
	}
	for begun := time.Now(); ; time.Sleep(pause) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { dir.Close() }, nil
		}
		if err == unix.EWOULDBLOCK && time.Since(begun) > patience {
			err = ErrBusy
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			dir.Close()
			return nil, fmt.Errorf("lend: %w", err)
		}
	}
}

// fill copies a content and checks it.
func fill(out io.Writer, in io.Reader, digest archive.Digest, size int64) error {
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, hash), io.LimitReader(in, size+1))
	if err == nil && (n != size || archive.Digest(hash.Sum(nil)) != digest) {
		err = errors.New("the file has changed")
	}
	return err
}

// errNoRoom reports a content that is too large.
var errNoRoom = errors.New("lend: there is no room for it")

// makeRoom removes contents until there is room for size bytes, the oldest first; none, if that
// would not suffice. The caller holds the lock.
func (f *Folder) makeRoom(size int64) error {
	contents, err := f.list()
	if err != nil {
		return err
	}
	var taken, recently int64 // bytes
	for _, c := range contents {
		taken += c.Size()
		if time.Since(c.ModTime()) < recent {
			recently += c.Size()
		}
	}
	budget, err := f.budget(taken)
	if err != nil {
		return err
	}
	if recently+size > budget {
		return errNoRoom
	}
	slices.SortFunc(contents, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, c := range contents {
		if taken+size <= budget {
			break
		}
		if err := f.root.Remove(c.Name()); err != nil {
			return fmt.Errorf("lend: %w", err)
		}
		taken -= c.Size()
	}
	return nil
}

// list returns the contents. It removes files that a killed process has not completed: one that
// lives has the lock.
func (f *Folder) list() (contents []fs.FileInfo, err error) {
	dir, err := f.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("lend: %w", err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("lend: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partial) {
			if err := f.root.Remove(e.Name()); err != nil {
				return nil, fmt.Errorf("lend: %w", err)
			}
			continue
		}
		_, foreign := archive.Parse(e.Name())
		if info, err := e.Info(); err == nil && foreign == nil && info.Mode().IsRegular() {
			contents = append(contents, info)
		}
	}
	return contents, nil
}

// budget returns how many bytes contents may take, those included that take taken bytes now.
func (f *Folder) budget(taken int64) (int64, error) {
	system, err := f.system()
	if err != nil {
		return 0, fmt.Errorf("lend: %w", err)
	}
	block := max(system.Bsize, 1)
	left := int64(min(system.Bavail, 4*Most/uint64(block)+1)) * block // more makes no difference
	return min(Most, (left+taken)/4), nil
}
