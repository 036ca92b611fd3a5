// Package descriptor keeps descriptors that a process was started with from the processes that it
// starts.
package descriptor

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExec marks every descriptor of this process from first on to be closed in the programs
// that it starts, but for those that a start passes on explicitly. What Go opens is marked already:
// this is for what the process has inherited.
func CloseOnExec(first int) error {
	err := unix.CloseRange(uint(first), ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	// Linux has that since 5.11; the call came before the flag.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		err = walk(first)
	}
	if err != nil {
		return fmt.Errorf("mark inherited descriptors: %w", err)
	}
	return nil
}

// walk does the same one by one.
func walk(first int) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			return err
		}
		if fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
