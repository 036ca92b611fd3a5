package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Each path from a message to its handler is measured, and nothing disturbs the ranks that compute
// in the meantime.
func TestBenchSched(t *testing.T) {
	useRealTime(t) // or it is skipped
	r := start(t, nil, "bench", "sched", "--substrate", "hosted", "--messages", "6", "--rounds", "1", "--json").wait()
	if r.code != 0 {
		t.Fatal(r)
	}
	var figures struct {
		Latencies []struct {
			Mechanism, Policy, Place string
			DeliveredBy              string `json:"delivered_by"`
			Messages                 int
			P50                      uint64 `json:"p50_ns"`
			P99                      uint64 `json:"p99_ns"`
			SentP50                  uint64 `json:"sent_p50_ns"`
		}
		Switches []struct {
			Policy, Place string
			EnforcedBy    string `json:"enforced_by"`
		}
		Results, Different uint64
	}
	if err := json.Unmarshal([]byte(r.stdout), &figures); err != nil {
		t.Fatalf("%v\n%v", err, r)
	}
	got := make(map[string]bool)
	for _, l := range figures.Latencies {
		if l.Place != "hosted" || l.DeliveredBy == "" || l.Messages != 6 || l.P50 == 0 || l.P99 < l.P50 || l.SentP50 < l.P50 {
			t.Errorf("%+v", l)
		}
		got[l.Mechanism+", "+l.Policy] = true
	}
	for _, want := range []string{
		"polling, ", "blocking receive, ", "signal into its own computing, ", "blocking receive beside computing, Linux",
		"blocking receive beside computing, turns", "blocking receive beside computing, message-first",
		"signal, both compute, turns", "signal, both compute, message-first",
	} {
		if !got[want] {
			t.Errorf("nothing is measured of %q", want)
		}
	}
	if len(got) != 8 || len(figures.Switches) != 2 {
		t.Errorf("%d mechanisms and %d costs of switches are measured: %v", len(got), len(figures.Switches), r)
	}
	if figures.Results == 0 || figures.Different != 0 {
		t.Errorf("%d results, %d different", figures.Results, figures.Different)
	}
}

// The example prints a table, and reports ranks that are not where they have to be.
func TestLatency(t *testing.T) {
	m := useRealTime(t)
	program := filepath.Join(bin, "latency")
	r := m.run(0, "-n", "2", program, "4", "100")
	for _, mechanism := range []string{"polling", "blocking receive", "signal into its own computing", "beside computing   Linux"} {
		var times [4]float64
		_, rest, found := strings.Cut(r.stdout, mechanism)
		if n, err := fmt.Sscan(rest, &times[0], &times[1], &times[2], &times[3]); !found || n != 4 || times[0] <= 0 || times[2] < times[0] {
			t.Errorf("%s: %v, %v\n%v", mechanism, times, err, r)
		}
	}
	if !strings.Contains(r.stdout, ", 0 not those of an undisturbed run") {
		t.Error(r)
	}
	if r = m.run(1, "-n", "2", "--per-core", "2", program); !strings.Contains(r.stderr, "needs a core of its own") {
		t.Error(r)
	}
}

// fabricCases cover every place, an operation that sockets do not have, and messages too long for
// UDP.
const fabricCases = "roundtrip-64,rate-1048576,barrier,put-8"

// Messages are measured on every place. The figures in JSON equal those on the page.
func TestBenchFabric(t *testing.T) {
	use(t, "hosted")
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# Figures\n<!-- begin: written by margay bench fabric -->\n<!-- end: written by margay bench fabric -->\nend\n"
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := start(t, nil, "bench", "fabric", "--quick", "--json", "--against", "sockets", "--case", fabricCases, "--into", page).wait()
	if r.code != 0 {
		t.Fatal(r)
	}
	var figures struct {
		Host    struct{ CPUs int }
		Results []fabricResult
	}
	if err := json.Unmarshal([]byte(r.stdout), &figures); err != nil {
		t.Fatalf("%v\n%v", err, r)
	}
	if figures.Host.CPUs < 1 {
		t.Errorf("the host has %d CPUs", figures.Host.CPUs)
	}
	measured := make(map[string]int)
	for _, f := range figures.Results {
		f.check(t)
		if f.Median > 0 {
			measured[f.Place+" "+strings.Fields(f.Contender)[0]]++
		}
	}
	want := map[string]int{
		"same-node Margay": 8, "two-nodes Margay": 8, "eight-nodes Margay": 2, "eight-ranks Margay": 2,
		"same-node UDP": 4, "same-node TCP": 6, "two-nodes UDP": 4, "two-nodes TCP": 6,
	}
	if !maps.Equal(measured, want) {
		t.Errorf("figures: %v instead of %v\n%v", measured, want, r)
	}
	written, err := os.ReadFile(page)
	if err != nil || strings.Count(string(written), "| round trip, 64 B | µs |") != 4 || !strings.HasSuffix(string(written), "-->\nend\n") {
		t.Errorf("%v\n%s", err, written)
	}
	left, err := filepath.Glob(filepath.Join(scratch, "m", "bench-*-nodes-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// fabricResult is a result of margay bench fabric.
type fabricResult struct {
	Place, Case, Contender, Unit string
	Median, P99                  float64
	Repetitions                  int
	RankCPU                      float64 `json:"rank_cpu_us"`
	KernelCPU                    float64 `json:"kernel_cpu_us"`
	Absent, Error                string
}

// check requires figures, or a reason for their absence.
func (f fabricResult) check(t *testing.T) {
	t.Helper()
	slower := f.P99 >= f.Median
	if f.Unit != "µs" {
		slower = f.P99 <= f.Median
	}
	switch {
	case f.Error != "":
		t.Errorf("%+v", f)
	case f.Absent != "":
		if f.Median != 0 {
			t.Errorf("absent and measured: %+v", f)
		}
	case f.Median <= 0 || !slower || f.Repetitions < 1 || f.RankCPU <= 0 || f.KernelCPU != 0 && !strings.HasPrefix(f.Contender, "Margay"):
		t.Errorf("%+v", f)
	}
}

// Launches are measured. The figures in JSON equal those on the page.
func TestBenchLaunch(t *testing.T) {
	use(t, "hosted")
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# Figures\n<!-- begin: written by margay bench launch -->\n<!-- end: written by margay bench launch -->\nend\n"
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := start(t, nil, "bench", "launch", "--quick", "--json", "--nodes", "2", "--sizes", "2", "--jobs", "5", "--into", page).wait()
	if r.code != 0 {
		t.Fatal(r)
	}
	var figures struct {
		Results []struct {
			Nodes, Jobs, Failed int
			Size                int `json:"size_mib"`
			Contender, Error    string
			Median              float64            `json:"median_ms"`
			Speed               map[string]float64 `json:"speed_to"`
		}
		Notes    []string
		Machines []struct {
			Nodes  int
			Up     float64 `json:"up_s"`
			Memory float64 `json:"memory_of_a_node_mb"`
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &figures); err != nil {
		t.Fatalf("%v\n%v", err, r)
	}
	got := make(map[string]bool)
	var speed map[string]float64 // of the last work
	for _, f := range figures.Results {
		jobs := 1
		if f.Nodes == 1 {
			jobs = 5
		}
		// Hydra dies of SIGPIPE now and then, when ranks end at once without a word of MPI.
		died := f.Contender == "MPICH hydra" && f.Failed == 1 && strings.Contains(f.Error, "broken pipe")
		if !died && (f.Failed != 0 || f.Jobs != jobs || f.Median <= 0) {
			t.Errorf("%+v", f)
		}
		switch f.Contender {
		case "Margay":
			speed = f.Speed
		case "MPICH hydra":
			if !died && speed[f.Contender] <= 0 {
				t.Errorf("it is not compared with: %v", r)
			}
		}
		got[fmt.Sprintf("%d nodes, %d MiB: %s", f.Nodes, f.Size, f.Contender)] = true
	}
	for work, contenders := range map[string][]string{
		"2 nodes, 0 MiB: ": {"Margay", "Margay, back to back", "MPICH hydra", "fork and exec"},
		"2 nodes, 2 MiB: ": {"Margay", "Margay, new program", "MPICH hydra", "fork and exec"},
		"1 nodes, 0 MiB: ": {"Margay", "MPICH hydra", "fork and exec"},
	} {
		for _, name := range contenders {
			if !got[work+name] {
				t.Errorf("%s is not measured: %v", work+name, r)
			}
		}
		for _, name := range []string{"pdsh", "Slurm"} {
			if !got[work+name] && !slices.ContainsFunc(figures.Notes, func(note string) bool { return strings.HasPrefix(note, name+" is left out") }) {
				t.Errorf("%s is neither measured nor left out: %v", work+name, r)
			}
		}
	}
	if m := figures.Machines; len(m) != 2 || m[0].Nodes != 2 || m[0].Up <= 0 || m[0].Memory < 1 || m[1].Nodes != 1 {
		t.Errorf("machines %+v", m)
	}
	written, err := os.ReadFile(page)
	for _, want := range []string{fmt.Sprintf("\n| 2 | %.1f (", figures.Results[0].Median), "\n| 2 | 2 | ", "Many jobs", "A machine of 2 nodes was up"} {
		if err != nil || !strings.Contains(string(written), want) {
			t.Errorf("%q is missing, %v\n%s", want, err, written)
		}
	}
	left, err := filepath.Glob(filepath.Join(scratch, "m", "bench-launch-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A program is measured beside mpiexec, and what it prints is compared. A run that does not end has
// failed, and other results are an error.
func TestBenchMPI(t *testing.T) {
	use(t, "hosted")
	// Hydra dies of SIGPIPE now and then, when ranks end at once without a word of MPI.
	mpiexec := filepath.Join(t.TempDir(), "mpiexec")
	if err := os.WriteFile(mpiexec, []byte("#!/bin/sh\nn=$2; shift 2; while [ $n -gt 0 ]; do \"$@\" || exit; n=$((n - 1)); done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		script, limit, failed, note string
		code                        int
	}{
		{`read -r n </proc/sys/kernel/random/uuid; echo sum 3; echo "$n"`, "1m", "", "2 nodes: 2 of 4 lines are the same in all runs under mpiexec, and all runs under Margay have them.", 0},
		{`echo "sum ${MARGAY_RANK:-3}"`, "1m", "", `2 nodes: the results differ: a run under Margay lacks a line that all runs under mpiexec have: "sum 3".`, 125},
		{`[ -z "$MARGAY_RANK" ] || exec sleep 3600`, "5s", "was ended at its time limit", "2 nodes: results are not compared: there is no run of both that has ended.", 0},
	} {
		r := start(t, nil, "bench", "mpi", "--json", "--nodes", "2", "--rounds", "1", "--limit", c.limit, "--mpiexec", mpiexec, "--run", "--root host", "sh", "-c", c.script).wait()
		if r.code != c.code {
			t.Fatalf("%s: %v", c.script, r)
		}
		var figures struct {
			Notes   []string
			Results []struct {
				Nodes, Jobs, Failed int
				Contender, Error    string
			}
		}
		if err := json.Unmarshal([]byte(r.stdout), &figures); err != nil {
			t.Fatalf("%v\n%v", err, r)
		}
		var contenders []string
		for _, f := range figures.Results {
			contenders = append(contenders, f.Contender)
			if ended := f.Contender != "Margay" || c.failed == ""; f.Nodes != 2 || f.Jobs+f.Failed != 1 || (f.Jobs == 1) != ended || !ended && !strings.Contains(f.Error, c.failed) {
				t.Errorf("%s: %+v", c.script, f)
			}
		}
		if !slices.Equal(contenders, []string{"Margay", "mpiexec", "mpiexec over TCP"}) || !slices.Equal(figures.Notes, []string{c.note}) {
			t.Errorf("%s: %v", c.script, r)
		}
	}
	left, err := filepath.Glob(filepath.Join(scratch, "m", "bench-mpi-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A killed measurement of messages leaves nothing behind.
func TestBenchFabricKilled(t *testing.T) {
	use(t, "hosted")
	c := start(t, nil, "bench", "fabric", "--against", "none", "--place", "same-node", "--time", "1h")
	eventually(t, "round", func() bool { return strings.Contains(c.stderr.String(), "round 1 of 3") }, c.stderr.String)
	machine := filepath.Join(scratch, "m", fmt.Sprintf("bench-same-node-%d", c.cmd.Process.Pid))
	if _, err := os.Stat(machine); err != nil {
		t.Error(err)
	}
	c.signal(syscall.SIGKILL)
	c.wait()
	eventually(t, "end of the machine", func() bool { _, err := os.Stat(machine); return os.IsNotExist(err) }, c.stderr.String)
}

// An interrupted measurement leaves nothing behind.
func TestBenchSchedInterrupted(t *testing.T) {
	useRealTime(t)
	c := start(t, nil, "bench", "sched", "--substrate", "hosted", "--messages", "1000000")
	eventually(t, "round", func() bool { return strings.Contains(c.stderr.String(), "round 1 of 3: hosted\n") }, c.stderr.String)
	c.signal(syscall.SIGINT)
	if r := c.wait(); r.code != 130 {
		t.Error(r)
	}
	left, err := filepath.Glob(filepath.Join(scratch, "m", fmt.Sprintf("bench-*-%d", c.cmd.Process.Pid)))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
