package main

import (
	"os/exec"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func decimal(n int) string { return strconv.Itoa(n) }

// result is the error of a system call.
func result(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// readMemory reads a byte of a process where static programs begin.
func readMemory(pid int) error {
	var b byte
	local := unix.Iovec{Base: &b, Len: 1}
	_, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
	return err
}

// perf counts what a process, or a core, does.
func perf(pid, cpu int) error {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CONTEXT_SWITCHES, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
	fd, err := unix.PerfEventOpen(&attr, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// bpfMap makes an array of one entry, bpfNext looks for a program. Neither loads one.
func bpfMap() error {
	attr := [16]uint32{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno == 0 {
		unix.Close(int(fd))
	}
	return result(errno)
}

func bpfNext() error {
	var attr [4]uint32
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_GET_NEXT_ID, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	return result(errno)
}

func kexec() error {
	_, _, errno := unix.Syscall6(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0, 0, 0)
	return result(errno)
}

func swap() error {
	path, err := unix.BytePtrFromString("/tmp")
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(path)), 0, 0)
	return result(errno)
}

// userNamespace starts a process that is root among its own, with namespaces of all kinds.
func userNamespace() error {
	cmd := exec.Command("/proc/self/exe", "none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP}
	err := cmd.Start()
	if err == nil {
		_ = cmd.Wait()
	}
	return reason(err)
}

// disconnect disconnects a socket of datagrams.
func disconnect(fd int) error {
	to := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := syscall.Syscall(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to)), unsafe.Sizeof(to))
	return result(errno)
}
