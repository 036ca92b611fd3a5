// Package collective has the algorithms of collective operations, without a way to send: the
// library of Go programs (lib/margay) brings that. lib/c/group.c and lib/c/steps.h repeat it in C.
//
// A Group is some ranks of a job, in an order of its own, which is their places. All of them start
// the same calls of the group in the same order. A rank advances one call of a group at a time, and
// begins the next one when its own part of that is done; calls of different groups do not wait for
// each other. Whenever messages have come, or there is room for others, the caller lets the groups
// advance. A call is a sequence of steps: send these bytes to a rank, or receive bytes from it.
//
// A call moves data along a binomial tree whose root is the call's. Places count from the root:
// place 0 is the root, and place p has the children p+1, p+2, p+4 and so on, below the lowest bit
// of p. So each subtree is a contiguous range of places, and a reduction combines in the order of
// places: the result depends on the operation, the values, the root and the number of ranks, and on
// nothing else.
//
// Data travels in chunks of at most wire.MaxPayload bytes (wire.Call). The chunks from one rank to
// another are a stream for each group, whose order the system keeps, and each carries its call. A
// receiver keeps chunks that come before it makes their call. To bound that, a sender has at most
// wire.CollectiveWindow chunks of a group in flight to each other rank, and the receiver returns
// credits when it takes chunks.
package collective

import (
	"errors"
	"fmt"
	"time"

	"margay/kernel/abi/wire"
)

// Sender sends messages of wire.HandlerCollective without waiting. Post reports whether there was
// room for one. If not, the groups advance again when there may be.
type Sender interface {
	Post(rank int, args [2]uint64, payload []byte) (bool, error)
}

// Group is a rank's part in a group of ranks. It does no I/O and is not safe for concurrent use.
type Group struct {
	id      wire.GroupID
	ranks   []int // by place; nil: as in the job
	places  map[int]int
	own     int // place of this rank
	near    bool
	streams streams

	number uint16
	queue  []*Call   // calls that are not over, in the order of starting
	last   wire.Call // the last one that is over
	broken error     // why no call is possible any more

	// For the errors of calls that do not match (whereabouts.go).
	asked bool        // a peer asks
	clash *mismatch   // that has broken the group
	apart *wire.Where // the rank that the first call awaits is in a barrier of the job
	early *wire.Where // a rank that awaits this one in a call that this one has not started

	patience time.Duration // 0: the first call has done a step since Due looked
	due      time.Duration // when the rank that the first call awaits is probed
}

// NewJob returns a rank's part in the group of all ranks of a job. near says that they are on one
// node.
func NewJob(rank, size int, near bool) *Group {
	return &Group{own: rank, near: near, streams: streams{make([]*peer, size)}}
}

// NewGroup returns a rank's part in the group of ranks that are different, this one among them.
// near says that they are on one node.
func NewGroup(id wire.GroupID, ranks []int, rank int, near bool) *Group {
	g := &Group{id: id, ranks: ranks, places: make(map[int]int), near: near, streams: streams{make([]*peer, len(ranks))}}
	for place, r := range ranks {
		g.places[r] = place
	}
	g.own = g.places[rank]
	return g
}

// ID is the number of the group.
func (g *Group) ID() wire.GroupID { return g.id }

// Size is the number of its ranks.
func (g *Group) Size() int { return len(g.streams.peers) }

// Place is the place of this rank, 0 to Size-1.
func (g *Group) Place() int { return g.own }

// Rank returns the rank at a place.
func (g *Group) Rank(place int) int {
	if g.ranks == nil {
		return place
	}
	return g.ranks[place]
}

// PlaceOf returns the place of a rank, and false if it is not in the group.
func (g *Group) PlaceOf(rank int) (place int, ok bool) {
	if g.ranks == nil {
		return rank, rank < g.Size()
	}
	place, ok = g.places[rank]
	return place, ok
}

// Busy reports whether calls are not over.
func (g *Group) Busy() bool { return len(g.queue) > 0 }

// Arrive takes a message of the group. After one of wire.CallProbe or wire.CallWhere, Answer must
// follow. The payload is copied. The sender may have written anything; the error wraps
// wire.ErrChunk.
func (g *Group) Arrive(rank int, call wire.Call, payload []byte) error {
	place, ok := g.PlaceOf(rank)
	if !ok {
		return fmt.Errorf("%w: rank %d is not in the group", wire.ErrChunk, rank)
	}
	switch call.Kind {
	case wire.CallProbe:
		g.ask(place, call.Number)
		return nil
	case wire.CallWhere:
		return g.learn(place, payload)
	}
	return g.streams.arrive(place, call, payload)
}

// Start starts a call, whose arguments are valid. It fails at once if one has failed before.
// Advance must follow.
func (g *Group) Start(s Spec) *Call {
	g.number = g.number%wire.MaxCallNumber + 1
	header := wire.Call{
		Group: g.id, Root: uint32(s.Root), Number: g.number, Kind: s.Kind, Type: s.Type, Op: s.Op, Length: uint64(s.length(g.Size())),
	}
	c := newCall(s, header, g.Size(), g.own, g.near)
	if g.broken != nil {
		c.over, c.err = true, fmt.Errorf("a collective operation has failed before: %w", g.broken)
		return c
	}
	g.queue = append(g.queue, c)
	return c
}

// Advance makes the steps of calls that are possible, and reports whether there were any.
func (g *Group) Advance(s Sender) (some bool) {
	for len(g.queue) > 0 {
		c := g.queue[0]
		moved, err := g.advance(c, s)
		some = some || moved
		switch {
		case err != nil:
			g.Break(err)
			return true
		case !c.over:
			return some
		}
		g.last, g.apart = c.header, nil
		g.queue[0] = nil
		g.queue = g.queue[1:]
	}
	return some
}

// advance makes steps of a call, and reports whether there were any.
func (g *Group) advance(c *Call, s Sender) (some bool, err error) {
	for c.step.open || c.next() {
		moved, err := g.perform(c, s)
		if moved {
			some, g.patience = true, 0
		}
		if c.step.open || err != nil {
			return some, err
		}
	}
	c.over, c.scratch = true, nil
	return true, nil
}

// perform makes a step as far as possible, and reports whether it has sent or received anything.
func (g *Group) perform(c *Call, s Sender) (some bool, err error) {
	p, rank := g.streams.peer(c.step.place), g.Rank(c.step.place)
	if c.step.receives {
		return g.take(c, p, rank, s)
	}
	for len(c.step.data) > 0 && p.hasCredit() {
		chunk := c.step.data[:min(len(c.step.data), wire.MaxPayload)]
		ok, err := s.Post(rank, c.header.Args(), chunk)
		if !ok || err != nil {
			return some, err
		}
		p.flying++
		c.step.data = c.step.data[len(chunk):]
		some = true
	}
	c.step.open = len(c.step.data) > 0
	return some, nil
}

// take receives for a step, and returns the credits that are owed.
func (g *Group) take(c *Call, p *peer, rank int, s Sender) (some bool, err error) {
	for len(c.step.data) > 0 || p.owed() > 0 {
		if owed := p.owed(); owed > 0 {
			ok, err := s.Post(rank, wire.Call{Group: g.id, Kind: wire.CallCredit, Length: uint64(owed)}.Args(), nil)
			if !ok || err != nil {
				return some, err
			}
			p.taken = 0
			continue
		}
		if !p.hasData() {
			return some, nil
		}
		n, err := p.take(rank, c.header, c.step.data)
		if err != nil {
			return some, err
		}
		c.step.data = c.step.data[n:]
		some = true
	}
	c.step.open = false
	return some, nil
}

// Awaited returns the rank that the first call awaits.
func (g *Group) Awaited() int { return g.Rank(g.queue[0].step.place) }

// Break ends all calls of the group with an error. Later ones fail with it, too.
func (g *Group) Break(err error) {
	if g.broken == nil {
		g.broken = err
	}
	if g.clash == nil && errors.As(err, &g.clash) {
		if place, ok := g.PlaceOf(int(g.clash.where.Rank)); ok && place != g.own {
			g.ask(place, g.clash.own.Number)
		}
	}
	if len(g.queue) > 0 {
		g.last = g.queue[0].header
	}
	for _, c := range g.queue {
		c.over, c.err, c.spec, c.scratch, c.step = true, err, Spec{}, nil, step{}
	}
	g.queue = nil
}

// firstPatience is how long a rank waits for another before it probes whether that has ended. It
// doubles the time with each probe.
const firstPatience = 250 * time.Millisecond

// Due probes the rank that the first call has awaited for long, and returns when it must be called
// again. There is a call.
func (g *Group) Due(now time.Duration, s Sender) (next time.Duration, err error) {
	switch {
	case g.patience == 0:
		g.patience = firstPatience
	case now < g.due:
		return g.due, nil
	default:
		g.patience = min(2*g.patience, time.Hour)
		_, err = s.Post(g.Awaited(), wire.Call{Group: g.id, Number: g.queue[0].header.Number, Kind: wire.CallProbe}.Args(), nil)
	}
	g.due = now + g.patience
	return g.due, err
}
