package jobinit

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
	"margay/kernel/link"
	"margay/kernel/task"
)

// devices are the device files a job sees.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// hidden are the files of /proc with data of other jobs, which Linux does not separate by
// namespaces.
var hidden = []string{"locks", "key-users"}

// setStage prepares the part of a job's surroundings that all jobs have in common, before the job
// is known: an empty RAM disk at mountPoint, and /dev and /proc. Until the archive is unpacked,
// these two are mounted over the node's.
func setStage() error {
	if err := setDev(); err != nil {
		return err
	}
	if err := setProc(); err != nil {
		return err
	}
	if err := unix.Mount("job", mountPoint, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return failure("mount RAM disk", err)
	}
	for _, dir := range []string{"dev", "etc", "proc", "tmp"} {
		if err := os.Mkdir(filepath.Join(mountPoint, dir), 0o755); err != nil {
			return failure("make root", err)
		}
	}
	return wrap("make root", os.Chmod(filepath.Join(mountPoint, "tmp"), fs.ModeSticky|0o777))
}

// setDev mounts the job's /dev over the node's.
func setDev() error {
	if err := unix.Mount("dev", mountPoint, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,"+room(64<<10)); err != nil {
		return failure("mount /dev", err)
	}
	for _, name := range devices {
		if err := bindDevice(name, filepath.Join(mountPoint, name)); err != nil {
			return failure("bind /dev/"+name, err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, filepath.Join(mountPoint, name)); err != nil {
			return failure("make /dev", err)
		}
	}
	if err := os.Mkdir(filepath.Join(mountPoint, "shm"), 0o755); err != nil {
		return failure("make /dev", err)
	}
	if err := mountTerminals(); err != nil {
		return err
	}
	return move(mountPoint, "/dev")
}

func bindDevice(name, target string) error {
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	f.Close()
	return unix.Mount("/dev/"+name, target, "", unix.MS_BIND, "")
}

// setProc mounts the job's /proc over the node's.
func setProc() error {
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return failure("mount /proc", err)
	}
	return hide()
}

// hide covers the files of /proc that no job may see.
func hide() error {
	for _, name := range hidden {
		err := unix.Mount("/dev/null", filepath.Join("/proc", name), "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // not every Linux has them
			return failure("hide /proc/"+name, err)
		}
	}
	return nil
}

// enterStage mounts the stage over the job's RAM disk, and makes the RAM disk the root of this
// process and of all that it will start.
func enterStage(s task.Spec) error {
	for _, dir := range []string{"/dev", "/proc"} {
		if err := move(dir, mountPoint+dir); err != nil {
			return err
		}
	}
	options := "mode=1777"
	if s.Memory > 0 {
		options += "," + room(s.Memory)
	}
	if err := unix.Mount("shm", mountPoint+"/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return failure("mount /dev/shm", err)
	}
	if s.Host {
		if err := showHost(node.HostRoot, mountPoint); err != nil {
			return err
		}
	}
	return enterRoot()
}

// move moves a mount, with those below it.
func move(from, to string) error {
	return wrap("move "+from, unix.Mount(from, to, "", unix.MS_MOVE, ""))
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

// awaitJob waits, as a spare, for the first message about a job. Until then, this process ends with
// the node kernel, even if it is stopped and does not see the end of the link. After it, the link
// alone decides: the node kernel leaves that with PID 1.
func (s *sandbox) awaitJob() (*link.Message, error) {
	runtime.LockOSThread() // Linux keeps the signal for each thread
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return nil, failure("end with the node kernel", err)
	}
	if err := s.conn.Send(link.New(task.Staged, nil)); err != nil {
		return nil, err
	}
	m, err := s.conn.Recv()
	if err != nil {
		return nil, err // of the end of the link, too: there was no job
	}
	if m.Kind == task.Resync {
		// A new node kernel has found the link of the job before, which the last one had not
		// dropped.
		return nil, io.EOF
	}
	return &m, wrap("outlive the node kernel", unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0))
}

// next receives the next message. Its payload is valid until the one after it.
func (in *initProcess) next() (link.Message, error) {
	if m := in.first; m != nil {
		in.first = nil
		return *m, nil
	}
	return in.conn.Next()
}
