// Package lend puts contents of jobs' files into a folder that the hosted nodes of a machine see
// (node.Lent). So the files of a program travel to no node, and no node keeps a copy: all jobs of
// the host execute the same pages of memory.
//
// The folder belongs to the owner of the machine, whose margay run is the only one that writes to
// it, and only the owner's jobs get files from it. Each file is named by the digest of its content
// (archive.Digest). A content may vanish at any time: then nodes ask for it as without the folder.
package lend

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// Most bounds the contents, in bytes. They take no more than a quarter of what the file system has
// left without them either, since it may be in memory.
const Most = archive.MaxSize

const (
	mode      = 0o555     // of each file: a job may read and execute it
	partial   = "partial" // begins the names of files that are not complete
	abandoned = time.Hour // after which such a file has no process that completes it
	recent    = time.Minute
)

// Folder is such a folder. It is safe for concurrent use, also by several processes.
type Folder struct{ root *os.Root }

// Open opens the folder at a path. It refuses one that others than this user can see. The error is
// fs.ErrNotExist if there is none.
func Open(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("lend: %w", err)
	}
	var st unix.Stat_t
	dir, err := root.Open(".")
	if err == nil {
		err = unix.Fstat(int(dir.Fd()), &st)
		dir.Close()
	}
	if err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = errors.New("it is not for this user alone")
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("lend: %s: %w", path, err)
	}
	return &Folder{root}, nil
}

// Close closes the folder.
func (f *Folder) Close() error { return f.root.Close() }

// Offer puts a content of size bytes into the folder, unless it is there. It makes room by removing
// those that were offered least recently. open opens the file that should have the content; Offer
// checks that it has.
func (f *Folder) Offer(digest archive.Digest, size int64, open func() (io.ReadCloser, error)) error {
	name := digest.String()
	if info, err := f.root.Lstat(name); err == nil && info.Mode().IsRegular() && info.Size() == size {
		if now := time.Now(); now.Sub(info.ModTime()) > recent {
			return f.root.Chtimes(name, now, now)
		}
		return nil
	}
	if err := f.makeRoom(size); err != nil {
		return err
	}
	in, err := open()
	if err != nil {
		return err
	}
	defer in.Close()
	temporary := partial + rand.Text()
	out, err := f.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("lend: %w", err)
	}
	err = errors.Join(fill(out, in, digest, size), out.Chmod(mode), out.Close())
	if err == nil {
		err = f.root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lend %s: %w", name, err), f.root.Remove(temporary))
	}
	return nil
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

// makeRoom removes contents until there is room for size bytes, and files that killed processes
// have left.
func (f *Folder) makeRoom(size int64) error {
	contents, taken, err := f.list()
	if err != nil {
		return err
	}
	budget, err := f.budget(taken)
	if err != nil {
		return err
	}
	if size > budget {
		return errNoRoom
	}
	slices.SortFunc(contents, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, c := range contents {
		if taken+size <= budget {
			break
		}
		if err := f.root.Remove(c.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("lend: %w", err)
		}
		taken -= c.Size()
	}
	return nil
}

// list returns the contents, and how many bytes they take with files that are not complete. It
// removes abandoned ones.
func (f *Folder) list() (contents []fs.FileInfo, taken int64, err error) {
	dir, err := f.root.Open(".")
	if err != nil {
		return nil, 0, fmt.Errorf("lend: %w", err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, 0, fmt.Errorf("lend: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // it is gone, or not ours
		}
		_, err = archive.Parse(e.Name())
		switch {
		case err == nil:
			contents = append(contents, info)
		case !strings.HasPrefix(e.Name(), partial):
			continue
		case time.Since(info.ModTime()) > abandoned:
			_ = f.root.Remove(e.Name()) // another process may do the same
			continue
		}
		taken += info.Size()
	}
	return contents, taken, nil
}

// budget returns how many bytes contents may take, those included that take taken bytes now.
func (f *Folder) budget(taken int64) (int64, error) {
	dir, err := f.root.Open(".")
	if err != nil {
		return 0, fmt.Errorf("lend: %w", err)
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, fmt.Errorf("lend: %w", err)
	}
	left := int64(min(st.Bavail, 1<<40/uint64(cmp.Or(st.Bsize, 1)))) * st.Bsize
	return min(Most, (left+taken)/4), nil
}
