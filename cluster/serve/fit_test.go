package serve

import (
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// much is an ended job with a long description.
func much(number uint32, ranks int, reason string) *job {
	var places []*control.Place
	for rank := range ranks {
		places = append(places, &control.Place{Rank: uint32(rank), Core: uint32(rank)})
	}
	j := newJob(number, &control.JobSpec{Ranks: uint32(ranks), User: "somebody", Command: strings.Repeat("x", maxCommand)}, places)
	j.members = []*control.Member{{Node: 0}}
	j.phase, j.first = control.JobPhase_JOB_DONE, 1
	const large = 1 << 62
	for i := range j.ranks {
		j.ranks[i].exit = &control.ExitStatus{Code: 3, TimeNs: large, Reason: reason, Usage: &control.Usage{
			UserNs: large, SystemNs: large, MajorFaults: large, MinorFaults: large, Yields: large, Preemptions: large,
		}}
	}
	return j
}

// The list of all jobs is answered for any number of jobs and any length of their descriptions,
// including recorded ones.
func TestListOfManyJobs(t *testing.T) {
	const ranks = 60
	if whole := keepEnded * proto.Size(much(1, ranks, "").summary()); whole < control.MaxFrame*11/10 {
		t.Fatalf("with their ranks all jobs have %d bytes, which a frame may carry", whole)
	}
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		for number := uint32(1); number <= keepEnded; number++ {
			j := much(number, ranks, "")
			if number == 7 {
				j = much(number, 2, strings.Repeat("x", control.MaxFrame))
				j.failure = control.Failf(control.Code_CODE_FAILED, "%s", strings.Repeat("é", control.MaxFrame))
				j.unkept = []*control.Unkept{{Files: 9, Names: []string{strings.Repeat("x", control.MaxFrame)}}}
			}
			if err := m.server.store.saveJob(j, 0); err != nil {
				t.Fatal(err)
			}
		}
		c := m.client()
		jobs := must[*control.Jobs](c, &control.ListJobs{All: true}).Jobs
		if len(jobs) != keepEnded || jobs[0].Ranks != ranks || jobs[0].Command != strings.Repeat("x", maxCommand) {
			t.Errorf("%d jobs are listed, first %.200v", len(jobs), jobs[0])
		}
		if jobs[6].Error != strings.Repeat("é", maxListed/2)+"..." {
			t.Errorf("a long error is listed as %.2000q", jobs[6].Error)
		}
		if s := c.summary(1); len(s.RankStates) != ranks || s.RankStates[ranks-1].Exit.Usage.Yields != 1<<62 {
			t.Errorf("job 1 has %.200v", s)
		}
	})
}

// For any length of a job's description its client receives the state, and its owner receives how
// the job has ended.
func TestStateOfLargeJob(t *testing.T) {
	reasons := map[string]struct {
		ranks               int
		reason              string
		names, words, usage bool // included in the answer
	}{
		"small": {4, "for a reason", true, true, true},
		"names": {1000, strings.Repeat("x", 3000), false, true, true},
		"words": {4000, strings.Repeat("x", 2000), false, false, true},
		"usage": {52_000, "for a reason", false, false, false},
	}
	for name, k := range reasons {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 1)
				c := m.client()
				j := much(1, k.ranks, k.reason)
				j.unkept = []*control.Unkept{{Files: 900, Names: []string{strings.Repeat("x", 3<<20)}}}
				if err := m.server.store.saveJob(j, 0); err != nil {
					t.Fatal(err)
				}
				check := func(where string, exit int32, ranks []*control.RankState, unkept []*control.Unkept) {
					t.Helper()
					if exit != 3 || len(ranks) != k.ranks || ranks[k.ranks-1].Exit.Code != 3 || len(unkept) != 1 || unkept[0].Files != 900 {
						t.Fatalf("%s: status %d, %d ranks, not kept %.100v", where, exit, len(ranks), unkept)
					}
					names, words, usage := len(unkept[0].Names) > 0, ranks[1].Exit.Reason != "", ranks[1].Exit.Usage != nil
					if names != k.names || words != k.words || usage != k.usage {
						t.Errorf("%s: with names: %v, with reasons: %v, with usage: %v", where, names, words, usage)
					}
				}
				state := must[*control.JobState](c, &control.Attach{Job: 1})
				check("Attach", state.ExitCode, state.Ranks, state.Unkept)
				s := c.summary(1)
				check("ListJobs", s.ExitCode, s.RankStates, s.Unkept)

				a, b := net.Pipe()
				near, far := control.NewConn(a), control.NewConn(b)
				defer near.Close()
				defer far.Close()
				got := make(chan proto.Message, 1)
				go far.Serve(func(f *control.Frame) { got <- f.Message() })
				j.client = near
				j.tellClient()
				select {
				case m := <-got:
					told := m.(*control.JobState)
					check("tellClient", told.ExitCode, told.Ranks, told.Unkept)
				case <-time.After(time.Minute):
					t.Error("its client is not told")
				}
				if reason := j.ranks[0].exit.Reason; reason != k.reason {
					t.Errorf("the job has lost its reason, it is %.20q", reason)
				}
			})
		})
	}
}
