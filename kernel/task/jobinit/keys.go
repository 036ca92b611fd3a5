package jobinit

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// forgetKeys removes the keys that processes of the job's user have left; otherwise they would stay
// until the node's Linux ends. In a job's own user namespace they end with the namespace.
func forgetKeys(uid int) error {
	if os.Geteuid() == uid || uid == 0 {
		return nil
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends as the job's user
		done <- forgetOwnKeys(uid)
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("forget the keys of user %d: %w", uid, err)
	}
	return nil
}

func forgetOwnKeys(uid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return errno
	}
	// The session keyring holds the other.
	for _, ring := range []int{unix.KEY_SPEC_USER_SESSION_KEYRING, unix.KEY_SPEC_USER_KEYRING} {
		_, err := unix.KeyctlInt(unix.KEYCTL_INVALIDATE, ring, 0, 0, 0)
		// They may be gone, and a Linux without keys, or one that withholds them from jobs, has
		// none.
		if err != nil && !errors.Is(err, unix.ENOKEY) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	return nil
}
