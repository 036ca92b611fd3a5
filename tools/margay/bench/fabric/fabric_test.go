package fabric

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/tools/margay/bench/page"
)

// The tables of cases and places fit together.
func TestCases(t *testing.T) {
	names := CaseNames()
	for i, c := range Cases {
		if slices.Contains(names[:i], c.Name()) || c.Title == "" || len(c.Places) == 0 {
			t.Errorf("case %+v", c)
		}
		for _, p := range c.Places {
			if !slices.Contains(PlaceNames(), p) {
				t.Errorf("case %s is for the unknown place %s", c.Name(), p)
			}
		}
	}
	for _, p := range Places {
		if len(At(Cases, p.Name)) == 0 || p.Ranks%p.Nodes != 0 || p.PerCore < 1 {
			t.Errorf("place %+v", p)
		}
	}
}

func TestValue(t *testing.T) {
	for _, test := range []struct {
		c        Case
		ns       float64
		messages int
		want     float64
	}{
		{Case{Bytes: 8, Unit: Microseconds}, 2500, 1, 2.5},
		{Case{Bytes: 8, Unit: MillionsPerSecond}, 1e6, 1000, 1},
		{Case{Bytes: 1024, Unit: MegabytesPerS}, 1e6, 1000, 1024},
	} {
		if got := test.c.Value(test.ns, test.messages); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestQuantile(t *testing.T) {
	var hundred []uint64
	for i := range uint64(100) {
		hundred = append(hundred, i+1)
	}
	for _, test := range []struct {
		sorted  []uint64
		percent int
		want    uint64
	}{
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {[]uint64{7}, 50, 7}, {[]uint64{7}, 99, 7}, {[]uint64{1, 3, 9}, 50, 3}, {[]uint64{0, 0}, 50, 1},
	} {
		if got := quantile(test.sorted, test.percent); got != test.want {
			t.Errorf("%d %% of %d numbers: %d instead of %d", test.percent, len(test.sorted), got, test.want)
		}
	}
}

func TestReadReport(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "printed no report",
		"hello\nbegin\nend\n":   "printed no report",
		"{\n":                   "report of the program",
		`{"repetitions": 1}`:    "0 messages",
		`{"absent": "too big"}`: "too big",
		`{"repetitions": 1, "messages": 1, "times_ns": [1,2]}`:                  "2 times of 1 repetitions",
		"begin\nend\n" + `{"repetitions": 2, "messages": 1, "times_ns": [1,2]}`: "<nil>",
	} {
		if _, err := ReadReport([]byte(text)); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	var absent Absent
	if _, err := ReadReport([]byte(`{"absent": "too big"}`)); !errors.As(err, &absent) {
		t.Errorf("not absent: %v", err)
	}
}

// A report that is accepted has figures.
func FuzzReadReport(f *testing.F) {
	f.Add([]byte("begin\nend\n{\"repetitions\": 2, \"messages\": 1, \"cpu_ns\": 5, \"times_ns\": [1,2]}\n"))
	f.Add([]byte("{\"absent\": \"x\"}"))
	f.Fuzz(func(t *testing.T, output []byte) {
		r, err := ReadReport(output)
		if err != nil {
			return
		}
		result := &Result{c: Case{Unit: Microseconds}}
		result.add(r)
		result.finish()
		if result.Median <= 0 || result.P99 < result.Median {
			t.Errorf("%+v", result)
		}
	})
}

// contender returns reports in turns, the last one again and again.
func contender(name string, peer bool, turns ...func() (*Report, error)) Contender {
	return Contender{Name: name, Peer: peer, Run: func(context.Context, Case, time.Duration) (*Report, error) {
		turn := turns[0]
		if len(turns) > 1 {
			turns = turns[1:]
		}
		return turn()
	}}
}

func took(times ...uint64) func() (*Report, error) {
	return func() (*Report, error) {
		return &Report{Repetitions: len(times), Messages: 1, CPU: 3 * time.Microsecond, Kernels: 6 * time.Microsecond, Times: times}, nil
	}
}

func fails(err error) func() (*Report, error) {
	return func() (*Report, error) { return nil, err }
}

// measured is a measurement with each kind of result.
func measured(t *testing.T) *Figures {
	t.Helper()
	place := Places[0]
	cases := []Case{{"round trip", "roundtrip", 64, Microseconds, []string{place.Name}}, {"barrier", "barrier", 0, Microseconds, []string{place.Name}}}
	calls := 0
	results, err := Measure(context.Background(), place, cases, []Contender{
		contender("Margay poll", false, took(1000, 2000, 3000), took(2000), took(5000, 9000), fails(Absent("not yet"))),
		contender("MPICH", true, took(4000), fails(errors.New("no | luck")), took(6000)),
	}, Plan{Rounds: 2, Length: time.Millisecond}, func(string, ...any) { calls++ })
	if err != nil || calls != 4 || len(results) != 4 {
		t.Fatalf("%d results, %d reports of progress, %v", len(results), calls, err)
	}
	return &Figures{Host: page.Host{Date: "2026-01-02", CPUs: 2, Load: 5}, Plan: "Rounds: 2.", Notes: []string{"a note"}, Results: results}
}

// Results are over all rounds, a failure in one does not hide the others, and peers are compared
// with.
func TestMeasure(t *testing.T) {
	f := measured(t)
	var got []string
	for _, r := range f.Results {
		got = append(got, fmt.Sprintf("%s %s: %v %v %d, %v %v, %v, absent %q, failed %d %q", r.Case, r.Contender, r.Median, r.P99, r.Repetitions,
			r.Ranks, r.Kernels, r.Speed, r.Absent, r.Failed, r.Error))
	}
	want := []string{
		`roundtrip-64 Margay poll: 3 9 5, 1.2 2.4, map[MPICH:1.3333333333333333], absent "", failed 0 ""`,
		`roundtrip-64 MPICH: 4 6 2, 3 6, map[], absent "", failed 0 ""`,
		`barrier Margay poll: 2 2 1, 3 6, map[MPICH:3], absent "not yet", failed 0 ""`,
		`barrier MPICH: 6 6 1, 3 6, map[], absent "", failed 1 "no | luck"`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An end of the context ends the measurement with its cause.
func TestMeasureEnds(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	end := func() (*Report, error) { cancel(cause); return nil, ctx.Err() }
	_, err := Measure(ctx, Places[0], Cases[:2], []Contender{contender("one", false, end)}, Plan{Rounds: 2}, func(string, ...any) {})
	if !errors.Is(err, cause) {
		t.Error(err)
	}
}

// A longer time is a slower one, a lower rate too.
func TestSpeed(t *testing.T) {
	if got := Microseconds.speed(2, 8); got != 4 {
		t.Errorf("2 µs beside 8 µs: %v", got)
	}
	if got := MillionsPerSecond.speed(2, 8); got != 0.25 {
		t.Errorf("2 M/s beside 8 M/s: %v", got)
	}
}

type rows [][]any

func (r *rows) Row(cells ...any) { *r = append(*r, cells) }

// Each row has a cell for each heading, and missing figures are dashes.
func TestRows(t *testing.T) {
	var got rows
	f := measured(t)
	f.Results = append(f.Results, &Result{Place: "same-node", Contender: "TCP", Absent: "no barrier"})
	f.Rows(&got)
	if len(got) != 4 {
		t.Errorf("%d rows: %v", len(got), got)
	}
	for _, row := range got {
		if len(row) != len(Headings) {
			t.Errorf("%d cells: %v", len(row), row)
		}
	}
	if cell := got[0][7]; cell != "-" {
		t.Errorf("the speed to a peer that is not there is %v", cell)
	}
	var text bytes.Buffer
	if err := f.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 CPUs", "busy with other work (load 5.0", "a note\n", "Not yet: Margay poll: barrier.", "Failed in 1 of the rounds on same-node (no | luck): MPICH: barrier.", "No barrier: TCP: "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}
}

// All rows of a table in Markdown have the same number of cells.
func TestMarkdown(t *testing.T) {
	var text bytes.Buffer
	if err := measured(t).Markdown(&text); err != nil {
		t.Fatal(err)
	}
	columns, tables := 0, 0
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "|-") {
			columns = 0
			continue
		}
		if n := strings.Count(line, "|"); columns == 0 {
			columns, tables = n, tables+1
		} else if n != columns {
			t.Errorf("%d columns instead of %d: %s", n, columns, line)
		}
	}
	if tables != 2 || !strings.Contains(text.String(), "| round trip | µs | 3.00 (9.00) | 4.00 (6.00) | 1.33 | - |") {
		t.Errorf("%d tables:\n%s", tables, &text)
	}
}

// The JSON has the names that the documentation of Result gives.
func TestJSON(t *testing.T) {
	text, err := json.Marshal(measured(t))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"place":"same-node","case":"roundtrip-64","contender":"MPICH","unit":"µs","median":4,"p99":6,"repetitions":2,"rank_cpu_us":3,"kernel_cpu_us":6}`; !strings.Contains(string(text), want) {
		t.Errorf("%s lacks %s", text, want)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "-", 0.00001: "0.0000", 0.0123: "0.0123", 0.5: "0.500", 1.234: "1.23", 12.34: "12.3", 99.96: "100.0", 123.4: "123", 12345: "12345"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %s instead of %s", v, got, want)
		}
	}
}
