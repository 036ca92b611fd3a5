// Package content caches the files of jobs on a node under the SHA-256 digests of their contents,
// so that a later job with the same files need not transfer them again.
//
// The files are in a RAM disk. PID 1 keeps a descriptor of it, so they survive a restart of the
// node kernel. Only the node's own processes reach its mount point; job inits give ranks read-only
// access to single files. A budget bounds the store, which evicts the least recently used files.
// It evicts none that a job holds, because that would free no memory.
//
// A file is added from a descriptor of the job's own copy. The store copies the data and computes
// the digest itself, so a job can add any content, but only under its true digest. A job gets a
// content only if its client knows the digest, and a job of the same user has brought the content.
// So a user cannot guess which files the jobs of other users have.
//
// Hosted nodes also see files that a user of their host lends to its own jobs (OpenLent). They are
// not in the store.
//
// Locks, outermost first: Store.adding (held while a file is added), Store.mu.
package content

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// page is the unit in which a RAM disk allocates memory, in bytes.
const page = 4096

// mode is the permissions of each file: a job may read and execute the files that it is given.
const mode = 0o555

// partial is the name of a file that is being added.
const partial = "partial"

// ErrRefused reports a file that the store does not accept: it is not a regular file in a RAM disk,
// is too large, or does not match its digest.
var ErrRefused = errors.New("content: refused")

// Store is the files of a node. It is safe for concurrent use.
type Store struct {
	root   *os.File
	budget int64
	folder string // mount point; empty: not mounted

	adding  sync.Mutex   // held while a file is added; outermost
	pending atomic.Int32 // files that AddSoon has not added yet

	mu    sync.Mutex
	files map[key]*file
	used  int64  // bytes, in whole pages
	clock uint64 // counts uses
}

// key is a content that a user's jobs have brought.
type key struct {
	user   uint32
	digest archive.Digest
}

// folder is the folder with the files of a user.
func folder(user uint32) string { return strconv.FormatUint(uint64(user), 10) }

func (k key) String() string { return folder(k.user) + "/" + k.digest.String() }

// file is a file of the store.
type file struct {
	size  int64  // bytes, in whole pages
	used  uint64 // when, by Store.clock
	holds int    // how many Holdings have it
}

// Holding is files that a job has from a store, which does not evict them.
type Holding []*file

// DiskSize returns the most memory that the RAM disk of a store can take, in bytes. After a restart
// a store does not know what running jobs hold. It may evict such a file, whose memory is not free
// until its jobs have ended. A file that does not fit then is not added.
func DiskSize(budget int64) int64 { return budget + page }

// NewDisk makes an empty RAM disk for a store with a budget in bytes. It exists while a descriptor
// of its root is open or Store.Mount has mounted it.
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

// New makes the store of a folder, with the files that an earlier store has left there. The store
// owns root from then on. The budget is in bytes.
func New(root *os.File, budget int64) (*Store, error) {
	s := &Store{root: root, budget: budget, files: make(map[key]*file)}
	users, err := s.list(".")
	if err != nil {
		return nil, err
	}
	for _, name := range users {
		if err := s.find(name); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.makeRoom(0)
}

// list returns the names in a folder of the store.
func (s *Store) list(path string) ([]string, error) {
	fd, err := unix.Openat(int(s.root.Fd()), path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("content: open the store: %w", err)
	}
	dir := os.NewFile(uintptr(fd), "content")
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("content: read the store: %w", err)
	}
	return names, nil
}

// find takes over the files that an earlier store had of a user, or removes a file that the store
// had not finished adding.
func (s *Store) find(name string) error {
	user, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return s.remove(name)
	}
	digests, err := s.list(name)
	if err != nil {
		return err
	}
	for _, text := range digests {
		digest, err := archive.Parse(text)
		if err != nil {
			return fmt.Errorf("content: %s/%s: %w", name, text, err)
		}
		k := key{uint32(user), digest}
		var st unix.Stat_t
		if err := unix.Fstatat(int(s.root.Fd()), k.String(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("content: look at %v: %w", k, err)
		}
		s.enter(k, st.Size)
	}
	return nil
}

// Mount mounts the store's RAM disk, which NewDisk has made, at the folder path, and makes the
// folder if it is missing. It does nothing if an earlier store of the disk has mounted it there. It
// must be called before the store is shared.
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

// Folder returns where the files of a user are mounted, empty if the store is not. The name of each
// file there is its digest.
func (s *Store) Folder(user uint32) string {
	if s.folder == "" {
		return ""
	}
	return filepath.Join(s.folder, folder(user))
}

// Open opens the files of a user with the given digests for reading. A file that the store lacks is
// nil. The caller closes the others. The store keeps them until the caller releases what it holds.
func (s *Store) Open(user uint32, digests []archive.Digest) (files []*os.File, held Holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	files = make([]*os.File, len(digests))
	for i, digest := range digests {
		k := key{user, digest}
		f := s.files[k]
		if f == nil {
			continue
		}
		// A rank may hold a lease on the file, which must not block the node.
		fd, err := unix.Openat(int(s.root.Fd()), k.String(), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			continue // no descriptor is left, for example: the job transfers its own copy
		}
		files[i] = os.NewFile(uintptr(fd), digest.String())
		s.clock++
		f.used = s.clock
		f.holds++
		held = append(held, f)
	}
	return files, held
}

// Release ends a holding, once.
func (s *Store) Release(held Holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range held {
		f.holds--
	}
}

// Add copies a file in a RAM disk into the store, for jobs of the same user. A job may write to it
// during the copy, but a file is only added if the copied data has the digest. If the store has the
// file, Add does nothing. The caller keeps the file.
func (s *Store) Add(user uint32, digest archive.Digest, from *os.File) error {
	k := key{user, digest}
	size, err := s.check(from)
	if err != nil {
		return err
	}
	s.adding.Lock()
	defer s.adding.Unlock()
	s.mu.Lock()
	had := s.files[k] != nil
	s.mu.Unlock()
	if had {
		return nil
	}
	s.mu.Lock()
	err = s.makeRoom(Pages(size)) // nothing else is added in the meantime
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.copy(digest, from, size); err != nil {
		return errors.Join(err, s.remove(partial))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = unix.Mkdirat(int(s.root.Fd()), folder(user), 0o700)
	if err == nil || err == unix.EEXIST {
		err = unix.Renameat(int(s.root.Fd()), partial, int(s.root.Fd()), k.String())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("content: name %v: %w", k, err), s.remove(partial))
	}
	s.enter(k, size)
	return nil
}

// mostPending bounds the files that wait to be added. Each has a descriptor.
const mostPending = 2 * archive.MaxContents

// AddSoon is Add in the background, and closes the file. If mostPending files wait already, it only
// closes the file. Otherwise it calls added with the result, on a goroutine of its own.
func (s *Store) AddSoon(user uint32, digest archive.Digest, from *os.File, added func(error)) {
	if s.pending.Add(1) > mostPending {
		s.pending.Add(-1)
		from.Close()
		return
	}
	go func() {
		defer s.pending.Add(-1)
		defer from.Close()
		added(s.Add(user, digest, from))
	}()
}

// check returns the size of a file, or an error if it cannot be added. Reading a file in another
// file system than a RAM disk could block for ever.
func (s *Store) check(from *os.File) (size int64, err error) {
	var st unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Fstat(int(from.Fd()), &st), unix.Fstatfs(int(from.Fd()), &system)); err != nil {
		return 0, fmt.Errorf("content: look at a file: %w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || system.Type != unix.TMPFS_MAGIC:
		return 0, fmt.Errorf("%w: a file that is not a regular one in a RAM disk", ErrRefused)
	case st.Size > s.budget || Pages(st.Size) > s.budget: // Pages overflows near 2^63
		return 0, fmt.Errorf("%w: a file of %d bytes in a store of %d", ErrRefused, st.Size, s.budget)
	}
	return st.Size, nil
}

// copy copies size bytes to the partial file and compares their digest.
func (s *Store) copy(digest archive.Digest, from *os.File, size int64) error {
	fd, err := unix.Openat(int(s.root.Fd()), partial, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
	if err != nil {
		return fmt.Errorf("content: make a file: %w", err)
	}
	to := os.NewFile(uintptr(fd), partial)
	defer to.Close()
	if err := to.Chmod(mode); err != nil { // the umask may have removed permissions
		return fmt.Errorf("content: make a file: %w", err)
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, hash), io.NewSectionReader(from, 0, size))
	if err != nil {
		return fmt.Errorf("content: copy a file: %w", err)
	}
	if n != size || archive.Digest(hash.Sum(nil)) != digest {
		return fmt.Errorf("%w: a file whose digest is not %v", ErrRefused, digest)
	}
	return nil
}

// makeRoom evicts files until the budget has room for size bytes. If what jobs hold leaves too
// little, it evicts none. The caller holds mu.
func (s *Store) makeRoom(size int64) error {
	over := s.used + size - s.budget
	keys := slices.SortedFunc(maps.Keys(s.files), func(a, b key) int { return cmp.Compare(s.files[a].used, s.files[b].used) })
	var evicted []key
	for _, k := range keys {
		if over <= 0 {
			break
		}
		if f := s.files[k]; f.holds == 0 {
			evicted = append(evicted, k)
			over -= f.size
		}
	}
	if over > 0 {
		return fmt.Errorf("%w: %d bytes more than there is room for beside the files of running jobs", ErrRefused, over)
	}
	for _, k := range evicted {
		if err := s.remove(k.String()); err != nil {
			return err
		}
		s.used -= s.files[k].size
		delete(s.files, k)
	}
	return nil
}

// enter records a file. The caller holds mu, unless the store is not shared yet.
func (s *Store) enter(k key, size int64) {
	s.clock++
	s.files[k] = &file{size: Pages(size), used: s.clock}
	s.used += Pages(size)
}

func (s *Store) remove(name string) error {
	if err := unix.Unlinkat(int(s.root.Fd()), name, 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("content: remove %s: %w", name, err)
	}
	return nil
}

// Close closes the store's folder.
func (s *Store) Close() error { return s.root.Close() }

// Pages rounds a size up to whole pages.
func Pages(size int64) int64 { return (size + page - 1) / page * page }
