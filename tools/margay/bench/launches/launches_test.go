package launches

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"margay/tools/margay/bench/page"
)

// inTurns is a contender that takes these times, after the jobs to warm up; 0 is a failure.
func inTurns(name string, peer bool, times ...time.Duration) Contender {
	jobs := -warmUps
	return Contender{Name: name, Peer: peer, Run: func(context.Context, int) (time.Duration, error) {
		took := time.Hour
		if jobs >= 0 {
			took = times[jobs]
		}
		if jobs++; took == 0 {
			return 0, errors.New("no\nluck")
		}
		return took, nil
	}}
}

// Results are over all rounds but those to warm up, a failure in one does not hide the others, and
// peers are compared with.
func TestFigures(t *testing.T) {
	const ms = time.Millisecond
	rounds := 0
	results, err := Measure(context.Background(), 8, []Contender{
		inTurns(Ours, false, 5*ms, 2*ms, 9*ms), inTurns("hydra", true, 10*ms, 0, 14*ms), inTurns("gone", true, 0, 0, 0), inTurns("fork", false, ms, ms, ms),
	}, Plan{Rounds: 3}, func(string, ...any) { rounds++ })
	if err != nil || rounds != 3+warmUps {
		t.Fatalf("%d rounds, %v", rounds, err)
	}
	f := &Figures{Host: page.Host{Date: "2026-01-02", CPUs: 2}, Plan: "Rounds: 3.", Notes: []string{"a note"}, Results: results}
	if r := results[0]; r.Median != 5 || r.Best != 2 || r.Worst != 9 || r.Jobs != 3 || r.Failed != 0 || len(r.Speed) != 1 || r.Speed["hydra"] != 2 {
		t.Errorf("%+v", r)
	}
	if r := results[1]; r.Median != 10 || r.Jobs != 2 || r.Failed != 1 || r.Error != "no\nluck" {
		t.Errorf("%+v", r)
	}
	var text bytes.Buffer
	if err := f.Markdown(&text); err != nil {
		t.Fatal(err)
	}
	want := "| nodes | Margay | hydra | gone | fork | speed to hydra | speed to gone |\n|---:|---:|---:|---:|---:|---:|---:|\n" +
		"| 8 | 5.0 (2.0) | 10.0 (10.0) | - | 1.0 (1.0) | 2.00 | - |\n\n* a note\n* hydra failed 1 times on 8 nodes (no luck).\n"
	if !strings.Contains(text.String(), want) {
		t.Errorf("%q is missing in\n%s", want, &text)
	}
	var rows rowsOf
	f.Rows(&rows)
	if len(rows) != 4 || len(rows[0]) != len(Headings) || rows[2][2] != "-" {
		t.Errorf("rows %v", rows)
	}
	encoded, err := json.Marshal(results[0])
	if want := `{"nodes":8,"contender":"Margay","jobs":3,"median_ms":5,"best_ms":2,"worst_ms":9,"speed_to":{"hydra":2}}`; err != nil || string(encoded) != want {
		t.Errorf("%s, %v", encoded, err)
	}
}

type rowsOf [][]any

func (r *rowsOf) Row(cells ...any) { *r = append(*r, cells) }

// The end of the context ends the measurement with its cause, also in a pause.
func TestMeasureEnds(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	end := Contender{Name: "one", Run: func(context.Context, int) (time.Duration, error) { cancel(cause); return 1, nil }}
	if _, err := Measure(ctx, 1, []Contender{end}, Plan{Rounds: 2, Pause: time.Hour}, func(string, ...any) {}); !errors.Is(err, cause) {
		t.Error(err)
	}
}
