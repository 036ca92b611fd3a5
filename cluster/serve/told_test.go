package serve

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
)

// Records that cannot be in a job's output end the job: a node that sends them could store more
// than the limit.
func TestLyingNode(t *testing.T) {
	exit := func(seq uint64, rank uint32, last bool) *control.Record {
		return &control.Record{
			Job: 1, Seq: seq, Rank: rank, Stream: control.Stream_STREAM_EXIT, Exit: new(control.ExitStatus), Open: !last, Last: last,
		}
	}
	cases := []struct {
		name    string
		records []*control.Record
		want    string
	}{
		{"an end twice", []*control.Record{exit(1, 0, false), exit(2, 0, false)}, "record 2 is another end of rank 0"},
		{"more than all", []*control.Record{exit(1, 0, true), exit(2, 1, false)}, "record 2 follows the last one"},
		{
			"no status", []*control.Record{{Job: 1, Seq: 1, Stream: control.Stream_STREAM_EXIT}},
			"record 1 is the end of rank 0 and does not say how it ended, or more",
		},
		{
			"output and an end", []*control.Record{{Job: 1, Seq: 1, Stream: control.Stream_STREAM_STDERR, Exit: new(control.ExitStatus)}},
			"record 1 is output and an end",
		},
		{
			"an end and more", []*control.Record{{Job: 1, Seq: 1, Stream: control.Stream_STREAM_END}},
			"record 1 is the end and not the last one, or more",
		},
		{
			"an end twice in a message", []*control.Record{together(exit(1, 0, false), &control.RankEnd{Rank: 1, Exit: new(control.ExitStatus)}, &control.RankEnd{Exit: new(control.ExitStatus)})},
			"record 3 is another end of rank 0",
		},
		{
			"no status in a message of ends", []*control.Record{together(exit(1, 0, false), &control.RankEnd{Rank: 1})},
			"record 2 is the end of rank 1 and does not say how it ended, or more",
		},
		{
			"output and ends", []*control.Record{together(&control.Record{Job: 1, Seq: 1, Stream: control.Stream_STREAM_STDOUT}, &control.RankEnd{Exit: new(control.ExitStatus)})},
			"record 2 is output and an end",
		},
		{
			"more ends than ranks", []*control.Record{together(exit(1, 0, false), slices.Repeat([]*control.RankEnd{{Rank: 1}}, 4)...)},
			"a message brings 5 ends",
		},
		{"no stream", []*control.Record{{Job: 1, Seq: 1, Stream: 9}}, "record 1 is of stream 9, which there is not"},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				c.run(detachedSpec(4))
				for _, r := range k.records {
					m.played[0].tell(r)
				}
				state := c.ended()
				if want := "node0: its output cannot be believed: " + k.want; state.Error.Err() == nil || state.Error.Err().Error() != want || state.ExitCode != 125 {
					t.Errorf("it ended as %v", state)
				}
			})
		})
	}
}

// together returns a record with more ends.
func together(m *control.Record, more ...*control.RankEnd) *control.Record {
	m.More = more
	return m
}

// An end that is not a new record ends no rank: otherwise a detached job would have an end that its
// output lacks.
func TestStaleEnd(t *testing.T) {
	for name, detach := range map[string]bool{"detached": true, "followed": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 1)
				c := m.client()
				s := spec(2)
				if detach {
					s = detachedSpec(2)
				}
				c.run(s)
				m.played[0].tell(&control.Record{Job: 1, Seq: 1, Stream: control.Stream_STREAM_STDOUT, Data: []byte("x")})
				for seq := range uint64(2) {
					m.played[0].tell(&control.Record{
						Job: 1, Seq: seq, Rank: 1, Stream: control.Stream_STREAM_EXIT, Exit: &control.ExitStatus{Code: 7},
					})
				}
				time.Sleep(time.Second)
				answer, err := m.client().ask(&control.ListJobs{Job: 1})
				if err != nil {
					t.Fatal(err)
				}
				if job := answer.(*control.Jobs).Jobs[0]; job.Phase != control.JobPhase_JOB_RUNNING || job.RankStates[1].Ended {
					t.Errorf("the job is %v", job)
				}
			})
		})
	}
}

// margay logs does not mistake a part of a job's output for all of it.
func TestDamagedOutput(t *testing.T) {
	const lacks = " lacks the last record of node0"
	for name, k := range map[string]struct {
		damage func(whole []byte, first int) []byte // first is the length of the first of the two records
		want   string
		shown  int // records
	}{
		"whole":           {func(whole []byte, _ int) []byte { return whole }, "", 2},
		"nothing":         {func([]byte, int) []byte { return nil }, lacks, 0},
		"one record":      {func(whole []byte, first int) []byte { return whole[:first] }, lacks, 1},
		"a part of one":   {func(whole []byte, first int) []byte { return whole[:first+5] }, lacks, 1},
		"a part of a sum": {func(whole []byte, first int) []byte { return whole[:first+2] }, lacks, 1},
		"more":            {func(whole []byte, _ int) []byte { return append(whole, 0, 0, 1) }, " is damaged behind byte ", 2},
		"other bytes": {func(whole []byte, _ int) []byte {
			whole[0] = 0xff
			return whole
		}, lacks, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 1)
				c := m.client()
				job := c.detached(1000)
				path := spoolPath(m.config.Dir, job)
				whole, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, k.damage(whole, 4+int(whole[2])<<8+int(whole[3])), 0o600); err != nil {
					t.Fatal(err)
				}
				_, err = c.ask(&control.Attach{Job: job, Output: true})
				if want := "the output of job 1 is not complete: " + path + k.want; k.want == "" && err != nil ||
					k.want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
					t.Errorf("margay logs ends with %v instead of %s", err, want)
				}
				if records := take[*control.Record](&c.recorder); len(records) != k.shown {
					t.Errorf("it shows %d records", len(records))
				}
			})
		})
	}
}

// A job that was never started has no output, and none is missing.
func TestOutputOfUnstartedJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		m.played[0].refused["Prepare"] = control.Failf(control.Code_CODE_NO_ROOM, "no memory")
		if answer, err := c.ask(&control.RunRequest{Spec: detachedSpec(2)}); err == nil {
			t.Fatalf("it is answered with %v", answer)
		}
		time.Sleep(time.Second)
		if _, err := c.ask(&control.Attach{Job: 1, Output: true}); err != nil {
			t.Errorf("margay logs ends with %v", err)
		}
	})
}
