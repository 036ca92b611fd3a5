package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// below returns a try to get at the node's root, which is below the job's: in namespaces of users
// and mounts that it makes, with all rights there.
func below(way string) func() error {
	return func() error {
		cmd := exec.Command("/proc/self/exe", "root", way)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		said, err := cmd.CombinedOutput()
		if errors.As(err, new(*exec.ExitError)) {
			return errors.New(strings.TrimSpace(string(said)))
		}
		return reason(err)
	}
}

// uncover goes a way to the node's root, and reports why it does not lead there.
func uncover(args []string) error {
	ways := map[string]func() error{
		"away": takeAway, "move": moveRoot, "leave": leaveRoot, "exchange": exchangeRoot, "again": enterAgain,
		"proc": func() error { return unix.Mount("proc", "/tmp", "proc", 0, "") }, "sys": func() error { return unix.Mount("sys", "/tmp", "sysfs", 0, "") },
	}
	way := ways[args[0]]
	if way == nil {
		return fmt.Errorf("there is no way %q", args[0])
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns demands it
		return err
	}
	return way()
}

func takeAway() error { return unix.Unmount("/", unix.MNT_DETACH) }

func moveRoot() error {
	return errors.Join(os.MkdirAll("/tmp/moved", 0o700), unix.Mount("/", "/tmp/moved", "", unix.MS_MOVE, ""))
}

// leaveRoot changes the root to a folder, and goes up from a folder that is outside of that.
func leaveRoot() error {
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	if err := errors.Join(os.MkdirAll("/tmp/inner", 0o700), unix.Chroot("/tmp/inner"), root.Chdir()); err != nil {
		return err
	}
	for range 64 {
		if err := os.Chdir(".."); err != nil {
			return err
		}
	}
	return differs(".", root)
}

// exchangeRoot exchanges the root for a RAM disk, and takes both away.
func exchangeRoot() error {
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	mounts, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	defer mounts.Close()
	if err := errors.Join(os.MkdirAll("/tmp/other", 0o700), unix.Mount("other", "/tmp/other", "tmpfs", 0, ""), os.Chdir("/tmp/other")); err != nil {
		return err
	}
	disk, err := os.Open(".")
	if err != nil {
		return err
	}
	defer disk.Close()
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	_ = unix.Unmount(".", unix.MNT_DETACH) // the old root
	_ = unix.Unmount("/", unix.MNT_DETACH) // the RAM disk in its place
	if err := unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	return errors.Join(differs("/", root), differs("/", disk))
}

// enterAgain makes the root of the mount namespace its own.
func enterAgain() error {
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	if err := enter("/proc/self/ns/mnt"); err != nil {
		return err
	}
	return differs("/", root)
}

// differs reports an error if a folder is one that it was before.
func differs(name string, before *os.File) error {
	was, err := before.Stat()
	if err != nil {
		return err
	}
	now, err := os.Stat(name)
	if err != nil {
		return err
	}
	if os.SameFile(was, now) {
		return fmt.Errorf("%s is %s still", name, before.Name())
	}
	return nil
}
