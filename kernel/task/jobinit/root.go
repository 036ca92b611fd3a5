package jobinit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"margay/kernel/task"
)

// mountPoint is where the job's root is built: a folder that every node has, and every host that
// tests run on. Each job has its own mount namespace, so all use the same one.
const mountPoint = "/tmp"

// makeRoot gives the empty RAM disk its bounds and the files that every job has. Nothing else is
// mounted in it yet, so an archive unpacked into it can reach nothing but the RAM disk.
func makeRoot(s task.Spec) error {
	if s.RAMDisk > 0 {
		if err := unix.Mount("", mountPoint, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, room(s.RAMDisk)); err != nil {
			return failure("bound RAM disk", err)
		}
	}
	root, err := os.OpenRoot(mountPoint)
	if err != nil {
		return failure("open RAM disk", err)
	}
	defer root.Close()
	passwd := fmt.Sprintf("root:x:0:0:root:/:/bin/false\n%s:x:%d:%d::%s:/bin/sh\n", s.User, s.UID, s.GID, s.Dir)
	group := fmt.Sprintf("root:x:0:\n%s:x:%d:\n", s.User, s.GID)
	files := map[string]string{
		"etc/passwd": passwd, "etc/group": group, "etc/hostname": s.Hostname + "\n", "etc/hosts": s.Hosts, "etc/nsswitch.conf": "hosts: files\n",
	}
	for name, text := range files {
		if err := root.WriteFile(name, []byte(text), 0o644); err != nil {
			return failure("make root", err)
		}
	}
	if err := listInterfaces(root, s.Interfaces); err != nil {
		return failure("make root", err)
	}
	return makeDir(root, s.Dir, s.UID, s.GID)
}

// listInterfaces makes what libraries of MPI look at in /sys: a link for each interface of the job.
func listInterfaces(root *os.Root, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := root.MkdirAll("sys/class/net", 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := root.Symlink("../../devices/virtual/net/"+name, "sys/class/net/"+name); err != nil {
			return err
		}
	}
	return nil
}

// inodeBytes is how much of a RAM disk there is for each of its files, at least: a page, which is
// what a file that is not empty takes.
const inodeBytes = 4096

// room is what bounds a RAM disk: its bytes, and the number of its files, which take memory of
// Linux when they are empty, too.
func room(bytes int64) string {
	return fmt.Sprintf("size=%d,nr_inodes=%d", bytes, max(1, bytes/inodeBytes))
}

// makeDir creates dir and its missing parents, and makes the job their owner.
func makeDir(root *os.Root, dir string, uid, gid int) error {
	made := ""
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+dir), "/"), "/") {
		if part == "" {
			continue
		}
		made = path.Join(made, part)
		err := root.Mkdir(made, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return failure("make folder /"+made, err)
		}
		if err := root.Lchown(made, uid, gid); err != nil {
			return failure("give away folder /"+made, err)
		}
	}
	return nil
}

// enterRoot covers the node's root with the RAM disk, which becomes the root of this process and of
// all that it will start. They cannot reach the root below. pivot_root(2) would look at each thread
// of the host, while nothing on it can mount or unmount: for milliseconds, on one of a thousand
// nodes.
func enterRoot() error {
	if err := os.Chdir(mountPoint); err != nil {
		return failure("enter root", err)
	}
	if err := move(".", "/"); err != nil {
		return err
	}
	return changeRoot()
}

// changeRoot makes the working directory the root.
func changeRoot() error {
	if err := unix.Chroot("."); err != nil {
		return failure("change root", err)
	}
	return os.Chdir("/")
}

// failure makes the error for the node kernel.
func failure(op string, err error) *task.StartError {
	e := &task.StartError{Rank: task.AllRanks, Op: op, Text: err.Error()}
	errors.As(err, &e.Errno)
	return e
}
