package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// nodeKernels are the processes of the node kernels of a hosted machine.
type nodeKernels []int

// findNodeKernels finds the node kernels below the machine's holder. PID 1 of each node is the
// holder's child, and the node kernel is PID 1's.
func findNodeKernels(holder int) (kernels nodeKernels, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	parents := make(map[int]int)
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if pid, parent, ok := parseStat(string(text)); ok {
			parents[pid] = parent
		}
	}
	for pid, parent := range parents {
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || parents[parent] != holder {
			continue
		}
		if argv := bytes.Split(command, []byte{0}); len(argv) > 1 && string(argv[1]) == "kernel" {
			kernels = append(kernels, pid)
		}
	}
	return kernels, nil
}

// parseStat reads the numbers of a process and of its parent from /proc/PID/stat (proc(5)).
func parseStat(text string) (pid, parent int, ok bool) {
	number, _, _ := strings.Cut(text, " ")
	end := strings.LastIndex(text, ")") // of the name, which may hold anything
	fields := strings.Fields(text[end+1:])
	if end < 0 || len(fields) < 2 {
		return 0, 0, false
	}
	pid, err := strconv.Atoi(number)
	parent, err2 := strconv.Atoi(fields[1])
	return pid, parent, err == nil && err2 == nil
}

// cpuClock is the clock of a process's processor time (clock_getcpuclockid(3)).
func cpuClock(pid int) int32 { return int32(^pid)<<3 | 2 }

// processorTime returns the processor time of all node kernels since their start.
func (k nodeKernels) processorTime() (sum time.Duration) {
	for _, pid := range k {
		var t unix.Timespec
		if unix.ClockGettime(cpuClock(pid), &t) == nil {
			sum += time.Duration(t.Nano())
		}
	}
	return sum
}
