package e2e

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// times is the output of margay run --timing=json.
type times struct {
	Job    uint32
	Phases []struct {
		Phase  string
		TimeNs int64   `json:"time_ns"`
		NodeNs int64   `json:"node_ns"`
		Node   *uint32 `json:"node"`
	}
	SumNs  int64 `json:"sum_ns"`
	WallNs int64 `json:"wall_ns"`
}

// timesOf reads the last line of a result.
func timesOf(t *testing.T, r result) (all times) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &all); err != nil {
		t.Fatalf("%v: %v", err, r)
	}
	return all
}

// The launcher prints the time of each phase of a job, in order, and the phases are no longer than
// the whole.
func TestTiming(t *testing.T) {
	m := use(t, "hosted")
	all := []string{"collect", "connect", "queue", "allocate", "record", "prepare", "load", "start", "run", "end", "messages"}
	begun := slices.DeleteFunc(slices.Clone(all), func(phase string) bool { return phase == "run" || phase == "end" })
	run := func(want []string, args ...string) (job string) {
		t.Helper()
		r := m.run(0, append([]string{"--timing=json", "-n", "2", "--ppn", "1"}, args...)...)
		got := timesOf(t, r)
		var phases []string
		var sum int64
		for _, p := range got.Phases {
			phases = append(phases, p.Phase)
			sum += p.TimeNs
			node := p.Node != nil && *p.Node < 2 && p.NodeNs > 0
			if work := slices.Contains([]string{"prepare", "load", "start"}, p.Phase); p.TimeNs < 0 || work != node {
				t.Errorf("phase %+v", p)
			}
		}
		if got.Job == 0 || !slices.Equal(phases, want) || sum != got.SumNs || sum > got.WallNs {
			t.Errorf("times %+v", got)
		}
		return strconv.Itoa(int(got.Job))
	}
	run(all, "true")
	run(all, "true") // now the nodes have all files
	job := run(begun, "--detach", "sleep", "600")
	if r := m.margay("kill", "--force", job); r.code != 0 {
		t.Error(r)
	}
	if r := m.margay("wait", job); r.code != 137 {
		t.Error(r)
	}
}
