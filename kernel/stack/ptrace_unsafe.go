package stack

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stopSignal returns the signal that a stopped thread is about to get, 0 if something else has
// stopped it. It returns ESRCH if the thread is not stopped.
func stopSignal(tid int) (unix.Signal, error) {
	var info unix.Siginfo
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&info)), 0, 0)
	switch {
	case errno == unix.EINVAL, errno == 0 && info.Code>>8 == unix.PTRACE_EVENT_STOP:
		return 0, nil
	case errno != 0:
		return 0, errno
	}
	return unix.Signal(info.Signo), nil
}

// detach ends the tracing of a stopped thread, which gets a signal unless that is 0.
func detach(tid int, sig unix.Signal) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, uintptr(sig), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// readRegisters reads the registers of a stopped thread, as many as fit, and returns their bytes.
// It returns ESRCH if the thread is not stopped.
func readRegisters(tid int, data []byte) (n uint64, err error) {
	set := unix.Iovec{Base: &data[0], Len: uint64(len(data))}
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(tid), noteStatus, uintptr(unsafe.Pointer(&set)), 0, 0)
	runtime.KeepAlive(data)
	if errno != 0 {
		return 0, errno
	}
	return set.Len, nil
}
