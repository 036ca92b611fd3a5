package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
)

// jobInits returns the job inits of a machine with hosted nodes, including spares.
func (m *machine) jobInits() (found []int) {
	m.t.Helper()
	for _, pid := range m.processes() {
		if isJobInit(pid) {
			found = append(found, pid)
		}
	}
	return found
}

func isJobInit(pid int) bool {
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.HasPrefix(string(command), node.JobInit+"\x00")
}

// stopped reports whether all threads of a process are stopped.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return len(threads) > 0 && !slices.ContainsFunc(threads, func(thread string) bool {
		text, err := os.ReadFile(thread)
		return err == nil && !strings.Contains(string(text), ") T ")
	})
}

// spares waits until an idle machine with hosted nodes has one job init for each node, which waits
// for its job and is none of the given ones.
func (m *machine) spares(not ...int) (found []int) {
	m.t.Helper()
	eventually(m.t, "one spare for each node", func() bool {
		found = m.jobInits()
		return len(found) == m.nodes && !slices.ContainsFunc(found, func(pid int) bool { return slices.Contains(not, pid) })
	}, func() string { return fmt.Sprintf("%d nodes have job inits %v; not one of %v", m.nodes, found, not) })
	return found
}

// Jobs run, whatever happens to the job inits that are started ahead, and none of these is left.
func TestSpares(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2)
	signalled := func(signal unix.Signal) []int {
		spares := m.spares()
		for _, pid := range spares {
			if err := unix.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
			if signal == unix.SIGSTOP { // it could become the init of a job before
				eventually(t, "stop of a spare", func() bool { return stopped(pid) }, func() string { return fmt.Sprint(pid) })
			}
		}
		return spares
	}
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGSTOP} {
		spares := signalled(signal)
		m.usable()
		m.spares(spares...)
	}
	spares := signalled(unix.SIGSTOP)
	for _, pid := range m.nodeKernels() {
		kill(t, pid)
	}
	m.spares(spares...)
	m.usable()
	spares = signalled(unix.SIGSTOP)
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
	for _, pid := range spares {
		eventually(t, fmt.Sprintf("end of spare %d", pid), func() bool { return !isJobInit(pid) }, func() string { return "" })
	}
}
