package launch

import (
	"bytes"
	"context"
	"testing"

	"margay/cluster/control"
)

// A detached job's output is printed like another's, from its beginning to its end.
func TestReplay(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.ListJobs](c)
		c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, Ranks: 2}}}, nil)
		m, f := expect[*control.Attach](c)
		if f == nil || !m.Output {
			t.Errorf("the output is asked for with %v", m)
			return
		}
		c.says(1, "a")
		_ = c.Send(&control.Record{Job: 5, Rank: 1, Seq: 2, Stream: control.Stream_STREAM_STDERR, Data: []byte("e\n")})
		c.says(3, "b\nend")
		c.Answer(f, nil, control.Failf(control.Code_CODE_FAILED, "some is missing"))
		_, f = expect[*control.ListJobs](c)
		c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, Unkept: []*control.Unkept{{Files: 1, Names: []string{"x"}}}}}}, nil)
	})
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := Replay(ctx, ReplayOptions{Socket: s.socket, Job: 5, Label: ByRank, Stdout: &out, Stderr: &errs})
	if err == nil || err.Error() != "some is missing" || out.String() != "[0] ab\n[0] end\n" ||
		errs.String() != "[1] e\nmargay: 1 file written by ranks was not kept: x\n" {
		t.Errorf("%v; printed %q and %q", err, out.String(), errs.String())
	}
}
