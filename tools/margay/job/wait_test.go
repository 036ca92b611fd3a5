package job_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// margay wait has the status of the job that has ended worst, after all of them have ended.
func TestWait(t *testing.T) {
	codes := map[uint32]int32{5: 0, 6: 3, 7: 124}
	for line, want := range map[string]struct {
		status int
		stderr string
	}{
		"wait 5":      {0, ""},
		"wait 6":      {3, "margay: job 6 ended with status 3: why 6\n"},
		"wait 6 5":    {3, "margay: job 6 ended with status 3: why 6\n"},
		"wait 5 7 6":  {124, "margay: job 7 ended with status 124: why 7\nmargay: job 6 ended with status 3: why 6\n"},
		"wait 5 99":   {125, "margay: there is no job 99\n"},
		"wait five":   {125, "margay: \"five\" is not a job: jobs have numbers (margay ps)\n"},
		"wait":        {125, "margay: wait: JOB is missing: margay wait JOB... [flags]\n"},
		"wait 5 --js": {125, "margay: wait has no --js: margay wait --help lists its flags\n"},
	} {
		var asked atomic.Int32
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			job := question.(*control.ListJobs).Job
			code, ok := codes[job]
			if !ok {
				return nil, control.Failf(control.Code_CODE_NOT_FOUND, "there is no job %d", job)
			}
			j := &control.JobSummary{Job: job, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None}
			if asked.Add(1) > 4 { // they run at first
				j.Phase, j.ExitCode = control.JobPhase_JOB_DONE, code
				if code != 0 {
					j.Error = "why " + string(rune('0'+job))
				}
			}
			return &control.Jobs{Jobs: []*control.JobSummary{j}}, nil
		}, strings.Fields(line)...)
		if status != want.status || stdout != "" || !strings.HasPrefix(stderr, want.stderr) {
			t.Errorf("%s: status %d, %q, %q", line, status, stdout, stderr)
		}
	}
}

func TestWaitJSON(t *testing.T) {
	status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
		j := &control.JobSummary{Job: question.(*control.ListJobs).Job, Phase: control.JobPhase_JOB_DONE, ExitCode: 3, Error: "why", FirstFailed: control.None}
		return &control.Jobs{Jobs: []*control.JobSummary{j}}, nil
	}, "wait", "--json", "5", "6")
	var got []map[string]any
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || status != 3 || stderr != "" {
		t.Fatalf("status %d, %v, %q", status, err, stderr)
	}
	want := []map[string]any{{"job": 5., "exit_code": 3., "error": "why"}, {"job": 6., "exit_code": 3., "error": "why"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

// The flags of margay run are in what serve is asked for.
func TestRunAsks(t *testing.T) {
	m := margaytest.Play(t, "m", margaytest.EndJob(&control.JobState{FirstFailed: control.None}))
	status, _, stderr := margaytest.Margay("", "run", "-N", "3", "--ppn=2", "-c", "2", "-w", "node[0-3]", "-x", "0", "-t", "1:30", "--signal", "USR1@10",
		"--wait=5m", "--chdir", "/tmp", "--export=NONE", "--env", "A=b", "-q", "/bin/true")
	if status != 0 || stderr != "" {
		t.Fatalf("status %d, %q", status, stderr)
	}
	r := margaytest.Await(m, func(*control.RunRequest) bool { return true })
	var env []string
	for _, entry := range r.Exec.Env {
		env = append(env, string(entry))
	}
	s := r.Spec
	got := []any{s.Nodes, s.Ranks, s.PerNode, s.CoresEach, s.Only, s.Without, s.LimitMs, s.Warning, s.WarningMs, s.WaitMs, string(s.Dir), env}
	want := []any{uint32(3), uint32(6), uint32(2), uint32(2), []uint32{0, 1, 2, 3}, []uint32{0}, int64(90_000), int32(10), int64(10_000), int64(300_000), "/tmp",
		[]string{"A=b", "OMP_NUM_THREADS=2", "OMP_PROC_BIND=true"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("it asks for\n%v, not\n%v", got, want)
	}
}
