package linux

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// capabilitySet holds the capabilities of a thread in the kernel's form.
type capabilitySet [2]unix.CapUserData

func (s *capabilitySet) effective(capability uint) bool {
	return s[capability/32].Effective&(1<<(capability%32)) != 0
}

func (s *capabilitySet) drop(capability uint) { s[capability/32].Effective &^= 1 << (capability % 32) }

// header names the calling thread.
func header() *unix.CapUserHeader {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
}

// capabilities returns the capabilities of the calling thread.
func capabilities() (s capabilitySet, err error) {
	if err := unix.Capget(header(), &s[0]); err != nil {
		return s, fmt.Errorf("read capabilities: %w", err)
	}
	return s, nil
}

// WithoutLeaks calls f on a thread without the capabilities that let a program
// that f loads turn addresses into numbers. The error is f's, or a failure to change the
// capabilities.
func WithoutLeaks(f func() error) (err error) {
	runtime.LockOSThread()
	has, err := capabilities()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	less := has
	less.drop(unix.CAP_PERFMON)
	less.drop(unix.CAP_SYS_ADMIN)
	if err := unix.Capset(header(), &less[0]); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("drop capabilities: %w", err)
	}
	err = f()
	if back := unix.Capset(header(), &has[0]); back != nil {
		// The thread stays locked, so it ends with the goroutine.
		return errors.Join(err, fmt.Errorf("take capabilities again: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
