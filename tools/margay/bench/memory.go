package bench

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"margay/cluster/machine"
)

// memory returns how much memory all processes of the machine take, in bytes. A page that several
// processes have counts once.
func (m *benchMachine) memory() (bytes int64, err error) {
	holder, err := m.holder()
	if err != nil {
		return 0, err
	}
	all, err := allProcesses()
	if err != nil {
		return 0, err
	}
	for _, p := range family(all, holder) {
		share, err := proportionalShare(p.pid)
		if err != nil {
			return 0, err
		}
		bytes += int64(share) << 10
	}
	return bytes, nil
}

// holder is the process of the machine above all others.
func (m *benchMachine) holder() (int, error) {
	d, err := m.Dir()
	if err != nil {
		return 0, err
	}
	holder, alive := machine.Dir(d).Holder()
	if !alive {
		return 0, fmt.Errorf("bench: machine %s has no holder", m.Machine)
	}
	return holder, nil
}

// proportionalShare returns the memory of a process in KiB (proc_pid_smaps(5)). It is 0 if the
// process has ended.
func proportionalShare(pid int) (value int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "Pss:"); found {
			_, err := fmt.Sscan(rest, &value)
			return value, err
		}
	}
	return 0, nil
}
