package launch

import (
	"slices"
	"time"

	"margay/cluster/control"
)

// Bounds of what a collapser holds.
const (
	collapseTime  = time.Second // how long a line waits for others that are equal
	collapseBytes = 8 << 20     // of all lines that wait
	groupBytes    = 256         // that a line takes besides its text
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

	taken uint64              // lines that wait no longer; a line has the number that were added before it
	after map[uint32]uint64   // by rank: the number of its last line, plus one
	equal map[lineOf][]uint64 // the numbers of the waiting lines that are equal, in order
}

// lineOf is what equal lines have in common.
type lineOf struct {
	stream control.Stream
	text   string
}

// group is a line that several ranks have written.
type group struct {
	lineOf
	ranks []uint32 // sorted
	ended int      // ranks of it that have ended
	since time.Time
}

func newCollapser(ranks int) *collapser {
	return &collapser{running: ranks, over: make(map[uint32]bool), after: make(map[uint32]uint64), equal: make(map[lineOf][]uint64)}
}

// add takes a line of a rank and returns the lines that wait no longer.
func (c *collapser) add(from source, text []byte, now time.Time) []*group {
	l := lineOf{from.stream, string(text)}
	numbers := c.equal[l]
	i, _ := slices.BinarySearch(numbers, c.after[from.rank])
	if i == len(numbers) {
		numbers = append(numbers, c.taken+uint64(len(c.waiting)))
		c.equal[l] = numbers
		c.waiting = append(c.waiting, &group{lineOf: l, since: now})
		c.bytes += len(text) + groupBytes
	}
	c.after[from.rank] = numbers[i] + 1
	g := c.waiting[numbers[i]-c.taken]
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
	c.waiting[0] = nil
	c.waiting = c.waiting[1:]
	c.taken++
	if others := c.equal[g.lineOf][1:]; len(others) > 0 {
		c.equal[g.lineOf] = others
	} else {
		delete(c.equal, g.lineOf)
	}
	c.bytes -= len(g.text) + groupBytes + 4*len(g.ranks)
	return g
}
