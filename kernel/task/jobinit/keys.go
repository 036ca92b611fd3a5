package jobinit

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"margay/internal/throwaway"
)

// forgetKeys removes the keys that processes of the job's user have left; otherwise they would stay
// until the node's Linux ends. In a job's own user namespace they end with the namespace.
func forgetKeys(uid int) error {
	if os.Geteuid() == uid || uid == 0 || withheld() {
		return nil
	}
	done := make(chan error)
	throwaway.Go(func() { done <- forgetOwnKeys(uid) }) // it becomes the job's user
	if err := <-done; err != nil {
		return fmt.Errorf("forget the keys of user %d: %w", uid, err)
	}
	return nil
}

// withheld reports whether the system leaves users no room for a key. To look for keys then would
// make an empty keyring that Linux does not find again, but keeps.
func withheld() bool {
	text, err := os.ReadFile("/proc/sys/kernel/keys/maxbytes")
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

func forgetOwnKeys(uid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return errno
	}
	// Both are looked up first: Linux makes those that are missing, and finds neither as long as
	// one of them is invalid but not yet removed.
	rings := make([]int, 0, 2)
	for _, ring := range []int{unix.KEY_SPEC_USER_SESSION_KEYRING, unix.KEY_SPEC_USER_KEYRING} {
		number, err := unix.KeyctlGetKeyringID(ring, false)
		if withoutKeys(err) {
			return nil
		} else if err != nil {
			return err
		}
		rings = append(rings, number)
	}
	for _, ring := range rings {
		if _, err := unix.KeyctlInt(unix.KEYCTL_INVALIDATE, ring, 0, 0, 0); err != nil && !withoutKeys(err) {
			return err
		}
	}
	return nil
}

// withoutKeys reports whether the user has no keyrings: a Linux without keys, or one that withholds
// them from jobs, has none, and one at its limits makes none.
func withoutKeys(err error) bool {
	return errors.Is(err, unix.ENOKEY) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EDQUOT)
}
