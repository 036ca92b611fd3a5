package task

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/internal/slack"
	"margay/kernel/cgroup"
	"margay/kernel/hardware"
	"margay/kernel/link"
)

// initProcess is a job init that this node kernel has started.
type initProcess struct {
	conn    *link.Conn
	process *os.Process
	group   string        // name of its control group, where there are control groups
	user    int           // in a user namespace: the only user id
	ended   chan struct{} // closed when it has ended and is reaped
	taken   chan struct{} // of a spare: closed when a launch gets it
}

// spawn starts a job init in the control group called group, if there are control groups. In a user
// namespace of its own it is the given user. The words are arguments for it.
func (h Host) spawn(group string, user int, words ...string) (*initProcess, error) {
	near, far, err := link.Pair()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(h.JobInit[0], h.JobInit[1:]...)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{far}
	cmd.Env = initEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWUTS,
		Setsid:     true,
	}
	if h.UserNS {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getgid(), Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP, unix.CAP_KILL,
			unix.CAP_CHOWN, unix.CAP_FOWNER, unix.CAP_DAC_OVERRIDE, unix.CAP_SYS_CHROOT}
	}
	err = h.join(cmd, group)
	if err == nil {
		cmd.Args = append(cmd.Args, words...)
		err = hardware.WithoutHugePages(func() error { return slack.Start(slack.Init, cmd.Start) })
	}
	for _, f := range cmd.ExtraFiles {
		f.Close() // far, too: the end of the last other holder is the end of the link
	}
	if err != nil {
		near.Close()
		return nil, fmt.Errorf("task: start a job init: %w", err)
	}
	p := &initProcess{conn: near, process: cmd.Process, group: group, user: user, ended: make(chan struct{}), taken: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// join puts a command into the leaf "init" of a control group, with a descriptor of "ranks".
func (h Host) join(cmd *exec.Cmd, group string) error {
	if h.Cgroups == nil {
		return nil
	}
	init, err := h.Cgroups.Job(group).Init()
	if err != nil {
		return err
	}
	ranks, err := h.Cgroups.Job(group).Ranks()
	if err != nil {
		init.Close()
		return err
	}
	cmd.Args = append(cmd.Args, WithGroup)
	cmd.ExtraFiles = append(cmd.ExtraFiles, ranks, init) // the job init has no use for the second one, and closes it
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(init.Fd())
	return nil
}

// initEnv is the environment of a job init: variables of Go's runtime.
func initEnv() []string {
	env := []string{"GOMAXPROCS=1", "GOMEMLIMIT=64MiB", "GOGC=400"}
	debug := "GODEBUG=containermaxprocs=0" // no search for a limit that GOMAXPROCS overrides
	if runtime.GOARCH == "amd64" {
		// Package zstd makes a table of hash/crc32 that it uses for Snappy alone, with an
		// instruction of SSE 4.2 if there is one, which takes 20 ms of an emulated node at each
		// start. Nothing else in Go uses that instruction.
		debug += ",cpu.sse42=off"
	}
	return append(env, debug)
}

// limits returns what bounds the control group of a job.
func (s Spec) limits() cgroup.Limits {
	l := cgroup.Limits{Memory: s.Memory, Pids: s.Pids}
	for _, r := range s.Ranks {
		l.Cores = append(l.Cores, r.Cores...)
		l.Ranks = append(l.Ranks, r.Rank)
	}
	return l
}

// removeGroup kills all that is in a control group, and removes it.
func (h Host) removeGroup(group string) error {
	if h.Cgroups == nil {
		return nil
	}
	return h.Cgroups.Job(group).Remove(endWait)
}
