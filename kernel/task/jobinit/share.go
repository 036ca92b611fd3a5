package jobinit

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/slack"
	"margay/kernel/task"
	"margay/kernel/task/relay"
)

// mountWait bounds how long the relay takes to mount the shared folders, which needs no other
// process.
const mountWait = 20 * time.Second

// fuseDevice returns the node's device of file systems in user space, which jobs have no name of.
func fuseDevice() *os.File {
	fd, err := unix.Open("/dev/fuse", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // a job that needs it fails
	}
	return os.NewFile(uintptr(fd), "/dev/fuse")
}

// shareFolders mounts the shared folders of the job: it makes them in its root, and starts the
// relay.
func (in *initProcess) shareFolders() error {
	if len(in.spec.Shared) == 0 {
		return nil
	}
	if in.device == nil {
		return failure("share folders", errors.New("this node has no /dev/fuse"))
	}
	root, err := os.OpenRoot("/")
	if err != nil {
		return failure("share folders", err)
	}
	defer root.Close()
	for _, f := range in.spec.Shared {
		if err := makeDir(root, f.Path, in.spec.UID, in.spec.GID); err != nil {
			return err
		}
	}
	return wrap("share folders", in.startRelay())
}

// startRelay starts the relay, and waits until it has mounted the folders.
func (in *initProcess) startRelay() error {
	kept := in.kept.Files(task.ShareLink)
	if len(kept) == 0 {
		return errors.New("there is no link to the node kernel for them")
	}
	report, far, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	c := relay.Config{UID: in.spec.UID, GID: in.spec.GID, Folders: in.spec.Shared}
	in.mu.Lock() // the reaper waits until the pid is known
	err = slack.Start(slack.Daemon, func() (err error) {
		in.relay, err = syscall.ForkExec("/proc/self/exe", append(os.Args[:2:2], relay.Word, c.Argument()), &syscall.ProcAttr{
			Env:   os.Environ(),
			Files: []uintptr{^uintptr(0), far.Fd(), os.Stderr.Fd(), kept[0].Fd(), in.device.Fd()},
			Sys:   &syscall.SysProcAttr{Setpgid: true},
		})
		return err
	})
	in.mu.Unlock()
	far.Close()
	if err != nil {
		return err
	}
	if err := report.SetReadDeadline(time.Now().Add(mountWait)); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(report, 4096))
	if err == nil && len(text) > 0 {
		err = errors.New(string(text))
	}
	return err
}
