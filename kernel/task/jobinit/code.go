package jobinit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// A file with code is a read-only mount over a file of the job's RAM disk, so ranks can neither
// change nor remove it. If the node has the content, the mount shows the node's file, and all jobs
// execute the same pages of memory. If not, it shows the job's own file: a program finds the same
// rules in its first job and in later ones.

// share mounts a content that the node has over f, a file without data. It reports false if the
// content must be copied, because it is no longer in its folder, or mounted nowhere.
func (d *folder) share(f *os.File, digest archive.Digest) (shared bool, err error) {
	held := d.held[digest]
	if held.File == nil || held.mounted == "" {
		return false, nil
	}
	code, err := cloneMount(unix.AT_FDCWD, filepath.Join(held.mounted, digest.String()), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return false, nil
	}
	defer code.Close()
	has, err := held.Stat()
	if err != nil {
		return false, err
	}
	found, err := code.Stat()
	if err != nil {
		return false, err
	}
	if !os.SameFile(has, found) {
		return false, nil
	}
	return true, errors.Join(d.cover(f, code), d.brought.addFixed(code))
}

// protect mounts a file of the job's RAM disk over itself.
func (d *folder) protect(f *os.File) error {
	code, err := cloneMount(int(f.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer code.Close()
	return d.cover(f, code)
}

// cover mounts code, a mount of cloneMount, over f.
func (d *folder) cover(f, code *os.File) error {
	if d.covered++; d.covered > archive.MaxContents {
		return fmt.Errorf("more than %d files with code", archive.MaxContents)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(int(code.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("make a mount read-only: %w", err)
	}
	const flags = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(int(code.Fd()), "", int(f.Fd()), "", flags); err != nil {
		return fmt.Errorf("mount code: %w", err)
	}
	return nil
}

// cloneMount returns a mount that shows a file alone.
func cloneMount(dir int, name string, flags uint) (*os.File, error) {
	fd, err := unix.OpenTree(dir, name, flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clone a mount: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
