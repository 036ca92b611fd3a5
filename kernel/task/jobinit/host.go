package jobinit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// showHost mounts the folders of the host, which the node has at source (node.HostRoot), in the
// root of a job. The job's own files of /etc are mounted over the host's, if the host has them.
func showHost(source, root string) error {
	folders, err := os.ReadDir(source)
	if err != nil {
		return failure("show the files of the host", err)
	}
	if len(folders) == 0 {
		return failure("show the files of the host", errors.New("this node has none (its console says why)"))
	}
	own := make(map[string]*os.File)
	defer func() {
		for _, f := range own {
			f.Close()
		}
	}()
	for name := range given {
		if own[name], err = cloneMount(unix.AT_FDCWD, filepath.Join(root, name), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return failure("show the files of the host", err)
		}
	}
	for _, folder := range folders {
		if err := showFolder(folder, source, root); err != nil {
			return failure("show /"+folder.Name()+" of the host", err)
		}
	}
	for name, f := range own {
		if err := coverFile(filepath.Join(root, name), f); err != nil {
			return failure("make "+name, err)
		}
	}
	return nil
}

// showFolder mounts one folder, or makes the link that the host has instead.
func showFolder(folder fs.DirEntry, source, root string) error {
	from, to := filepath.Join(source, folder.Name()), filepath.Join(root, folder.Name())
	if folder.Type() == fs.ModeSymlink {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	mount, err := cloneMount(unix.AT_FDCWD, from, unix.AT_SYMLINK_NOFOLLOW|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer mount.Close()
	return unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// coverFile mounts a mount of a file over a file that is there.
func coverFile(path string, mount *os.File) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
