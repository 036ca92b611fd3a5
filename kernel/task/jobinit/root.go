package jobinit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"margay/kernel/task"
)

// mountPoint is where the job's root is built: a folder that every node has, and every host that
// tests run on. Each job has its own mount namespace, so all use the same one.
const mountPoint = "/tmp"

// devices are the device files a job sees.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// hidden are the files of /proc with data of other jobs, which Linux does not separate by
// namespaces.
var hidden = []string{"locks", "key-users"}

// makeRoot mounts the job's RAM disk and makes the folders that every job has. Nothing else is
// mounted yet, so an archive unpacked into it can reach nothing but the RAM disk.
func makeRoot(s task.Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failure("make mounts private", err)
	}
	options := "mode=755"
	if s.RAMDisk > 0 {
		options += room(s.RAMDisk)
	}
	if err := unix.Mount("job", mountPoint, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return failure("mount RAM disk", err)
	}
	root, err := os.OpenRoot(mountPoint)
	if err != nil {
		return failure("open RAM disk", err)
	}
	defer root.Close()
	for _, dir := range []string{"dev", "etc", "proc", "tmp"} {
		if err := root.Mkdir(dir, 0o755); err != nil {
			return failure("make root", err)
		}
	}
	if err := root.Chmod("tmp", fs.ModeSticky|0o777); err != nil {
		return failure("make root", err)
	}
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
	return fmt.Sprintf(",size=%d,nr_inodes=%d", bytes, max(1, bytes/inodeBytes))
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

// enterRoot mounts what the kernel provides over the RAM disk, and makes the RAM disk the root of
// this process and of all that it will start.
func enterRoot(s task.Spec) error {
	dev := filepath.Join(mountPoint, "dev")
	if err := unix.Mount("dev", dev, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755"+room(64<<10)); err != nil {
		return failure("mount /dev", err)
	}
	for _, name := range devices {
		if err := bindDevice(name, filepath.Join(dev, name)); err != nil {
			return failure("bind /dev/"+name, err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return failure("make /dev", err)
		}
	}
	shm := filepath.Join(dev, "shm")
	if err := os.Mkdir(shm, 0o755); err != nil {
		return failure("make /dev", err)
	}
	options := "mode=1777"
	if s.Memory > 0 {
		options += room(s.Memory)
	}
	if err := unix.Mount("shm", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return failure("mount /dev/shm", err)
	}
	proc := filepath.Join(mountPoint, "proc")
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return failure("mount /proc", err)
	}
	for _, name := range hidden {
		err := unix.Mount(filepath.Join(dev, "null"), filepath.Join(proc, name), "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // not every Linux has them
			return failure("hide /proc/"+name, err)
		}
	}
	return pivot()
}

func bindDevice(name, target string) error {
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	f.Close()
	return unix.Mount("/dev/"+name, target, "", unix.MS_BIND, "")
}

// pivot exchanges the root for the RAM disk and lets go of the old one.
func pivot() error {
	if err := os.Chdir(mountPoint); err != nil {
		return failure("enter root", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return failure("exchange roots", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return failure("let go of the node's root", err)
	}
	return os.Chdir("/")
}

// loopbackUp turns on the loopback device of the job's network namespace, the only one it has.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failure("turn on loopback", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return failure("turn on loopback", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return failure("turn on loopback", err)
	}
	return nil
}

// failure makes the error for the node kernel.
func failure(op string, err error) *task.StartError {
	e := &task.StartError{Rank: task.AllRanks, Op: op, Text: err.Error()}
	errors.As(err, &e.Errno)
	return e
}
