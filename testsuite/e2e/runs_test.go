package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// runsOfCI is the number of jobs that TestManyRuns runs unless MARGAY_RUNS sets another. A fifth of
// them warm the machine up.
const runsOfCI = 150

// collected is about the memory, in KiB, of a process that has collected its garbage once.
const collected = 20 << 10

// Many sequential jobs leave no memory, descriptor or thread in the processes of the machine. Every
// other job has an extension, a region and upcalls, and is killed with them.
func TestManyRuns(t *testing.T) {
	ownMachine(t, "own")
	runs := runsOfCI
	if text := os.Getenv("MARGAY_RUNS"); text != "" {
		var err error
		if runs, err = strconv.Atoi(text); err != nil || runs < 10 {
			t.Fatalf("MARGAY_RUNS=%s: %v", text, err)
		}
	}
	program := filepath.Join(scratch, "brief")
	cmd := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-static", "-I", "../../lib/c", "testdata/brief.c", filepath.Join(bin, "libmargay.a"), "-o", program)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := up(t, "hosted", 1, 1)
	x := object(t, "message/accumulate")
	run := func(from, to int) {
		for i := from; i < to; i++ {
			if i%2 == 0 {
				m.run(0, program)
			} else {
				m.run(137, "--with", x, program, x)
			}
		}
	}
	warm := runs / 5
	run(0, warm)
	before := m.weigh()
	run(warm, runs)
	m.awaitIdle()
	// The connection of a command that has just ended may not be closed yet.
	var after map[string]weight
	eventually(t, "descriptors as before", func() bool {
		after = m.weigh()
		for name, a := range after {
			if a.descriptors > before[name].descriptors {
				return false
			}
		}
		return true
	}, func() string { return fmt.Sprintf("after %d runs %v, then after %d %v", warm, before, runs, after) })
	t.Logf("after %d runs, then after %d:\n%v\n%v", warm, runs, before, after)
	if len(after) != len(before) {
		t.Fatalf("%d processes before, %d after", len(before), len(after))
	}
	for name, a := range after {
		b := before[name]
		// Go sometimes starts a thread when one is blocked in Linux, and keeps it. It first
		// collects garbage at 16 MiB (GOGC=400), and serve remembers 1000 jobs, with less than 4
		// KiB for each. A leak that grows with the runs exceeds this.
		if a.memories > b.memories || a.threads > b.threads+4 || a.memory > max(b.memory, collected)+4096+4*(runs-warm) {
			t.Errorf("%s: %v after %d runs, %v after %d", name, b, warm, a, runs)
		}
	}
}

// weight is the resources of a process.
type weight struct{ memory, threads, descriptors, memories int } // memory of its own in KiB

func (w weight) String() string {
	return fmt.Sprintf("%d KiB, %d threads, %d descriptors, %d of memory", w.memory, w.threads, w.descriptors, w.memories)
}

// weigh returns the resources of the processes of a machine with one node.
func (m *machine) weigh() map[string]weight {
	m.t.Helper()
	_, serve := m.status()
	kernel := m.nodeKernels()[0]
	weights := make(map[string]weight)
	for name, pid := range map[string]int{"holder": parent(parent(kernel)), "serve": serve, "PID 1": parent(kernel), "node kernel": kernel} {
		weights[name] = weigh(m.t, pid)
	}
	return weights
}

func weigh(t testing.TB, pid int) (w weight) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		fmt.Sscanf(line, "RssAnon: %d", &w.memory)
		fmt.Sscanf(line, "Threads: %d", &w.threads)
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || w.memory == 0 || w.threads == 0 || len(files) == 0 {
		t.Fatalf("process %d: %+v, %d descriptors: %v", pid, w, len(files), err)
	}
	w.descriptors = len(files)
	for _, f := range files {
		if name, err := os.Readlink(f); err == nil && strings.HasPrefix(name, "/memfd:") {
			w.memories++
		}
	}
	return w
}
