package proxy

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/fuse"
)

// How long a node may use names and attributes without asking again. A file that is opened is
// always looked at. Programs look for many files that are not there, so of folders of the host a
// node remembers that as well.
const (
	valid     = time.Second
	validHost = time.Minute
)

func (m *mount) valid() time.Duration {
	if m.Host {
		return validHost
	}
	return valid
}

// openFlags are the flags of open that ranks may use. They have the same values on all processors.
const openFlags = unix.O_ACCMODE | unix.O_APPEND | unix.O_TRUNC | unix.O_EXCL | unix.O_SYNC | unix.O_DSYNC

// openBelow opens a path below a folder. Only the last name may be a link, with O_PATH and
// O_NOFOLLOW.
func openBelow(root int, path string, flags, mode uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Mode: mode,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(root, path, &how)
		if err == unix.EINTR || err == unix.EAGAIN && try < 8 { // something was renamed in that moment
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// open opens a file of the folder.
func (m *mount) open(path string, flags, mode uint64) (*os.File, error) {
	f, err := openBelow(int(m.root.Fd()), path, flags, mode)
	if err == unix.ELOOP {
		err = unix.ESTALE // a link has taken the place of a folder: the node looks again
	}
	return f, err
}

// find opens a file by its number, whatever it is, to look at it.
func (m *mount) find(node uint64) (*os.File, *unix.Stat_t, error) {
	path, err := m.path(node)
	if err != nil {
		return nil, nil, err
	}
	f, err := m.open(path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil {
		err = m.still(node, &st)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, &st, nil
}

// on calls do with a file, which it may look at and whose attributes it may change: the one that
// has the name, or else, if ranks have it open, the one that they have open.
func (m *mount) on(node uint64, do func(f *os.File, st *unix.Stat_t) error) error {
	f, st, err := m.find(node)
	if err == nil {
		defer f.Close()
		return do(f, st)
	}
	h := m.opened(node)
	if h == nil {
		return err
	}
	defer m.done(h)
	st = new(unix.Stat_t)
	if err := unix.Fstat(int(h.file.Fd()), st); err != nil {
		return err
	}
	return do(h.file, st)
}

// in opens a folder by its number, and calls do with it.
func (m *mount) in(node uint64, do func(folder int) error) error {
	path, err := m.path(node)
	if err != nil {
		return err
	}
	f, err := m.open(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(int(f.Fd()))
}

// changing is an error for requests that change a folder that is shared read-only.
func (m *mount) changing(r *fuse.Request) error {
	if !m.ReadOnly {
		return nil
	}
	switch r.Opcode {
	case fuse.SetAttr, fuse.Symlink, fuse.MkNod, fuse.MkDir, fuse.Unlink, fuse.RmDir, fuse.Rename, fuse.Rename2, fuse.Link,
		fuse.Write, fuse.Create, fuse.FAllocate:
		return unix.EROFS
	case fuse.Open:
		if r.Flags&unix.O_ACCMODE != unix.O_RDONLY || r.Flags&unix.O_TRUNC != 0 {
			return unix.EROFS
		}
	case fuse.Access:
		if r.Flags&unix.W_OK != 0 {
			return unix.EROFS
		}
	}
	return nil
}

// do carries out a request and appends what it returns to the answer.
func (m *mount) do(r fuse.Request, answer []byte) ([]byte, error) {
	if err := m.changing(&r); err != nil {
		return nil, err
	}
	switch r.Opcode {
	case fuse.Lookup:
		return m.lookup(answer, r.Node, r.Name)
	case fuse.Forget, fuse.BatchForget:
		m.forget(r.Forgets)
		return answer, nil
	case fuse.GetAttr:
		return m.attr(answer, r.Node)
	case fuse.SetAttr:
		if err := m.setAttr(&r); err != nil {
			return nil, err
		}
		return m.attr(answer, r.Node)
	case fuse.ReadLink:
		return m.readLink(answer, r.Node)
	case fuse.Symlink:
		return m.make(answer, &r, func(folder int) error { return unix.Symlinkat(r.NewName, folder, r.Name) })
	case fuse.MkNod:
		if r.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, unix.EPERM
		}
		return m.make(answer, &r, func(folder int) error {
			fd, err := unix.Openat(folder, r.Name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, permissions(r.Mode))
			if err == nil {
				err = errors.Join(settle(fd, r.Mode), unix.Close(fd))
			}
			return err
		})
	case fuse.MkDir:
		return m.make(answer, &r, func(folder int) error { return unix.Mkdirat(folder, r.Name, r.Mode&0o7777) })
	case fuse.Unlink, fuse.RmDir:
		return answer, m.remove(&r)
	case fuse.Rename, fuse.Rename2:
		return answer, m.rename(&r)
	case fuse.Link:
		return m.link(answer, &r)
	case fuse.Open:
		return m.openFile(answer, &r)
	case fuse.Create:
		return m.create(answer, &r)
	case fuse.OpenDir:
		return m.openFolder(answer, &r)
	case fuse.Read:
		return m.read(answer, &r)
	case fuse.Write:
		return m.write(answer, &r)
	case fuse.ReadDir, fuse.ReadDirPlus:
		return m.readFolder(answer, &r)
	case fuse.StatFS:
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(m.root.Fd()), &st); err != nil {
			return nil, err
		}
		return fuse.AppendSpace(answer, fuse.Space{
			Blocks: st.Blocks, Free: st.Bfree, Available: st.Bavail, Files: st.Files, FreeFiles: st.Ffree,
			BlockSize: uint32(st.Bsize), FragmentSize: uint32(st.Frsize),
		}), nil
	case fuse.Release, fuse.ReleaseDir:
		m.release(r.Handle)
		return answer, nil
	case fuse.Access:
		return answer, m.access(&r)
	}
	return m.onHandle(answer, &r)
}

// onHandle carries out other requests about an open file.
func (m *mount) onHandle(answer []byte, r *fuse.Request) ([]byte, error) {
	h, err := m.handle(r.Handle)
	if err != nil {
		return nil, err
	}
	defer m.done(h)
	fd := int(h.file.Fd())
	switch r.Opcode {
	case fuse.Flush: // as the rank closes it; some file systems report errors only then
		if m.ReadOnly {
			return nil, unix.ENOSYS // which Linux remembers
		}
		if err := m.settleLoss(h); err != nil {
			return nil, err
		}
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return answer, nil
		}
		return answer, unix.Close(copied)
	case fuse.FSync, fuse.FSyncDir:
		sync := unix.Fsync
		if r.Flags&fuse.FSyncData != 0 {
			sync = unix.Fdatasync
		}
		err := sync(fd)
		return answer, cmp.Or(m.takeOwed(h), err)
	case fuse.FAllocate:
		return answer, unix.Fallocate(fd, r.Flags, int64(r.Offset), int64(r.Size))
	case fuse.LSeek:
		if r.Flags != unix.SEEK_DATA && r.Flags != unix.SEEK_HOLE {
			return nil, unix.EINVAL
		}
		offset, err := unix.Seek(fd, int64(r.Offset), int(r.Flags))
		return fuse.AppendOffset(answer, offset), err
	}
	return nil, unix.ENOSYS
}

// attributes returns what the node is shown of a file.
func (m *mount) attributes(st *unix.Stat_t) fuse.Attr {
	return fuse.Attr{
		Ino: st.Ino, Size: uint64(st.Size), Blocks: uint64(st.Blocks), Mode: st.Mode, Links: uint32(st.Nlink), UID: m.uid, GID: m.gid,
		BlockSize: uint32(st.Blksize),
		ATime:     syscall.Timespec(st.Atim), MTime: syscall.Timespec(st.Mtim), CTime: syscall.Timespec(st.Ctim),
	}
}

// entry appends an answer with a file in a folder.
func (m *mount) entry(answer []byte, folder uint64, name string, st *unix.Stat_t) ([]byte, uint64, error) {
	number, err := m.enter(folder, name, st)
	if err != nil {
		return nil, 0, err
	}
	return fuse.AppendEntry(answer, fuse.Entry{Node: number, Attr: m.attributes(st), Valid: m.valid()}), number, nil
}

func (m *mount) lookup(answer []byte, folder uint64, name string) ([]byte, error) {
	path, err := m.path(folder)
	if err == nil {
		err = m.searchable(folder)
	}
	if err != nil {
		return nil, err
	}
	f, err := m.open(filepath.Join(path, name), unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	answer, _, err = m.entry(answer, folder, name, &st)
	return answer, err
}

// attr appends the attributes of a file.
func (m *mount) attr(answer []byte, node uint64) ([]byte, error) {
	err := m.on(node, func(_ *os.File, st *unix.Stat_t) error {
		answer = fuse.AppendAttr(answer, m.attributes(st), m.valid())
		return nil
	})
	return answer, err
}

// permissions returns the permissions that a regular file may get.
func permissions(mode uint32) uint32 { return mode & 0o1777 }

// settle gives a new file the permissions that its maker has asked for, whose mask may differ
// from the mask of this process. Linux on the node has applied it.
func settle(fd int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o777 == mode&0o777 {
		return err
	}
	return unix.Fchmod(fd, permissions(mode))
}

func (m *mount) setAttr(r *fuse.Request) error {
	if r.Valid&fuse.SetUID != 0 && r.UID != m.uid || r.Valid&fuse.SetGID != 0 && r.GID != m.gid {
		return unix.EPERM
	}
	if r.Valid&fuse.SetSize != 0 {
		if err := m.truncate(r); err != nil {
			return err
		}
	}
	if r.Valid&(fuse.SetMode|fuse.SetATime|fuse.SetMTime) == 0 {
		return nil
	}
	return m.on(r.Node, func(f *os.File, st *unix.Stat_t) error { return set(f, st, r) })
}

// set sets the mode and the times of a file.
func set(f *os.File, st *unix.Stat_t, r *fuse.Request) error {
	if r.Valid&fuse.SetMode != 0 {
		mode := r.Mode & 0o7777
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			return unix.EOPNOTSUPP
		case unix.S_IFREG:
			mode = permissions(mode)
		}
		if err := unix.Chmod(magic(f), mode); err != nil {
			return err
		}
	}
	if r.Valid&(fuse.SetATime|fuse.SetMTime) == 0 {
		return nil
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, magic(f), times(r), 0)
}

// magic is a name of an open file, which leads to this file whatever its other names are. The file
// may be opened with O_PATH, and may be a link: Linux follows the name, and not the link.
func magic(f *os.File) string { return filepath.Join("/proc/self/fd", itoa(int(f.Fd()))) }

// times returns the times that a request sets.
func times(r *fuse.Request) []unix.Timespec {
	one := func(set, now uint32, t unix.Timespec) unix.Timespec {
		switch {
		case r.Valid&set == 0:
			return unix.Timespec{Nsec: unix.UTIME_OMIT}
		case r.Valid&now != 0:
			return unix.Timespec{Nsec: unix.UTIME_NOW}
		}
		return t
	}
	return []unix.Timespec{
		one(fuse.SetATime, fuse.SetATimeNow, unix.Timespec(r.ATime)), one(fuse.SetMTime, fuse.SetMTimeNow, unix.Timespec(r.MTime)),
	}
}

func (m *mount) truncate(r *fuse.Request) error {
	if r.Size > 1<<63-1 {
		return unix.EFBIG
	}
	if r.Valid&fuse.SetHandle != 0 {
		h, err := m.handle(r.Handle)
		if err != nil {
			return err
		}
		defer m.done(h)
		return unix.Ftruncate(int(h.file.Fd()), int64(r.Size))
	}
	f, _, err := m.regular(r.Node, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Ftruncate(int(f.Fd()), int64(r.Size))
}

func (m *mount) readLink(answer []byte, node uint64) ([]byte, error) {
	f, _, err := m.find(node)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	target := make([]byte, fuse.MaxPath+1)
	n, err := unix.Readlinkat(int(f.Fd()), "", target)
	if err == unix.ENOENT {
		err = unix.EINVAL // it is not a link
	}
	if err != nil {
		return nil, err
	}
	return append(answer, target[:n]...), nil
}

// make makes a file in a folder, and appends it to the answer.
func (m *mount) make(answer []byte, r *fuse.Request, do func(folder int) error) ([]byte, error) {
	if err := m.in(r.Node, do); err != nil {
		return nil, err
	}
	return m.lookup(answer, r.Node, r.Name)
}

func (m *mount) remove(r *fuse.Request) error {
	flags := 0
	if r.Opcode == fuse.RmDir {
		flags = unix.AT_REMOVEDIR
	}
	err := m.in(r.Node, func(folder int) error { return unix.Unlinkat(folder, r.Name, flags) })
	if err == nil {
		m.removed(r.Node, r.Name)
	}
	return err
}

func (m *mount) rename(r *fuse.Request) error {
	if r.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return unix.EINVAL
	}
	err := m.in(r.Node, func(from int) error {
		return m.in(r.NewDir, func(to int) error { return unix.Renameat2(from, r.Name, to, r.NewName, uint(r.Flags)) })
	})
	if err == nil {
		m.moved(r.Node, r.Name, r.NewDir, r.NewName, r.Flags&unix.RENAME_EXCHANGE != 0)
	}
	return err
}

func (m *mount) link(answer []byte, r *fuse.Request) ([]byte, error) {
	return m.make(answer, r, func(to int) error {
		return m.on(r.NewDir, func(f *os.File, _ *unix.Stat_t) error { // NewDir is the file
			return unix.Linkat(unix.AT_FDCWD, magic(f), to, r.Name, unix.AT_SYMLINK_FOLLOW)
		})
	})
}

// regular opens a regular file by its number.
func (m *mount) regular(node uint64, flags uint32) (*os.File, *unix.Stat_t, error) {
	seen, st, err := m.find(node)
	if err != nil {
		return nil, nil, err
	}
	seen.Close()
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil, unix.EACCES // opening a device or a pipe has effects
	}
	path, err := m.path(node)
	if err != nil {
		return nil, nil, err
	}
	f, err := m.open(path, uint64(flags)|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := checkRegular(f, st); err != nil {
		return nil, nil, err
	}
	if err := m.still(node, st); err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// checkRegular closes a file that is not a regular one.
func checkRegular(f *os.File, st *unix.Stat_t) error {
	err := unix.Fstat(int(f.Fd()), st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EACCES
	}
	if err != nil {
		f.Close()
	}
	return err
}

func (m *mount) openFile(answer []byte, r *fuse.Request) ([]byte, error) {
	f, st, err := m.regular(r.Node, r.Flags&openFlags&^unix.O_EXCL)
	if err == nil && !m.permits(st, unix.R_OK) {
		f.Close()
		err = unix.EACCES
	}
	if err != nil {
		return nil, err
	}
	number, same, err := m.keep(f, r.Node, st)
	if err != nil {
		return nil, err
	}
	var flags uint32
	if same && r.Flags&unix.O_TRUNC == 0 {
		flags = fuse.KeepCache
	}
	return fuse.AppendOpen(answer, number, flags), nil
}

func (m *mount) create(answer []byte, r *fuse.Request) ([]byte, error) {
	var f *os.File
	var st unix.Stat_t
	err := m.in(r.Node, func(folder int) error {
		flags := int(r.Flags&openFlags) | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY
		err := unix.Fstatat(folder, r.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
		made := err == unix.ENOENT
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.EEXIST
		}
		fd, err := unix.Openat(folder, r.Name, flags, permissions(r.Mode))
		if err != nil {
			return err
		}
		if made {
			_ = settle(fd, r.Mode)
		}
		f = os.NewFile(uintptr(fd), r.Name)
		return checkRegular(f, &st)
	})
	if err != nil {
		return nil, err
	}
	answer, node, err := m.entry(answer, r.Node, r.Name, &st)
	if err != nil {
		f.Close()
		return nil, err
	}
	number, _, err := m.keep(f, node, &st)
	if err != nil {
		m.forget([]fuse.Forgotten{{Node: node, Count: 1}})
		return nil, err
	}
	return fuse.AppendOpen(answer, number, 0), nil
}

func (m *mount) read(answer []byte, r *fuse.Request) ([]byte, error) {
	h, err := m.handle(r.Handle)
	if err != nil {
		return nil, err
	}
	defer m.done(h)
	head := len(answer)
	answer = answer[:head+int(min(r.Size, fuse.MaxData))]
	n, err := h.file.ReadAt(answer[head:], int64(r.Offset&(1<<63-1)))
	// Linux takes a short answer for the end of the file. After an error it asks for single pages.
	if err != nil && !isEnd(err) {
		return nil, err
	}
	return answer[:head+n], nil
}

func (m *mount) write(answer []byte, r *fuse.Request) ([]byte, error) {
	h, err := m.handle(r.Handle)
	if err != nil {
		return nil, err
	}
	defer m.done(h)
	if !r.Behind {
		if err := m.takeOwed(h); err != nil {
			return nil, err
		}
	}
	written, err := writeAt(int(h.file.Fd()), r.Data, r.Offset)
	if r.Behind && err != nil {
		m.owe(h, err)
	}
	if written == 0 && err != nil {
		return nil, err
	}
	return fuse.AppendWritten(answer, written), nil
}

// writeAt writes data at an offset, and returns how much it has written. That is all unless there
// was an error.
func writeAt(fd int, data []byte, offset uint64) (written int, err error) {
	if offset > 1<<63-1 {
		return 0, unix.EFBIG
	}
	for written < len(data) {
		n, err := unix.Pwrite(fd, data[written:], int64(offset)+int64(written)) // not WriteAt, which refuses O_APPEND
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return written, err
		case n == 0:
			return written, unix.EIO
		}
		written += n
	}
	return written, nil
}

func (m *mount) access(r *fuse.Request) error {
	path, err := m.path(r.Node)
	if err != nil {
		return err
	}
	if path == "." {
		return unix.Faccessat(int(m.root.Fd()), ".", r.Flags&7, 0)
	}
	f, err := m.open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(f.Fd()), filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if !m.permits(&st, r.Flags&7) {
		return unix.EACCES
	}
	return unix.Faccessat(int(f.Fd()), filepath.Base(path), r.Flags&7, unix.AT_SYMLINK_NOFOLLOW)
}
