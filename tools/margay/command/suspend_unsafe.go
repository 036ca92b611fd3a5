package command

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the struct sigaction of Linux's rt_sigaction(2), on amd64 and arm64; zero is
// SIG_DFL.
type sigaction [4]uint64

// setAction sets what Linux does with a signal, and returns what it did before. os/signal cannot:
// once it has caught SIGTSTP, the handler stays, and Reset makes that ignore the signal.
func setAction(sig unix.Signal, action sigaction) (before sigaction) {
	const maskBytes = 8
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)),
		uintptr(unsafe.Pointer(&before)), maskBytes, 0, 0)
	if errno != 0 {
		panic(errno) // the arguments are constants
	}
	return before
}

// Suspend stops this process as Ctrl-Z does, and returns when it continues, or at once where Linux
// stops no process by SIGTSTP: without a shell that could continue it. The SIGCONT that ends the
// stop is not caught.
func Suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop, cont := setAction(unix.SIGTSTP, sigaction{}), setAction(unix.SIGCONT, sigaction{})
	// To this thread, which the system call returns to: the stop is over when it does.
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTSTP)
	setAction(unix.SIGTSTP, stop)
	setAction(unix.SIGCONT, cont)
}
