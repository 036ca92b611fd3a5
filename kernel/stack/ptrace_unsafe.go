package stack

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
