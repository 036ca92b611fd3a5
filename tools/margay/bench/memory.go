package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"margay/cluster/machine"
)

// memory returns how much memory all processes of the machine take, in bytes. A page that several
// processes have counts once.
func (m *benchMachine) memory() (bytes int64, err error) {
	d, err := m.Dir()
	if err != nil {
		return 0, err
	}
	holder, alive := machine.Dir(d).Holder()
	if !alive {
		return 0, fmt.Errorf("bench: machine %s has no holder", m.Machine)
	}
	children, err := childrenOf()
	if err != nil {
		return 0, err
	}
	for list := []int{holder}; len(list) > 0; {
		pid := list[0]
		list = append(list[1:], children[pid]...)
		share, err := field(pid, "smaps_rollup", "Pss:")
		if err != nil {
			return 0, err
		}
		bytes += int64(share) << 10
	}
	return bytes, nil
}

// childrenOf returns the child processes of each process.
func childrenOf() (map[int][]int, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		parent, err := field(pid, "status", "PPid:")
		if err != nil {
			return nil, err
		}
		children[parent] = append(children[parent], pid)
	}
	return children, nil
}

// field reads a number behind a name in a file of a process. It is 0 if the process has ended.
func field(pid int, file, name string) (value int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, name); found {
			_, err := fmt.Sscan(rest, &value)
			return value, err
		}
	}
	return 0, nil
}
