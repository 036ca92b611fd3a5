package task

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/cgroup"
)

// spawn starts the job init, with far as its end of the link.
func (c *Container) spawn(far *os.File) (*exec.Cmd, error) {
	cmd := exec.Command(c.host.JobInit[0], c.host.JobInit[1:]...)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{far}
	cmd.Env = initEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWUTS,
		Setsid:     true,
	}
	if c.host.UserNS {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: c.spec.UID, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: c.spec.GID, HostID: os.Getgid(), Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP, unix.CAP_KILL,
			unix.CAP_CHOWN, unix.CAP_FOWNER, unix.CAP_DAC_OVERRIDE, unix.CAP_SYS_CHROOT}
	}
	if c.host.Cgroups != nil {
		init, ranks, err := c.group()
		if err != nil {
			return nil, err
		}
		defer init.Close()
		defer ranks.Close()
		cmd.Args = append(cmd.Args, "group")
		cmd.ExtraFiles = append(cmd.ExtraFiles, ranks)
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(init.Fd())
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("task: start init of job %d: %w", c.spec.Job, err)
	}
	return cmd, nil
}

// initEnv is the environment of a job init: variables of Go's runtime.
func initEnv() []string {
	env := []string{"GOMAXPROCS=1", "GOMEMLIMIT=64MiB", "GOGC=400"}
	if runtime.GOARCH == "amd64" {
		// Package zstd makes a table of hash/crc32 that it uses for Snappy alone, with an
		// instruction of SSE 4.2 if there is one, which takes 20 ms of an emulated node at each
		// start. Nothing else in Go uses that instruction.
		env = append(env, "GODEBUG=cpu.sse42=off")
	}
	return env
}

// group makes the job's control group and opens the two parts of it.
func (c *Container) group() (init, ranks *os.File, err error) {
	limits := cgroup.Limits{Memory: c.spec.Memory, Pids: c.spec.Pids}
	for _, r := range c.spec.Ranks {
		limits.Cores = append(limits.Cores, r.Cores...)
		limits.Ranks = append(limits.Ranks, r.Rank)
	}
	group, err := c.host.Cgroups.Create(groupName(c.spec.Job), limits)
	if err != nil {
		return nil, nil, err
	}
	if init, err = group.Init(); err != nil {
		return nil, nil, err
	}
	if ranks, err = group.Ranks(); err != nil {
		init.Close()
		return nil, nil, err
	}
	return init, ranks, nil
}

func groupName(job id.Job) string { return "job-" + strconv.FormatUint(uint64(job), 10) }
