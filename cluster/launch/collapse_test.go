package launch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/internal/check"
)

// Equal lines are written once, in the order of each rank, and others as they are.
func TestCollapse(t *testing.T) {
	const stdout, stderr = control.Stream_STREAM_STDOUT, control.Stream_STREAM_STDERR
	for _, test := range []struct {
		name     string
		records  []*control.Record
		out, err string
	}{
		{"all the same", []*control.Record{said(2, stdout, "a\nb\n"), said(0, stdout, "a\n"), said(1, stdout, "a\nb\n"), said(0, stdout, "b\n")}, "[0-2] a\n[0-2] b\n", ""},
		{"order of a rank", []*control.Record{said(0, stdout, "a\nb\n"), said(1, stdout, "b\na\n"), exited(2)}, "[0] a\n[0-1] b\n[1] a\n", ""},
		{"again and again", []*control.Record{said(0, stdout, "a\na\n"), said(1, stdout, "a\n")}, "[0-1] a\n[0] a\n", ""},
		{"streams are apart", []*control.Record{said(0, stdout, "a\n"), said(1, stderr, "a\n")}, "[0] a\n", "[1] a\n"},
		{"no end of line", []*control.Record{said(0, stdout, "a"), said(2, stdout, "a"), exited(0), exited(2)}, "[0,2] a\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			p := newPrinter(&out, &errs, 3, NoLabel)
			p.collapse = newCollapser(3)
			for _, r := range test.records {
				if err := p.print(r); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.finish(); err != nil {
				t.Fatal(err)
			}
			if out.String() != test.out || errs.String() != test.err {
				t.Errorf("printed %q and %q", out.String(), errs.String())
			}
		})
	}
}

// A rank that is many lines ahead does not keep others from their lines, nor make them dear: each
// rank continues after its last line, and equal lines are found by their text.
func TestCollapseAhead(t *testing.T) {
	const lines, ranks = 20_000, 4
	c := newCollapser(ranks)
	var came int
	for rank := range uint32(ranks) {
		for n := range lines {
			for _, g := range c.add(source{rank, control.Stream_STREAM_STDOUT}, fmt.Appendf(nil, "%d\n", n), time.Unix(0, 0)) {
				if came++; len(g.ranks) != ranks {
					t.Fatalf("line %q of ranks %v", g.text, g.ranks)
				}
			}
		}
	}
	if came != lines || len(c.waiting) != 0 || len(c.equal) != 0 || c.bytes != 0 {
		t.Errorf("%d lines; %d wait, %d texts, %d bytes", came, len(c.waiting), len(c.equal), c.bytes)
	}
}

// Whatever ranks write, each of their lines comes once, in its order, within a second, and not too
// much waits.
func TestCollapseModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(check.Seed(t), 3))
	for range 30 {
		ranks := 1 + rng.IntN(8)
		c := newCollapser(ranks)
		now := time.Unix(0, 0)
		wrote, came := make([][]byte, ranks), make([][]byte, ranks)
		take := func(groups []*group) {
			for _, g := range groups {
				if !slices.IsSorted(g.ranks) {
					t.Fatalf("ranks %v", g.ranks)
				}
				for _, r := range g.ranks {
					came[r] = append(came[r], g.text...)
				}
			}
		}
		for range 300 {
			now = now.Add(time.Duration(rng.IntN(100)) * time.Millisecond)
			rank := rng.IntN(ranks)
			switch {
			case rng.IntN(40) == 0:
				c.ended(uint32(rank))
			default:
				text := append(bytes.Repeat([]byte{byte('0' + rng.IntN(3))}, longLine(rng)), '\n')
				wrote[rank] = append(wrote[rank], text...)
				take(c.add(source{uint32(rank), control.Stream_STREAM_STDOUT}, text, now))
			}
			take(c.due(now))
			if c.bytes > collapseBytes || len(c.waiting) > 0 && now.Sub(c.waiting[0].since) >= collapseTime {
				t.Fatalf("%d bytes wait, since %v", c.bytes, now.Sub(c.waiting[0].since))
			}
		}
		take(c.all())
		if !slices.EqualFunc(wrote, came, bytes.Equal) || c.bytes != 0 {
			t.Fatalf("of %d ranks lines are missing, or %d bytes are left", ranks, c.bytes)
		}
	}
}

// longLine is the length of a line, now and then a long one.
func longLine(rng *rand.Rand) int {
	if rng.IntN(300) == 0 {
		return 1 << 20
	}
	return 1
}
