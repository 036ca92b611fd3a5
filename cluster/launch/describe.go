package launch

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"margay/cluster/client"
	"margay/cluster/control"
)

// Describe adds the files, and the user and the umask of this process, to a job.
func (f *Files) Describe(s *control.JobSpec) error {
	mask, err := umask()
	if err != nil {
		return err
	}
	s.Path, s.Umask, s.User, s.Uid = []byte(f.Program), mask, client.UserName(), uint32(os.Getuid())
	s.RamDisk, s.Arch = f.Size(), f.Arch
	return nil
}

// umask returns the umask of this process. The system call would have to change it for a moment,
// in which another goroutine may make a file.
func umask() (uint32, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("umask of this process: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "Umask:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(value), 8, 32)
			return uint32(mask), err
		}
	}
	return 0, fmt.Errorf("umask of this process: /proc/self/status has none")
}
