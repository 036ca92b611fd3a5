package job_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/cluster/ledger"
	"margay/tools/margay/margaytest"
)

// playTask answers for a task of an array: it is placed, runs, and ends with its number as status.
func playTask(c *control.Conn, f *control.Frame) {
	switch m := f.Message().(type) {
	case *control.RunRequest:
		c.Answer(f, &control.RunReply{Job: 100 + m.Spec.Task.Id, Places: []*control.Place{{Node: 3}}, Loaded: true}, nil)
	case *control.FileChunk:
		_ = c.Send(&control.Record{Job: m.Job, Node: 3, Seq: 1, Stream: control.Stream_STREAM_EXIT, Last: true, Exit: &control.ExitStatus{Code: int32(m.Job - 100)}})
	case *control.Ack:
		state := &control.JobState{Job: m.Job, Phase: control.JobPhase_JOB_DONE, ExitCode: int32(m.Job - 100), FirstFailed: control.None}
		if state.ExitCode != 0 {
			state.FirstFailed, state.Ranks = 0, []*control.RankState{{Node: 3, Ended: true, Exit: &control.ExitStatus{Code: state.ExitCode}}}
		}
		_ = c.Send(state)
	}
}

func TestRunArray(t *testing.T) {
	m := margaytest.Play(t, "m", playTask)
	out := filepath.Join(t.TempDir(), "out-%a")
	status, stdout, stderr := margaytest.Margay("", "run", "--array", "0-2%1", "--keep-going", "--json", "-o", out, "true")
	want := `{"task":0,"job":100,"nodes":"3","status":0,"error":""}
{"task":1,"job":101,"nodes":"3","status":1,"error":"rank 0 on node3 exited with status 1"}
{"task":2,"job":102,"nodes":"3","status":2,"error":"rank 0 on node3 exited with status 2"}
`
	if stdout != want {
		t.Errorf("it prints %s", stdout)
	}
	margaytest.Wants(t, status, 2, stderr, "task 1 (job 101): rank 0 on node3 exited with status 1\n", "margay: 1 ok, 2 failed: 1 exited with status 1; 2 exited with status 2\n")
	asked := m.Messages()[0].(*control.RunRequest).Spec
	if asked.WaitMs != -1 || asked.Stdin != control.StdinMode_STDIN_NONE {
		t.Errorf("serve is asked for %v", asked)
	}
	status, stdout, stderr = margaytest.Margay("", "run", "-q", "--array", "0", "true")
	if status != 0 || stdout+stderr != "" {
		t.Errorf("status %d, it prints %q, %q", status, stdout, stderr)
	}
}

func TestRunArrayRefuses(t *testing.T) {
	m := margaytest.Play(t, "m", playTask)
	for line, want := range map[string]string{
		"--json":                    "there is no --array",
		"--array 0-1 --json":        "with -o the tasks write to files",
		"--array 0-1 -d":            "--array and --detach exclude each other",
		"--array 0-1 --pty":         "--array and --pty exclude each other",
		"--array 0-1 --stdin first": "--array and --stdin exclude each other",
		"--array 0-1 --timing":      "--array and --timing exclude each other",
		"--array 0-1 --out x":       "--array and --out exclude each other",
		"--array 0-1 --files .":     "--array and --files exclude each other",
		"--array 0-1 --attach":      "--array and --attach exclude each other",
		"--array 0-1 --collapse":    "--array and --collapse exclude each other",
		"--array 5-1":               "--array 5-1: the range 5-1 runs backwards",
		"--array=":                  "-a is empty",
		"-o out-%a":                 "after % comes j (the job)",
		"--array 0 -o out-%x":       "after % comes a (the task), A (the array), j (the job)",
	} {
		status, _, stderr := margaytest.Margay("", append(append([]string{"run"}, strings.Fields(line)...), "true")...)
		margaytest.Wants(t, status, 125, stderr, want)
	}
	if sent := m.Messages(); len(sent) != 0 {
		t.Errorf("serve was asked for %v", sent)
	}
}

// The tasks of an array are one line of the history, also with other jobs between them. Job 9 is a
// launch of task 2 that was spoilt.
func TestHistoryOfArray(t *testing.T) {
	base := histories(t)
	task := func(job, id uint32, state ledger.State, status int32) *ledger.Record {
		began := at.Add(48*time.Hour + time.Duration(job)*time.Second)
		r := &ledger.Record{Machine: "m", Run: "r", Job: job, User: "ada", Ranks: 1, Nodes: "0", State: state, Status: status, Command: "./t", Submitted: began, Started: began, Ended: began.Add(time.Second)}
		if job%2 == 0 {
			r.Nodes = "2"
		}
		if id > 0 {
			r.Array, r.Task = 10, &id
		}
		return r
	}
	if err := ledger.New(base, "m", ledger.MinSize).Append(task(9, 2, ledger.Failure, 125), task(10, 1, ledger.Completed, 0), task(11, 3, ledger.Failure, 4), task(12, 0, ledger.Completed, 0),
		task(13, 2, ledger.Failure, 2), task(14, 4, ledger.Completed, 0)); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"history -n 2": `JOB       USER  RANKS  NODES  STATE            ENDED                TIME  COMMAND
12        ada   1      2      completed        2026-11-27 13:40:18  1s    ./t
10_[1-4]  ada   1      0,2    2 of 4 failed (4)  2026-11-27 13:40:20  5s    ./t
`,
		"history --state failed -n 1": `JOB       USER  RANKS  NODES  STATE            ENDED                TIME  COMMAND
10_[2-3]  ada   1      0      2 of 2 failed (4)  2026-11-27 13:40:19  3s    ./t
`,
		"history --tasks -n 2": `JOB       USER  RANKS  NODES  STATE       ENDED                TIME  COMMAND
13 (10_2) ada   1      0      failed (2)  2026-11-27 13:40:19  1s    ./t
14 (10_4) ada   1      2      completed   2026-11-27 13:40:20  1s    ./t
`,
		"history --job 11": `JOB       USER  RANKS  NODES  STATE       ENDED                TIME  COMMAND
11 (10_3) ada   1      0      failed (4)  2026-11-27 13:40:17  1s    ./t
`,
	} {
		status, stdout, stderr := margaytest.Margay("", strings.Fields(line)...)
		if status != 0 || stderr != "" || squeezed(stdout) != squeezed(want) {
			t.Errorf("%s: status %d, %s\n%s", line, status, stderr, stdout)
		}
	}
}
