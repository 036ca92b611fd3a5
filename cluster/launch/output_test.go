package launch

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/internal/check"
)

func said(rank uint32, stream control.Stream, text string) *control.Record {
	return &control.Record{Rank: rank, Stream: stream, Data: []byte(text)}
}

// on makes a record one of a node.
func on(node uint32, r *control.Record) *control.Record {
	r.Node = node
	return r
}

func exited(rank uint32) *control.Record {
	return &control.Record{Rank: rank, Stream: control.Stream_STREAM_EXIT, Exit: new(control.ExitStatus)}
}

func TestPrinter(t *testing.T) {
	const stdout, stderr = control.Stream_STREAM_STDOUT, control.Stream_STREAM_STDERR
	cases := []struct {
		name     string
		ranks    int
		label    Label
		records  []*control.Record
		out, err string
	}{
		{"one rank", 1, NoLabel, []*control.Record{said(0, stdout, "no end"), said(0, stderr, "x"), said(0, stdout, " of line"), exited(0)}, "no end of line", "x"},
		{"lines stay whole", 2, NoLabel, []*control.Record{
			said(0, stdout, "a"), said(1, stdout, "b"), said(0, stdout, "a\n"), said(1, stdout, "b\nc"), exited(1), exited(0),
		}, "aa\nbb\nc\n", ""},
		{"streams are apart", 2, NoLabel, []*control.Record{said(0, stdout, "out"), said(0, stderr, "err\n"), said(0, stdout, "\n")}, "out\n", "err\n"},
		{"label", 2, ByRank, []*control.Record{said(1, stdout, "a\n\nb\n"), said(0, stderr, "e"), exited(0)}, "[1] a\n[1] \n[1] b\n", "[0] e\n"},
		{"label of hosts", 2, ByHost, []*control.Record{on(3, said(1, stdout, "a\nb")), on(3, exited(1))}, "[node3] a\n[node3] b\n", ""},
		{"both labels", 2, ByBoth, []*control.Record{on(3, said(1, stdout, "a\n"))}, "[node3 1] a\n", ""},
		{"label of one", 1, ByRank, []*control.Record{said(0, stdout, "a\n")}, "[0] a\n", ""},
		{"nothing", 2, ByRank, []*control.Record{said(0, stdout, ""), exited(0), exited(1)}, "", ""},
		{"children go on", 2, NoLabel, []*control.Record{
			said(0, stdout, "be"), {Rank: 0, Stream: control.Stream_STREAM_EXIT, Open: true}, said(1, stdout, "x\n"), said(0, stdout, "gin"), said(1, stdout, "y"),
			{Rank: 1, Stream: control.Stream_STREAM_END, Last: true},
		}, "x\nbegin\ny\n", ""},
		{"no UTF-8", 2, NoLabel, []*control.Record{said(0, stdout, "\xff\x00\n")}, "\xff\x00\n", ""},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			p := newPrinter(&out, &errs, k.ranks, k.label)
			for _, r := range k.records {
				if err := p.print(r); err != nil {
					t.Fatal(err)
				}
			}
			if out.String() != k.out || errs.String() != k.err {
				t.Errorf("printed %q and %q", out.String(), errs.String())
			}
		})
	}
}

// Lines of several ranks come out whole, each in its rank's order, however they were cut into
// records.
func TestLinesAreNeverTorn(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	const ranks, lines = 5, 200
	var rest [ranks]string
	for rank := range rest {
		for i := range lines {
			rest[rank] += fmt.Sprintf("%d %d %s\n", rank, i, strings.Repeat("x", random.IntN(300)))
		}
	}
	var out bytes.Buffer
	p := newPrinter(&out, nil, ranks, NoLabel)
	for left := ranks; left > 0; {
		rank := random.IntN(ranks)
		if rest[rank] == "" {
			continue
		}
		n := 1 + random.IntN(min(len(rest[rank]), 500))
		if err := p.print(said(uint32(rank), control.Stream_STREAM_STDOUT, rest[rank][:n])); err != nil {
			t.Fatal(err)
		}
		if rest[rank] = rest[rank][n:]; rest[rank] == "" {
			left--
		}
	}
	var next [ranks]int
	for line := range strings.Lines(out.String()) {
		var rank, number int
		var text string
		if n, _ := fmt.Sscanf(line, "%d %d %s\n", &rank, &number, &text); n < 2 || number != next[rank] || strings.Trim(text, "x") != "" {
			t.Fatalf("line %q, expected number %d", line, next[rank])
		}
		next[rank]++
	}
	for rank, n := range next {
		if n != lines {
			t.Errorf("%d lines of rank %d", n, rank)
		}
	}
}

// Lines stay whole however long they are. What does not fit into memory is held in files that have
// no name.
func TestLongLines(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	random := rand.New(rand.NewPCG(check.Seed(t), 2))
	for _, label := range []Label{NoLabel, ByRank} {
		const ranks, lines = 4, 3
		var rest, prefix [ranks]string
		want := make(map[string]int)
		for rank := range ranks {
			if label == ByRank {
				prefix[rank] = fmt.Sprintf("[%d] ", rank)
			}
			for i := range lines {
				line := strings.Repeat(fmt.Sprint(rank, i), holdPiece+random.IntN(holdPiece))
				rest[rank] += line + "\n"
				want[prefix[rank]+line]++
			}
		}
		var out bytes.Buffer
		p := newPrinter(&out, nil, ranks, label)
		p.limit = 2 * holdPiece
		for left := ranks; left > 0; {
			rank := random.IntN(ranks)
			if rest[rank] == "" {
				continue
			}
			n := 1 + random.IntN(min(len(rest[rank]), 32<<10))
			if err := p.print(said(uint32(rank), control.Stream_STREAM_STDOUT, rest[rank][:n])); err != nil {
				t.Fatal(err)
			}
			if p.held > p.limit+ranks*holdPiece {
				t.Fatalf("%d bytes are in memory", p.held)
			}
			if rest[rank] = rest[rank][n:]; rest[rank] == "" {
				left--
			}
		}
		for line := range strings.Lines(out.String()) {
			want[strings.TrimSuffix(line, "\n")]--
		}
		for line, n := range want {
			if n != 0 {
				t.Errorf("label %v: %.20q ... of %d bytes is there %d times too rarely", label, line, len(line), n)
			}
		}
		if p.held != 0 || len(p.lines) != 0 {
			t.Errorf("%d bytes are held of %d lines", p.held, len(p.lines))
		}
	}
	if files, err := os.ReadDir(temporary); len(files) != 0 || err != nil {
		t.Errorf("files are left: %v, %v", files, err)
	}
}

// A line that cannot be kept whole is an error that says so.
func TestLongLineWithoutRoom(t *testing.T) {
	t.Setenv("TMPDIR", "/no/such/folder")
	p := newPrinter(new(bytes.Buffer), nil, 2, NoLabel)
	p.limit = holdPiece
	err := p.print(said(1, control.Stream_STREAM_STDOUT, strings.Repeat("x", 2*holdPiece)))
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "keep a long line of rank 1 whole: ") {
		t.Errorf("the error is %v", err)
	}
}

// brokenWriter is a terminal that is gone.
type brokenWriter struct{}

var errBroken = errors.New("broken pipe")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestPrintFails(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		p := newPrinter(brokenWriter{}, brokenWriter{}, ranks, NoLabel)
		if err := p.print(said(0, control.Stream_STREAM_STDOUT, "x\n")); !errors.Is(err, errBroken) {
			t.Errorf("%d ranks: %v", ranks, err)
		}
	}
	p := newPrinter(new(bytes.Buffer), brokenWriter{}, 2, NoLabel)
	if err := errors.Join(p.print(said(0, control.Stream_STREAM_STDERR, "x")), p.print(exited(1))); err != nil {
		t.Error(err)
	}
	if err := p.print(exited(0)); !errors.Is(err, errBroken) {
		t.Errorf("the rest: %v", err)
	}
}

func TestFailed(t *testing.T) {
	const done = control.JobPhase_JOB_DONE
	ranks := []*control.RankState{{Node: 0}, {Rank: 1, Node: 2, Ended: true, Exit: &control.ExitStatus{Code: 3}}}
	for want, j := range map[string]*control.JobSummary{
		"job 5 ended with status 3: rank 1 on node2 exited with status 3":         {Phase: done, ExitCode: 3, FirstFailed: 1, RankStates: ranks},
		"job 5 ended with status 125: the reason":                                 {Phase: done, ExitCode: 125, FirstFailed: control.None, RankStates: ranks, Error: "the reason"},
		"job 5 ended with status 125":                                             {Phase: done, ExitCode: 125, FirstFailed: control.None, Error: "the reason", Missing: "the reason"},
		"job 5 ended with status 125: rank 1 on node2 exited with status 3: full": {Phase: done, ExitCode: 125, FirstFailed: 1, RankStates: ranks, Error: "full"},
	} {
		j.Job = 5
		if text := HowEnded(j); text != want {
			t.Errorf("%q instead of %q", text, want)
		}
	}
	for name, j := range map[string]*control.JobSummary{
		"runs":    {Job: 5, Phase: control.JobPhase_JOB_RUNNING, ExitCode: 3, FirstFailed: 1, RankStates: ranks},
		"success": {Job: 5, Phase: done, FirstFailed: control.None, Missing: "output beyond 256 MiB was not kept"},
	} {
		if text := HowEnded(j); text != "" {
			t.Errorf("%s: %q", name, text)
		}
	}
}
