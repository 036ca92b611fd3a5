package bench

import (
	"os"
	"runtime"
	"slices"
	"time"

	"margay/kernel/task/spare"
	"margay/tools/margay/bench/launches"
)

// rest is when the machine with so many nodes, and all that this process has started, is at rest
// for at least the pause. Nodes prepare for the next job in turns, and nothing happens between two
// of them.
func (m *benchMachine) rest(nodes int, pause time.Duration) launches.Rest {
	window := pause
	for place := 1; place < nodes; place++ {
		between := spare.RestOf(place, nodes, runtime.NumCPU()).Ended - spare.RestOf(place-1, nodes, runtime.NumCPU()).Ended
		window = max(window, pause+between)
	}
	return launches.Rest{Window: window, Patience: restPatience + time.Duration(nodes)*restPatienceEach, Look: m.processes}
}

// How long a turn waits for the rest of a machine: several times as long as nodes prepare.
const (
	restPatience     = 10 * time.Second
	restPatienceEach = 100 * time.Millisecond
)

// processes are the machine's, and all that this process has started.
func (m *benchMachine) processes() (p launches.Processes, err error) {
	holder, err := m.holder()
	if err != nil {
		return p, err
	}
	all, err := allProcesses()
	if err != nil {
		return p, err
	}
	p.At = time.Now()
	for _, member := range family(all, holder, os.Getpid()) {
		if member.pid != os.Getpid() {
			p.IDs = append(p.IDs, member.pid)
			p.Used += member.used
		}
	}
	slices.Sort(p.IDs)
	return p, nil
}
