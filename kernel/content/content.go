// Package content keeps files that jobs have brought to a node, named by the SHA-256 digests of
// their contents, so that a later job with the same files need not bring them again.
//
// The files are in a RAM disk that PID 1 keeps a descriptor of, so they survive a restart of the node
// kernel. It is mounted where only the node's own processes reach it, and job inits show some of the
// files to their ranks, where nobody can write to them. The store is bounded by a budget, and gives up
// the files that were used least recently. A file that a job was given stays open, and whole, although
// the store gives it up.
//
// A file is added from a descriptor of the job's own copy, after its data has been copied and its
// digest computed here. So a job can add any content, but only under its true name, and a job gets a
// content only if its client knows the digest.
//
// Locks, outermost first: Store.adding (held while a file is added), Store.mu.
package content

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// page is what the size of a file is rounded up to in a RAM disk, in bytes.
const page = 4096

// mode is the permissions of each file: any job may read and execute those that it is given.
const mode = 0o555

// partial is the name of a file that is being added.
const partial = "partial"

// ErrRefused reports a file that the store does not take: it is not a regular file in a RAM disk, too
// large, or has another digest than it should.
var ErrRefused = errors.New("content: refused")

// Store is the files of a node. It is safe for concurrent use.
type Store struct {
	root   *os.File
	budget int64
	folder string // where it is mounted; empty: nowhere

	adding  sync.Mutex   // held while a file is added; outermost
	pending atomic.Int32 // files that AddSoon has not added yet

	mu    sync.Mutex
	files map[archive.Digest]*file
	used  int64  // bytes, in whole pages
	clock uint64 // counts uses
}

// file is a file of the store.
type file struct {
	size int64  // bytes, in whole pages
	used uint64 // when, by Store.clock
}

// DiskSize is how much memory the RAM disk of a store takes at most, in bytes: a file that is being
// added, and files that jobs have although the store has given them up, are beyond its budget.
func DiskSize(budget int64) int64 { return 2*budget + page }

// NewDisk makes an empty RAM disk for a store with a budget in bytes. It exists as long as a
// descriptor of its root, or Store.Mount has mounted it.
func NewDisk(budget int64) (*os.File, error) {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("content: open a RAM disk: %w", err)
	}
	defer unix.Close(fd)
	for key, value := range map[string]string{"size": fmt.Sprint(DiskSize(budget)), "mode": "700"} {
		if err := unix.FsconfigSetString(fd, key, value); err != nil {
			return nil, fmt.Errorf("content: set %s of a RAM disk to %s: %w", key, value, err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return nil, fmt.Errorf("content: make a RAM disk: %w", err)
	}
	mount, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return nil, fmt.Errorf("content: mount a RAM disk: %w", err)
	}
	return os.NewFile(uintptr(mount), "content"), nil
}

// New makes the store of a folder, which holds what an earlier store of it has left. The folder is
// the store's from then on. The budget is in bytes.
func New(root *os.File, budget int64) (*Store, error) {
	s := &Store{root: root, budget: budget, files: make(map[archive.Digest]*file)}
	fd, err := unix.Openat(int(root.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("content: open the store: %w", err)
	}
	folder := os.NewFile(uintptr(fd), "content")
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("content: read the store: %w", err)
	}
	for _, name := range names {
		if err := s.find(name); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.makeRoom(0)
}

// find takes up a file of an earlier store, and removes one that it was adding.
func (s *Store) find(name string) error {
	digest, err := archive.Parse(name)
	if err != nil {
		return s.remove(name)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(s.root.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("content: look at %s: %w", name, err)
	}
	s.enter(digest, st.Size)
	return nil
}

// Mount mounts the store's RAM disk, which NewDisk has made, at path, a folder that is made if it is
// missing. It does nothing if an earlier store of the disk has done so. It must be called before the
// store is shared.
func (s *Store) Mount(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	disk, err := s.root.Stat()
	if err != nil {
		return fmt.Errorf("content: %w", err)
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(disk, there) {
		if err := unix.MoveMount(int(s.root.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("content: mount %s: %w", path, err)
		}
	}
	s.folder = path
	return nil
}

// Folder returns where the store is mounted, or an empty string. The files there have their digests
// as names.
func (s *Store) Folder() string { return s.folder }

// Open opens the files with the given digests for reading. The files are the caller's; one that the
// store lacks is nil.
func (s *Store) Open(digests []archive.Digest) []*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := make([]*os.File, len(digests))
	for i, digest := range digests {
		f := s.files[digest]
		if f == nil {
			continue
		}
		// It may have a lease of a rank, which must not block the node.
		fd, err := unix.Openat(int(s.root.Fd()), digest.String(), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			continue // or out of descriptors: the job brings its own
		}
		files[i] = os.NewFile(uintptr(fd), digest.String())
		s.clock++
		f.used = s.clock
	}
	return files
}

// Add copies a file in a RAM disk into the store. It may be written to meanwhile: what is added has
// the digest. Adding a file that is there does nothing. The file stays the caller's.
func (s *Store) Add(digest archive.Digest, from *os.File) error {
	size, err := s.check(from)
	if err != nil {
		return err
	}
	s.adding.Lock()
	defer s.adding.Unlock()
	s.mu.Lock()
	had := s.files[digest] != nil
	s.mu.Unlock()
	if had {
		return nil
	}
	// There is room beyond the budget, so no file is given up for one that is refused.
	if err := s.copy(digest, from, size); err != nil {
		return errors.Join(err, s.remove(partial))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.makeRoom(pages(size)); err != nil {
		return errors.Join(err, s.remove(partial))
	}
	if err := unix.Renameat(int(s.root.Fd()), partial, int(s.root.Fd()), digest.String()); err != nil {
		return fmt.Errorf("content: name %v: %w", digest, err)
	}
	s.enter(digest, size)
	return nil
}

// mostPending bounds the files that wait to be added. Each has a descriptor.
const mostPending = 2 * archive.MaxContents

// AddSoon adds a file without waiting for it, unless many wait already. The file is the store's from
// then on. added receives the result; it is called on a goroutine of its own.
func (s *Store) AddSoon(digest archive.Digest, from *os.File, added func(error)) {
	if s.pending.Add(1) > mostPending {
		s.pending.Add(-1)
		from.Close()
		return
	}
	go func() {
		defer s.pending.Add(-1)
		defer from.Close()
		added(s.Add(digest, from))
	}()
}

// check returns the size of a file that can be added. Reading one in another kind of file system
// might never end.
func (s *Store) check(from *os.File) (size int64, err error) {
	var st unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Fstat(int(from.Fd()), &st), unix.Fstatfs(int(from.Fd()), &system)); err != nil {
		return 0, fmt.Errorf("content: look at a file: %w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || system.Type != unix.TMPFS_MAGIC:
		return 0, fmt.Errorf("%w: a file that is not a regular one in a RAM disk", ErrRefused)
	case st.Size > s.budget || pages(st.Size) > s.budget: // near 2^63 the second overflows
		return 0, fmt.Errorf("%w: a file of %d bytes in a store of %d", ErrRefused, st.Size, s.budget)
	}
	return st.Size, nil
}

// copy writes size bytes to the partial file and compares their digest.
func (s *Store) copy(digest archive.Digest, from *os.File, size int64) error {
	fd, err := unix.Openat(int(s.root.Fd()), partial, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
	if err != nil {
		return fmt.Errorf("content: make a file: %w", err)
	}
	to := os.NewFile(uintptr(fd), partial)
	defer to.Close()
	if err := to.Chmod(mode); err != nil { // whatever the umask is
		return fmt.Errorf("content: make a file: %w", err)
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, hash), io.NewSectionReader(from, 0, size))
	if err != nil {
		return fmt.Errorf("content: copy a file: %w", err)
	}
	if n != size || archive.Digest(hash.Sum(nil)) != digest {
		return fmt.Errorf("%w: a file that was said to be %v, and is not", ErrRefused, digest)
	}
	return nil
}

// makeRoom gives up files until size bytes find room. The caller holds mu.
func (s *Store) makeRoom(size int64) error {
	if s.used+size <= s.budget {
		return nil
	}
	digests := make([]archive.Digest, 0, len(s.files))
	for digest := range s.files {
		digests = append(digests, digest)
	}
	slices.SortFunc(digests, func(a, b archive.Digest) int { return int(s.files[a].used) - int(s.files[b].used) })
	for _, digest := range digests {
		if s.used+size <= s.budget {
			return nil
		}
		if err := s.remove(digest.String()); err != nil {
			return err
		}
		s.used -= s.files[digest].size
		delete(s.files, digest)
	}
	return nil
}

// enter notes a file. The caller holds mu, or nobody else has the store.
func (s *Store) enter(digest archive.Digest, size int64) {
	s.clock++
	s.files[digest] = &file{size: pages(size), used: s.clock}
	s.used += pages(size)
}

func (s *Store) remove(name string) error {
	if err := unix.Unlinkat(int(s.root.Fd()), name, 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("content: remove %s: %w", name, err)
	}
	return nil
}

// Close closes the store's folder.
func (s *Store) Close() error { return s.root.Close() }

// pages rounds a size up to whole pages.
func pages(size int64) int64 { return (size + page - 1) / page * page }
