package main

import (
	"bufio"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attackSystem ADDRESS... tries to reach the node and other jobs through Linux. The addresses are
// the node kernel's and serve's.
func attackSystem(addresses []string) error {
	runtime.LockOSThread() // changes of a thread apply to this one
	attempt(processes)
	attempt(files)
	attempt(privileges)
	attempt(network)
	for _, a := range addresses {
		attempt([]try{{"connect to " + a, func() error { return connect(a) }}})
	}
	return nil
}

// others does something to every process but PID 1 and this one: to each number that the namespace
// has given to a process or thread.
func others(do func(pid int) error) error {
	last, err := lastPID()
	if err != nil {
		return err
	}
	for pid := 2; pid <= last; pid++ {
		if pid == os.Getpid() {
			continue
		}
		if err := do(pid); err != unix.ESRCH && err != unix.EINVAL { // a thread of this process is not a process
			return err
		}
	}
	return errNothing
}

// lastPID returns the number that the namespace has given last. Numbers start again only after
// thousands, and a job's namespace is as old as the job.
func lastPID() (int, error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(load))
	return strconv.Atoi(fields[len(fields)-1])
}

var processes = []try{
	{"signal PID 1", func() error { return unix.Kill(1, unix.SIGKILL) }},
	{"signal PID 1 by a descriptor", func() error {
		fd, err := unix.PidfdOpen(1, 0)
		if err != nil {
			return err
		}
		return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}},
	{"signal any other process", func() error { return others(func(pid int) error { return tgkill(pid) }) }},
	{"trace PID 1", func() error { return unix.PtraceAttach(1) }},
	{"seize PID 1", func() error { return unix.PtraceSeize(1) }},
	{"trace any other process", func() error {
		return others(func(pid int) error {
			if err := unix.PtraceSeize(pid); err != unix.EPERM || !isThread(pid) {
				return err
			}
			return unix.ESRCH
		})
	}},
	{"read memory of PID 1", func() error { return readMemory(1) }},
	{"take a descriptor of PID 1", func() error {
		fd, err := unix.PidfdOpen(1, 0)
		if err != nil {
			return err
		}
		_, err = unix.PidfdGetfd(fd, 3, 0)
		return err
	}},
	{"limit PID 1", func() error { return unix.Prlimit(1, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil) }},
	{"move PID 1", func() error { return unix.SchedSetaffinity(1, &unix.CPUSet{1}) }},
	{"slow PID 1 down", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 1, 19) }},
	{"see other processes", func() error { return others(func(pid int) error { return see(pid) }) }},
	{"watch PID 1", func() error { return perf(1, -1) }},
	{"watch core 0", func() error { return perf(-1, 0) }},
}

func tgkill(pid int) error {
	if isThread(pid) {
		return unix.ESRCH
	}
	return unix.Kill(pid, 0)
}

// isThread reports whether a thread of this process, or of PID 1, has a number.
func isThread(tid int) bool {
	init := unix.Tgkill(1, tid, 0)
	return unix.Tgkill(os.Getpid(), tid, 0) == nil || init == nil || init == unix.EPERM
}

// see finds a process in /proc, which shows threads by number, too.
func see(pid int) error {
	if _, err := os.Stat("/proc/" + decimal(pid)); err != nil || isThread(pid) {
		return unix.ESRCH
	}
	return nil
}

// open tries to open a file to read it.
func open(path string) func() error {
	return func() error {
		f, err := os.Open(path)
		if err != nil {
			return reason(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			_, err = f.Readdirnames(1)
		} else if err == nil {
			_, err = f.Read(make([]byte, 1))
		}
		return reason(err)
	}
}

// write tries to write a file.
func write(path, text string) func() error {
	return func() error { return reason(os.WriteFile(path, []byte(text), 0o600)) }
}

// reason is what Linux has said about a file.
func reason(err error) error {
	if inner, ok := err.(*os.PathError); ok {
		return inner.Err
	}
	return err
}

var files = []try{
	{"read /proc/1/mem", open("/proc/1/mem")},
	{"read /proc/1/environ", open("/proc/1/environ")},
	{"read /proc/1/maps", open("/proc/1/maps")},
	{"read /proc/1/fd", open("/proc/1/fd")},
	{"read /proc/1/root", open("/proc/1/root/")},
	{"enter the mounts of PID 1", func() error { return enter("/proc/1/ns/mnt") }},
	{"enter the network of PID 1", func() error { return enter("/proc/1/ns/net") }},
	{"read the node's configuration", open("/margay/node.json")},
	{"read the victim's file", open("/tmp/victim")},
	{"see the file locks of others", open("/proc/locks")},
	{"see the keys of others", open("/proc/key-users")},
	{"read /dev/mem", open("/dev/mem")},
	{"read /dev/port", open("/dev/port")},
	{"read /dev/kmsg", open("/dev/kmsg")},
	{"read the log of Linux", func() error { _, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 64)); return err }},
	{"make /dev/mem", func() error { return unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, 1<<8|1) }},
	{"read control groups", open("/sys/fs/cgroup/cgroup.procs")},
	{"mount control groups", func() error { return unix.Mount("cgroup", "/tmp", "cgroup2", 0, "") }},
	{"mount anything", func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") }},
	{"mount by a descriptor", func() error { _, err := unix.Fsopen("tmpfs", 0); return err }},
	{"unmount /proc", func() error { return unix.Unmount("/proc", unix.MNT_DETACH) }},
	{"change the root", func() error { return unix.Chroot("/tmp") }},
	{"exchange the root", func() error { return unix.PivotRoot("/", "/tmp") }},
	{"write /etc/passwd", write("/etc/passwd", "me::0:0::/:/bin/sh\n")},
	{"write /proc/sys/kernel/panic", write("/proc/sys/kernel/panic", "1")},
	{"write /proc/sys/kernel/core_pattern", write("/proc/sys/kernel/core_pattern", "|/tmp/me")},
	{"write /proc/sys/kernel/hostname", write("/proc/sys/kernel/hostname", "mine")},
	{"write /proc/sysrq-trigger", write("/proc/sysrq-trigger", "c")},
	{"be spared when memory runs out", write("/proc/self/oom_score_adj", "-1000")},
}

// enter tries to join a namespace.
func enter(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, 0)
}

var privileges = []try{
	{"become root", func() error { return syscall.Setuid(0) }},
	{"join groups", func() error { return syscall.Setgroups([]int{0}) }},
	{"take a capability", capabilities},
	{"allow new privileges", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) }},
	{"raise an ambient capability", func() error {
		return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
	}},
	{"lie about its own memory", func() error { return unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_START_BRK, 4096, 0, 0) }},
	{"run in real time", func() error {
		return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 99}, 0)
	}},
	{"run with a deadline", func() error {
		a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Runtime: 1e6, Deadline: 1e7, Period: 1e7}
		return unix.SchedSetAttr(0, &a, 0)
	}},
	{"run before others", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -5) }},
	{"leave its cores", func() error { return unix.SchedSetaffinity(0, &unix.CPUSet{1}) }},
	{"make namespaces", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
	{"be root in a user namespace", userNamespace},
	{"take the root away", below("away")},
	{"move the root", below("move")},
	{"leave the root", below("leave")},
	{"put the root elsewhere", below("exchange")},
	{"enter the root again", below("again")},
	{"mount another /proc", below("proc")},
	{"mount another /sys", below("sys")},
	{"make a map of BPF", bpfMap},
	{"list programs of BPF", bpfNext},
	{"leave a key behind", func() error {
		_, err := unix.AddKey("user", "left", []byte("behind"), unix.KEY_SPEC_USER_KEYRING)
		return err
	}},
	{"load a module", func() error { return unix.FinitModule(0, "", 0) }},
	{"load another kernel", kexec},
	{"switch off", func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART2) }},
	{"swap", swap},
	{"set the clock", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: 1}) }},
	{"change the host name", func() error { return unix.Sethostname([]byte("mine")) }},
	{"open a file by its handle", func() error {
		_, err := unix.OpenByHandleAt(unix.AT_FDCWD, unix.NewFileHandle(1, make([]byte, 8)), 0)
		return err
	}},
}

// capabilities asks for all of them.
func capabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := [2]unix.CapUserData{{Effective: 1<<32 - 1, Permitted: 1<<32 - 1}, {Effective: 0xff, Permitted: 0xff}}
	return unix.Capset(&header, &all[0])
}

var network = []try{
	{"read frames", func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
	{"make packets", func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW) }},
	{"use an interface", func() error {
		all, err := net.Interfaces()
		if err != nil || len(all) != 1 || all[0].Flags&net.FlagLoopback == 0 {
			return err
		}
		return errNothing
	}},
	{"reach the host by vsock", vsock},
	{"see sockets of others", func() error {
		f, err := os.Open("/proc/net/unix")
		if err != nil {
			return err
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if fields := strings.Fields(lines.Text()); len(fields) > 7 { // it has a name
				if fields[7] == "Path" {
					continue
				}
				return nil
			}
		}
		return errNothing
	}},
}

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// vsock tries to reach the host of the virtual machine, or another job, through sockets that have
// no namespaces.
func vsock() error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: unix.VMADDR_PORT_ANY})
}

func connect(address string) error {
	c, err := net.DialTimeout("tcp", address, 30*time.Second) // no address is worth a wait: the network is not there
	if err != nil {
		for {
			inner, ok := err.(interface{ Unwrap() error })
			if !ok {
				return err
			}
			err = inner.Unwrap()
		}
	}
	return c.Close()
}
