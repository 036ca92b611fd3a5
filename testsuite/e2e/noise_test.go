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

// noise is what margay nodes --noise --json shows.
type noise struct {
	Cores []struct {
		Node, Core int
		Interrupts string
		Seconds    float64
		Rows       []struct{ Name, Count string }
	}
}

// compute is a program in C that computes for so many seconds.
func compute(t *testing.T) string {
	t.Helper()
	program := filepath.Join(scratch, "compute")
	if out, err := exec.Command("gcc", "-O2", "-static", "testdata/compute.c", "-o", program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// Nothing interrupts a computation on an isolated core: not one row of /proc/interrupts moves. What the start of a process
// leaves behind may still come in the first seconds, so each core may have its quiet time in one of three reports.
func TestNoInterruptsWhileComputing(t *testing.T) {
	m := use(t, "qemu")
	c := m.start("run", "-n", "8", compute(t), "16")
	eventually(t, commandTimeout, "computation", func() bool { return strings.Count(c.stdout.String(), "computing\n") == 8 }, func() string {
		return c.stdout.String() + c.stderr.String()
	})
	// What prints is what people read; the same as JSON is what is checked.
	r := m.margay("nodes", "--noise=2s")
	if r.code != 0 || !strings.Contains(r.stdout, "PER SECOND") || strings.Count(r.stdout, "\n") != 9 {
		t.Error(r)
	}
	quiet := make(map[[2]int]bool)
	for try := 0; try < 3 && len(quiet) < 8; try++ {
		r = m.margay("nodes", "--noise=2s", "--json")
		var report noise
		if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Cores) != 8 {
			t.Fatalf("%v: %v", err, r)
		}
		for _, core := range report.Cores {
			if core.Interrupts == "0" && len(core.Rows) == 0 {
				quiet[[2]int{core.Node, core.Core}] = true
				continue
			}
			t.Logf("node%d core %d: %s interrupts in %.1f s: %v", core.Node, core.Core, core.Interrupts, core.Seconds, core.Rows)
		}
	}
	if len(quiet) != 8 {
		t.Errorf("%d of 8 cores are quiet", len(quiet))
	}
	if r := c.wait(); r.code != 0 || strings.Count(r.stdout, "computed ") != 8 {
		t.Error(r)
	}
}

// Under the scheduler infinite nothing interrupts a computation on an isolated core and nothing takes the core from it, though
// another process wants it: that one is held. What there is with profile sched, by sched_ext, is printed beside it. As above, each
// core may have its quiet time in one of some looks.
func TestInfiniteIsQuiet(t *testing.T) {
	program, table := compute(t), "profile   processes  interrupts/s  cores lost/s\n"
	for _, profile := range []string{"isolated", "sched"} {
		m := up(t, "qemu", 1, 1, "--profile", profile)
		for processes := 1; processes <= 2; processes++ {
			c := m.start("run", "-n", fmt.Sprint(processes), "--per-core", fmt.Sprint(processes), program, "60")
			eventually(t, commandTimeout, "computation", func() bool { return strings.Count(c.stdout.String(), "computing\n") == processes }, c.stdout.String)
			if r := m.margay("ext", "insert", m.onlyJob(), object(t, "sched/infinite")); r.code != 0 {
				t.Fatal(r)
			}
			interrupts, lost := m.disturbed(5)
			table += fmt.Sprintf("%-8s  %-9d  %-12.1f  %.1f\n", profile, processes, interrupts, lost)
			if profile == "isolated" && interrupts+lost > 0 {
				t.Errorf("%d processes: %.1f interrupts/s, %.1f times a second without the core\n%s", processes, interrupts, lost, m.margay("nodes", "--noise=2s").stdout)
			}
			c.signal(unix.SIGTERM)
			c.wait()
			m.awaitIdle(commandTimeout)
		}
	}
	t.Log("\n" + table)
}

// disturbed looks at the one core of a machine so many times at most, until it is quiet while somebody computes there, and returns
// how often it is interrupted and taken from who does, per second, the last time.
func (m *machine) disturbed(looks int) (interrupts, lost float64) {
	m.t.Helper()
	computed := false
	for range looks {
		core := m.topView("--interval=3s").Cores[0]
		m.t.Logf("%+v", core)
		if core.Ranks[0].CPU <= 50 {
			continue
		}
		computed = true
		if interrupts, lost = core.Interrupts, core.Ranks[0].Involuntary; interrupts+lost == 0 {
			break
		}
	}
	if !computed {
		m.t.Errorf("nobody computes in any of %d looks", looks)
	}
	return interrupts, lost
}

// On hosted nodes, whose cores are the host's, the same report says what there is.
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
