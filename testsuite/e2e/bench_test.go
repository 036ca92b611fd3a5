package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Each way in which a message gets to its handler is measured, and nothing disturbs what computes meanwhile.
func TestBenchSched(t *testing.T) {
	use(t, "hosted") // or it is skipped
	r := start(t, nil, "bench", "sched", "--substrate", "hosted", "--messages", "20", "--rounds", "1", "--json").wait()
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
		if l.Place != "hosted" || l.DeliveredBy == "" || l.Messages != 20 || l.P50 == 0 || l.P99 < l.P50 || l.SentP50 < l.P50 {
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

// The example prints a table, and says when its ranks are not where they have to be.
func TestLatency(t *testing.T) {
	m := use(t, "hosted")
	program := filepath.Join(bin, "latency")
	r := m.run(0, "-n", "2", program, "20", "100")
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

// Who interrupts a measurement leaves nothing of it.
func TestBenchSchedInterrupted(t *testing.T) {
	use(t, "hosted")
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
