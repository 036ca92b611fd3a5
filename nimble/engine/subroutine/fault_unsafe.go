//go:build linux && amd64

package subroutine

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setSize is the size of Linux's sigset_t in bytes.
const setSize = 8

// handlerOf returns the installed action of a signal.
func handlerOf(signal unix.Signal) (a action, err error) {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), 0, uintptr(unsafe.Pointer(&a)), setSize, 0, 0)
	if errno != 0 {
		err = fmt.Errorf("handler of %v: %w", signal, errno)
	}
	return a, err
}

// handle installs the action of a signal.
func handle(signal unix.Signal, a *action) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(a)), 0, setSize, 0, 0)
	if errno != 0 {
		return fmt.Errorf("handle %v: %w", signal, errno)
	}
	return nil
}

// reserve takes address space, at an address if that is free.
func reserve(near uintptr, size int) ([]byte, error) {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	hint := *(*unsafe.Pointer)(unsafe.Pointer(&near))
	at, err := unix.MmapPtr(-1, 0, hint, uintptr(size), unix.PROT_NONE, flags)
	if err != nil {
		return nil, err // at is not an address
	}
	return unsafe.Slice((*byte)(at), size), nil
}

// mapAt maps a file, or anonymous memory for fd -1, over reserved memory.
func mapAt(memory []byte, fd, protection, flags int) error {
	if fd < 0 {
		flags |= unix.MAP_ANONYMOUS
	}
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(memory)), uintptr(len(memory)), protection, flags|unix.MAP_FIXED)
	return err
}
