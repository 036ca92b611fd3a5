package launch

import (
	"bytes"
	"slices"
	"time"

	"margay/cluster/control"
)

// Bounds of what a collapser holds.
const (
	collapseTime  = time.Second // how long a line waits for others that are equal
	collapseBytes = 4 << 20     // of all lines that wait
	groupBytes    = 128         // that a line takes besides its text
)

// collapser merges equal lines of ranks. A line waits until all ranks that run have written it, for
// a second at most, and less when too much waits. Lines are written in the order in which the first
// rank has written them, so that the lines of each rank keep their order: a rank is added to an
// equal line only if that comes after its last one. It has no clock of its own.
type collapser struct {
	running int             // ranks
	over    map[uint32]bool // ranks that have ended
	waiting []*group
	bytes   int
}

// group is a line that several ranks have written.
type group struct {
	stream control.Stream
	text   []byte
	ranks  []uint32 // sorted
	ended  int      // ranks of it that have ended
	since  time.Time
}

func newCollapser(ranks int) *collapser {
	return &collapser{running: ranks, over: make(map[uint32]bool)}
}

// add takes a line of a rank and returns the lines that wait no longer.
func (c *collapser) add(from source, text []byte, now time.Time) []*group {
	first := 0 // where it may be added
	for i, g := range slices.Backward(c.waiting) {
		if _, has := slices.BinarySearch(g.ranks, from.rank); has {
			first = i + 1
			break
		}
	}
	at := slices.IndexFunc(c.waiting[first:], func(g *group) bool { return g.stream == from.stream && bytes.Equal(g.text, text) })
	if at < 0 {
		at = len(c.waiting) - first
		c.waiting = append(c.waiting, &group{stream: from.stream, text: slices.Clone(text), since: now})
		c.bytes += len(text) + groupBytes
	}
	g := c.waiting[first+at]
	place, _ := slices.BinarySearch(g.ranks, from.rank)
	g.ranks = slices.Insert(g.ranks, place, from.rank)
	c.bytes += 4
	if c.over[from.rank] { // its children write
		g.ended++
	}
	return c.due(now)
}

// ended notes that a rank writes no further lines, but for its children.
func (c *collapser) ended(rank uint32) {
	if c.over[rank] {
		return
	}
	c.over[rank] = true
	c.running--
	for _, g := range c.waiting {
		if _, has := slices.BinarySearch(g.ranks, rank); has {
			g.ended++
		}
	}
}

// due returns the lines that wait no longer, in order.
func (c *collapser) due(now time.Time) (due []*group) {
	for len(c.waiting) > 0 {
		g := c.waiting[0]
		if len(g.ranks)-g.ended < c.running && now.Sub(g.since) < collapseTime && c.bytes <= collapseBytes {
			break
		}
		due = append(due, c.take())
	}
	return due
}

// all returns all lines.
func (c *collapser) all() (all []*group) {
	for len(c.waiting) > 0 {
		all = append(all, c.take())
	}
	return all
}

func (c *collapser) take() *group {
	g := c.waiting[0]
	c.waiting = c.waiting[1:]
	c.bytes -= len(g.text) + groupBytes + 4*len(g.ranks)
	return g
}
