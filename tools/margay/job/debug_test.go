package job

import (
	"fmt"
	"testing"

	"margay/cluster/control"
)

// The arguments name a rank that runs. The rest is gdb's.
func TestDebugged(t *testing.T) {
	jobs := func(phase control.JobPhase, ended ...bool) *control.Jobs {
		j := &control.JobSummary{Job: 7, Phase: phase}
		for i, e := range ended {
			j.RankStates = append(j.RankStates, &control.RankState{Rank: uint32(i), Ended: e})
		}
		return &control.Jobs{Jobs: []*control.JobSummary{j}}
	}
	const running = control.JobPhase_JOB_RUNNING
	for name, c := range map[string]struct {
		jobs *control.Jobs
		args []string
		want string
	}{
		"a rank":          {jobs(running, false, false), []string{"1"}, "1 [] <nil>"},
		"with arguments":  {jobs(running, false, false), []string{"1", "-batch", "2"}, "1 [-batch 2] <nil>"},
		"the only rank":   {jobs(running, false), nil, "0 [] <nil>"},
		"its arguments":   {jobs(running, false), []string{"-batch", "2"}, "0 [-batch 2] <nil>"},
		"which":           {jobs(running, false, false), []string{"-batch"}, "0 [] job 7 has the ranks 0 to 1: which one? (margay debug 7 0)"},
		"no number":       {jobs(running, false), []string{"x"}, `0 [] "x" is not a rank: ranks are 0, 1, 2 and so on`},
		"no such rank":    {jobs(running, false), []string{"1"}, "0 [] job 7 has no rank 1: its ranks are 0 to 0"},
		"ended":           {jobs(running, true, false), []string{"0"}, "0 [] rank 0 of job 7 does not run"},
		"an ended job":    {jobs(control.JobPhase_JOB_DONE, false), nil, "0 [] rank 0 of job 7 does not run"},
		"there is no job": {new(control.Jobs), []string{"0"}, "0 [] there is no job 7 (margay ps -a)"},
	} {
		rank, more, err := debugged(c.jobs, 7, c.args)
		if got := fmt.Sprint(rank, more, err); got != c.want {
			t.Errorf("%s: %s, not %s", name, got, c.want)
		}
	}
}
