package jobinit

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// outlived are the signals that would end this process, because Go's runtime handles them so.
var outlived = []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT}

// sigset is the size of a set of signals in Linux, in bytes.
const sigset = 8

// outliveSignals takes these signals from Go's runtime and leaves them to Linux, which ignores what
// would end an init by default. Ranks inherit the default. signal.Notify would do as well, with a
// thread more and several switches between threads for each signal.
func outliveSignals() error {
	var byDefault [4]uint64 // struct sigaction of Linux: SIG_DFL
	for _, sig := range outlived {
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, sigset, 0, 0)
		if errno != 0 {
			return fmt.Errorf("leave %v to Linux: %w", sig, errno)
		}
	}
	return nil
}
