package launches

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"margay/tools/margay/bench/page"
)

// warmUps is how many jobs warm up in tests.
const warmUps = 2

// inTurns is a contender that takes these times, after the jobs to warm up; 0 is a failure.
func inTurns(name string, peer bool, times ...time.Duration) Contender {
	jobs := -warmUps
	return Contender{Name: name, Peer: peer, Run: func(context.Context, Work) (time.Duration, error) {
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
	results, err := Measure(context.Background(), Work{Nodes: 8}, []Contender{
		inTurns(Ours, false, 5*ms, 2*ms, 9*ms), inTurns("hydra", true, 10*ms, 0, 14*ms), inTurns("gone", true, 0, 0, 0), inTurns("fork", false, ms, ms, ms),
	}, Plan{WarmUps: warmUps, Rounds: 3, Rest: rests, Limit: time.Minute, Silence: time.Hour}, func(string, ...any) { rounds++ })
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
		"| 8 | 5.0 (2.0) | 10.0 (10.0) | - | 1.0 (1.0) | 2.00 | - |\n\n* a note\n* hydra failed 1 time on 8 nodes (no luck).\n"
	if !strings.Contains(text.String(), want) {
		t.Errorf("%q is missing in\n%s", want, &text)
	}
	if strings.Contains(text.String(), "Executables") || strings.Contains(text.String(), "Many jobs") {
		t.Errorf("there are tables of other work in\n%s", &text)
	}
	var rows rowsOf
	f.Rows(&rows)
	if len(rows) != 4 || len(rows[0]) != len(Headings) || rows[2][3] != "-" {
		t.Errorf("rows %v", rows)
	}
	encoded, err := json.Marshal(results[0])
	if want := `{"nodes":8,"contender":"Margay","jobs":3,"median_ms":5,"best_ms":2,"worst_ms":9,"speed_to":{"hydra":2}}`; err != nil || string(encoded) != want {
		t.Errorf("%s, %v", encoded, err)
	}
}

// Work of each kind has a table of its own, and many jobs have a rate.
func TestKindsOfWork(t *testing.T) {
	const ms = time.Millisecond
	f := &Figures{Machines: []Machine{{Nodes: 2, Up: 1.25, Memory: 5.61}, {Nodes: 1, Jobs: 50, Up: 4, Memory: 5}}}
	for _, w := range []Work{{Nodes: 2}, {Nodes: 2, Size: 8}, {Nodes: 8, Size: 8}, {Nodes: 1, Jobs: 50, AtOnce: 4}} {
		results, err := Measure(context.Background(), w, []Contender{inTurns(Ours, false, 500*ms), inTurns("hydra", true, 250*ms)}, Plan{WarmUps: warmUps, Rounds: 1, Rest: rests, Limit: time.Minute}, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		f.Results = append(f.Results, results...)
	}
	var text bytes.Buffer
	if err := f.Markdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n\nMedian (best), ms:\n\n| nodes | Margay | hydra | speed to hydra |\n|---:|---:|---:|---:|\n| 2 | 500.0 (500.0) | 250.0 (250.0) | 0.50 |\n\n",
		"\n\nExecutables, median (best), ms:\n\n| nodes | MiB | Margay | hydra | speed to hydra |\n|---:|---:|---:|---:|---:|\n" +
			"| 2 | 8 | 500.0 (500.0) | 250.0 (250.0) | 0.50 |\n| 8 | 8 | 500.0 (500.0) | 250.0 (250.0) | 0.50 |\n\n",
		"\n\nMany jobs, jobs a second:\n\n| nodes | Margay | hydra | speed to hydra |\n|---:|---:|---:|---:|\n| 1 | 100.0 | 200.0 | 0.50 |\n\n",
		"\n* A machine of 2 nodes was up after 1.2 s, and took 5.6 MB for each in the end.\n* A machine of 1 node, for many jobs, was up after 4.0 s",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}
	var rows rowsOf
	f.Rows(&rows)
	if last := rows[len(rows)-2]; rows[2][1] != "8" || last[1] != "-" || last[6] != 50 || last[7] != "100.0" {
		t.Errorf("rows %v", rows)
	}
}

type rowsOf [][]any

func (r *rowsOf) Row(cells ...any) { *r = append(*r, cells) }

// Notes say which table they are about: a failure, and a turn without rest, in two of them.
func TestNotes(t *testing.T) {
	f := new(Figures)
	restless := func(context.Context) (bool, error) { return false, nil }
	for _, w := range []Work{{Nodes: 8}, {Nodes: 8, Size: 12}, {Nodes: 1, Jobs: 50}} {
		fails := Contender{Name: "hydra", Run: func(context.Context, Work) (time.Duration, error) { return 0, errors.New("no luck") }}
		results, err := Measure(context.Background(), w, []Contender{fails}, Plan{WarmUps: 1, Rounds: 2, Rest: restless, Limit: time.Minute}, t.Logf)
		if err != nil || results[0].Restless != 2 {
			t.Fatalf("%+v, %v", results, err)
		}
		f.Results = append(f.Results, results...)
	}
	var text bytes.Buffer
	if err := f.Markdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n* hydra failed 2 times on 8 nodes (no luck).\n* hydra failed 2 times on 8 nodes, 12 MiB (no luck).\n* hydra failed 2 times on 1 node, 50 jobs (no luck).\n",
		"\n* On 8 nodes, 12 MiB: 2 turns of hydra began before all was at rest.\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}
}

// Each turn of a long round has a line of progress.
func TestProgress(t *testing.T) {
	var lines []string
	contenders := []Contender{inTurns(Ours, false, time.Second), inTurns("hydra", true, time.Second)}
	plan := Plan{Rounds: 1, WarmUps: warmUps, Rest: Pause(time.Nanosecond), Limit: time.Minute}
	if _, err := Measure(context.Background(), Work{Nodes: 1}, contenders, plan, func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(lines[len(lines)-3:], "\n"), "1 node: round 1 of 1\n1 node: round 1 of 1: Margay\n1 node: round 1 of 1: hydra"; got != want {
		t.Errorf("%q", got)
	}
}

// rests is a Plan.Rest of contenders that are always at rest.
func rests(context.Context) (bool, error) { return true, nil }

// The end of the context ends the measurement with its cause, also in a pause, and so does an error
// of looking at processes.
func TestMeasureEnds(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	end := Contender{Name: "one", Run: func(context.Context, Work) (time.Duration, error) { cancel(cause); return 1, nil }}
	if _, err := Measure(ctx, Work{Nodes: 1}, []Contender{end}, Plan{Rounds: 2, Rest: rests, Limit: time.Minute}, t.Logf); !errors.Is(err, cause) {
		t.Error(err)
	}
	if _, err := Measure(ctx, Work{Nodes: 1}, []Contender{end}, Plan{Rounds: 2, Rest: Pause(time.Hour), Limit: time.Minute}, t.Logf); !errors.Is(err, cause) {
		t.Error(err)
	}
	blind := Rest{Window: time.Hour, Patience: time.Hour, Look: func() (Processes, error) { return Processes{}, cause }}
	if _, err := Measure(context.Background(), Work{Nodes: 1}, []Contender{end}, Plan{Rounds: 2, Rest: blind.Wait, Limit: time.Minute}, t.Logf); !errors.Is(err, cause) {
		t.Error(err)
	}
}

// A job that does not end in time has failed, and the next one has its turn.
func TestLimit(t *testing.T) {
	hangs := Contender{Name: "hangs", Run: func(ctx context.Context, _ Work) (time.Duration, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}}
	results, err := Measure(context.Background(), Work{Nodes: 1}, []Contender{hangs}, Plan{Rounds: 2, Rest: rests, Limit: time.Millisecond}, t.Logf)
	if err != nil || results[0].Failed != 2 || results[0].Jobs != 0 {
		t.Errorf("%+v, %v", results, err)
	}
}
