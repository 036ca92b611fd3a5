package launch

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"margay/cluster/control"
)

func said(rank uint32, stream control.Stream, text string) *control.Record {
	return &control.Record{Rank: rank, Stream: stream, Data: []byte(text)}
}

func exited(rank uint32) *control.Record {
	return &control.Record{Rank: rank, Stream: control.Stream_STREAM_EXIT, Exit: new(control.ExitStatus)}
}

func TestPrinter(t *testing.T) {
	const stdout, stderr = control.Stream_STREAM_STDOUT, control.Stream_STREAM_STDERR
	cases := []struct {
		name     string
		ranks    int
		label    bool
		records  []*control.Record
		out, err string
	}{
		{"one rank", 1, false, []*control.Record{said(0, stdout, "no end"), said(0, stderr, "x"), said(0, stdout, " of line"), exited(0)}, "no end of line", "x"},
		{"lines stay whole", 2, false, []*control.Record{
			said(0, stdout, "a"), said(1, stdout, "b"), said(0, stdout, "a\n"), said(1, stdout, "b\nc"), exited(1), exited(0),
		}, "aa\nbb\nc\n", ""},
		{"streams are apart", 2, false, []*control.Record{said(0, stdout, "out"), said(0, stderr, "err\n"), said(0, stdout, "\n")}, "out\n", "err\n"},
		{"label", 2, true, []*control.Record{said(1, stdout, "a\n\nb\n"), said(0, stderr, "e"), exited(0)}, "[1] a\n[1] \n[1] b\n", "[0] e\n"},
		{"label of one", 1, true, []*control.Record{said(0, stdout, "a\n")}, "[0] a\n", ""},
		{"nothing", 2, true, []*control.Record{said(0, stdout, ""), exited(0), exited(1)}, "", ""},
		{"no UTF-8", 2, false, []*control.Record{said(0, stdout, "\xff\x00\n")}, "\xff\x00\n", ""},
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

// Lines of several ranks come out whole, each in its rank's order, however they were cut into records.
func TestLinesAreNeverTorn(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 1))
	const ranks, lines = 5, 200
	var rest [ranks]string
	for rank := range rest {
		for i := range lines {
			rest[rank] += fmt.Sprintf("%d %d %s\n", rank, i, strings.Repeat("x", random.IntN(300)))
		}
	}
	var out bytes.Buffer
	p := newPrinter(&out, nil, ranks, false)
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

// A line without an end is not held back for ever.
func TestEndlessLine(t *testing.T) {
	var out bytes.Buffer
	p := newPrinter(&out, nil, 2, false)
	for range 10 {
		if err := p.print(said(0, control.Stream_STREAM_STDOUT, strings.Repeat("x", maxLine/2))); err != nil {
			t.Fatal(err)
		}
		if held := len(p.pending[source{0, control.Stream_STREAM_STDOUT}]); held > maxLine {
			t.Fatalf("%d bytes are held back", held)
		}
	}
	if err := p.print(exited(0)); err != nil {
		t.Fatal(err)
	}
	if out.Len() != 5*maxLine+1 {
		t.Errorf("%d bytes were printed", out.Len())
	}
	if len(p.pending) != 0 {
		t.Errorf("something is held for a rank that has ended: %v", p.pending)
	}
}

// brokenWriter is a terminal that is gone.
type brokenWriter struct{}

var errBroken = errors.New("broken pipe")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestPrintFails(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		p := newPrinter(brokenWriter{}, brokenWriter{}, ranks, false)
		if err := p.print(said(0, control.Stream_STREAM_STDOUT, "x\n")); !errors.Is(err, errBroken) {
			t.Errorf("%d ranks: %v", ranks, err)
		}
	}
	p := newPrinter(new(bytes.Buffer), brokenWriter{}, 2, false)
	if err := errors.Join(p.print(said(0, control.Stream_STREAM_STDERR, "x")), p.print(exited(1))); err != nil {
		t.Error(err)
	}
	if err := p.print(exited(0)); !errors.Is(err, errBroken) {
		t.Errorf("the rest: %v", err)
	}
}

// seed returns the seed of a random test: MARGAY_SEED, or a new one that is logged.
func seed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("MARGAY_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("MARGAY_SEED=%d", seed)
	return seed
}
