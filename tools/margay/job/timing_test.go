package job_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/tools/margay/margaytest"
)

// measured is the end of a job whose phases serve has measured.
func measured() *control.JobState {
	return &control.JobState{FirstFailed: control.None, Times: []*control.PhaseTime{
		{Phase: control.Phase_PHASE_PREPARE, TimeNs: 1_500_000, NodeNs: 1_250_000, Node: 3},
		{Phase: control.Phase_PHASE_RUN, TimeNs: 20_000},
	}}
}

func TestTimingTable(t *testing.T) {
	margaytest.Play(t, "m", margaytest.EndJob(measured()))
	status, stdout, stderr := margaytest.Margay("", "run", "--timing", "true")
	want := regexp.MustCompile(`^PHASE +TIME +SLOWEST NODE *
collect +\d+\.\d\d ms *
connect +\d+\.\d\d ms *
prepare +1\.50 ms +node3: 1\.25 ms
run +0\.02 ms *
messages +\d+\.\d\d ms *
sum +\d+\.\d\d ms *
wall +\d+\.\d\d ms *
$`)
	if status != 0 || stdout != "" || !want.MatchString(stderr) {
		t.Errorf("status %d, %q, %s", status, stdout, stderr)
	}
}

func TestTimingJSON(t *testing.T) {
	state := measured()
	state.ExitCode, state.FirstFailed = 3, 0
	state.Ranks = []*control.RankState{{Ended: true, Exit: &control.ExitStatus{Code: 3}}}
	margaytest.Play(t, "m", margaytest.EndJob(state))
	status, _, stderr := margaytest.Margay("", "run", "--timing=json", "true")
	line, rest, _ := strings.Cut(stderr, "\n")
	var times launch.Times
	if err := json.Unmarshal([]byte(line), &times); err != nil || times.Job != 5 || len(times.Phases) != 5 {
		t.Errorf("%s: %v", line, err)
	}
	margaytest.Wants(t, status, 3, rest, "margay: rank 0 on node0 exited with status 3\n")
}

func TestTimingRefused(t *testing.T) {
	m := margaytest.Play(t, "m", margaytest.EndJob(measured()))
	status, _, stderr := margaytest.Margay("", "run", "--timing=xml", "true")
	margaytest.Wants(t, status, 125, stderr, "margay: run: --timing=xml: it is table or json\n")
	status, _, stderr = margaytest.Margay("", "run", "--timing=", "true")
	margaytest.Wants(t, status, 125, stderr, "--timing")
	if sent := m.Messages(); len(sent) != 0 {
		t.Errorf("serve was asked for %v", sent)
	}
}

// A job that was not launched has no times.
func TestTimingOfNoJob(t *testing.T) {
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		c.Answer(f, nil, control.Failf(control.Code_CODE_NO_ROOM, "no cores are free"))
	})
	status, _, stderr := margaytest.Margay("", "run", "--timing", "true")
	if status != 125 || stderr != "margay: no cores are free\n" {
		t.Errorf("status %d, %s", status, stderr)
	}
}
