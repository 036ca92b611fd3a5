package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// noise is the output of margay nodes --noise --json.
type noise struct {
	Cores []struct {
		Node, Core int
		Interrupts int
		Seconds    float64
		Rows       []struct {
			Name  string
			Count int
		}
	}
}

// compute compiles a C program that computes for a number of seconds, or until SIGTERM.
func compute(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "compute")
	if out, err := exec.Command("gcc", "-O2", "-static", "testdata/compute.c", "-o", program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// Nothing interrupts a computation on an isolated core: no row of /proc/interrupts changes.
// Deferred work from the start of a process may still come in the first seconds, so each core may
// have its quiet time in any of four reports.
func TestNoInterruptsWhileComputing(t *testing.T) {
	m := use(t, "isolated")
	cores := m.nodes * m.cores
	c := m.start("run", "-n", m.all(), compute(t), "120")
	eventually(t, "computation", func() bool { return strings.Count(c.stdout.String(), "computing\n") == cores }, func() string {
		return c.stdout.String() + c.stderr.String()
	})
	// Print the report for people, and check it as JSON.
	r := m.margay("nodes", "--noise=100ms")
	if r.code != 0 || !strings.Contains(r.stdout, "PER SECOND") || strings.Count(r.stdout, "\n") != 1+cores {
		t.Error(r)
	}
	quiet := make(map[[2]int]bool)
	for try := 0; try < 4 && len(quiet) < cores; try++ {
		r = m.margay("nodes", "--noise=2s", "--json")
		var report noise
		if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Cores) != cores {
			t.Fatalf("%v: %v", err, r)
		}
		for _, core := range report.Cores {
			if core.Interrupts == 0 && len(core.Rows) == 0 {
				quiet[[2]int{core.Node, core.Core}] = true
				continue
			}
			t.Logf("node%d core %d: %d interrupts in %.1f s: %v", core.Node, core.Core, core.Interrupts, core.Seconds, core.Rows)
		}
	}
	if len(quiet) != cores {
		t.Errorf("%d of %d cores are quiet", len(quiet), cores)
	}
	c.signal(unix.SIGTERM) // they have computed until now
	if r := c.wait(); r.code != 0 || strings.Count(r.stdout, "computed ") != cores {
		t.Error(r)
	}
}

// On hosted nodes, whose cores are the host's, the same report has an entry for each core.
func TestNoiseOfSharedCores(t *testing.T) {
	m := use(t, "hosted")
	r := m.margay("nodes", "--noise=100ms", "--json")
	var report noise
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Cores) != 8 {
		t.Fatalf("%v: %v", err, r)
	}
	for i, core := range report.Cores {
		if at := fmt.Sprint(core.Node, core.Core); at != fmt.Sprint(i/2, 1+i%2) || core.Seconds <= 0 {
			t.Errorf("entry %d is %s, %.1f s", i, at, core.Seconds)
		}
	}
}
