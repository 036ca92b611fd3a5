package bench

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// nodeKernels are the processes of the node kernels of a hosted machine.
type nodeKernels []int

// findNodeKernels finds the node kernels below the machine's holder. PID 1 of each node is the
// holder's child, and the node kernel is PID 1's.
func findNodeKernels(holder int) (kernels nodeKernels, err error) {
	all, err := allProcesses()
	if err != nil {
		return nil, err
	}
	parents := make(map[int]int)
	for _, p := range all {
		parents[p.pid] = p.parent
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
