package collective

import (
	"math/bits"

	"margay/kernel/abi/wire"
)

// Spec describes a call of this rank. Its memory belongs to the call until that is over.
type Spec struct {
	Kind    wire.CallKind
	Type    wire.CallType
	Op      wire.CallOp
	Root    int    // its place
	In, Out []byte // a broadcast has its data in Out; a reduction and a scan may have the same memory twice
	Element int    // bytes of an element that Combine combines
	Combine func(into, from []byte)
}

// length is the length of a call, which all ranks give.
func (s *Spec) length(size int) int {
	switch s.Kind {
	case wire.CallBroadcast:
		return len(s.Out)
	case wire.CallAllToAll:
		return len(s.In) / size
	case wire.CallBarrier:
		return 1
	}
	return len(s.In)
}

// Call is a call of this rank that was started (Group.Start).
type Call struct {
	spec     Spec
	header   wire.Call
	size     int         // ranks of the group
	own      int         // place of this rank, counted from the root, as all places in this type
	children int         // places own+1, own+2, own+4 and so on, below the lowest bit of own
	small    func() bool // the algorithm of a small all-reduce; nil: it is none
	over     bool
	err      error

	step    step
	scratch []byte

	// How far the algorithm has got.
	at    int // bytes
	turn  int // steps on the piece at these bytes
	round int
	held  int // bytes in scratch
}

// step is the next thing to do with another rank: data are those left to send, or room for those
// left to receive.
type step struct {
	place    int // in the group
	receives bool
	open     bool // it is not done
	data     []byte
}

// Over reports whether the call is complete or has failed, and Err why it has failed.
func (c *Call) Over() bool { return c.over }

// Err returns why the call has failed, nil if it has not.
func (c *Call) Err() error { return c.err }

// newCall returns a call of a rank at a place. near says that all ranks are on one node.
func newCall(s Spec, header wire.Call, size, place int, near bool) *Call {
	c := &Call{spec: s, header: header, size: size, own: (place - s.Root + size) % size}
	for bit := 1; c.own&bit == 0 && c.own+bit < size; bit *= 2 {
		c.children++
	}
	switch s.Kind {
	case wire.CallReduce, wire.CallAllReduce, wire.CallScan:
		switch {
		case s.Kind != wire.CallAllReduce || size > wire.MostSmall || len(s.In) > wire.MaxPayload:
			c.scratch = aligned(2 * c.piece())
		case near || size <= 2:
			c.small, c.scratch = c.exchange, aligned(size*len(s.In))
		default:
			c.small, c.scratch = c.funnel, aligned(size*len(s.In))
		}
	case wire.CallGather, wire.CallAllGather, wire.CallSplit:
		if c.own != 0 {
			c.scratch = make([]byte, wire.MaxPayload)
		}
	case wire.CallBarrier:
		c.scratch = make([]byte, 2)
	}
	return c
}

// piece returns how many bytes of elements are combined at a time.
func (c *Call) piece() int { return max(c.spec.Element, wire.MaxPayload/c.spec.Element*c.spec.Element) }

// next makes step the next one, after the last one is done, and reports false if there is none.
func (c *Call) next() bool {
	switch c.spec.Kind {
	case wire.CallBroadcast:
		return c.broadcast()
	case wire.CallReduce:
		return c.reduce()
	case wire.CallAllReduce:
		if c.small != nil {
			return c.small()
		}
		return c.then(c.reduce, c.broadcast)
	case wire.CallGather:
		return c.gather()
	case wire.CallAllGather, wire.CallSplit:
		return c.then(c.gather, c.broadcast)
	case wire.CallAllToAll:
		return c.allToAll()
	case wire.CallScan:
		return c.scan()
	}
	return c.barrier()
}

// then makes the steps of two algorithms, one after the other.
func (c *Call) then(first, second func() bool) bool {
	if c.round == 0 {
		if first() {
			return true
		}
		c.round, c.at, c.turn = 1, 0, 0
	}
	return second()
}

// rank returns the place in the group of a place.
func (c *Call) rank(place int) int { return (place + c.spec.Root) % c.size }

func (c *Call) parent() int { return c.own & (c.own - 1) }

func (c *Call) send(place int, data []byte) bool {
	c.step = step{place: c.rank(place), open: true, data: data}
	return true
}

func (c *Call) receive(place int, room []byte) bool {
	c.step = step{place: c.rank(place), receives: true, open: true, data: room}
	return true
}

// done begins the next piece after one of n bytes.
func (c *Call) done(n int) { c.at, c.turn = c.at+n, 0 }

// broadcast copies Out of the root to Out of the others.
func (c *Call) broadcast() bool {
	for data := c.spec.Out; c.at < len(data); {
		piece := data[c.at:min(len(data), c.at+wire.MaxPayload)]
		turn := c.turn
		c.turn++
		switch {
		case turn == 0 && c.own != 0:
			return c.receive(c.parent(), piece)
		case turn == 0:
		case turn <= c.children: // the largest subtree first
			return c.send(c.own+1<<(c.children-turn), piece)
		default:
			c.done(len(piece))
		}
	}
	return false
}

// halves returns the first n bytes of both halves of scratch.
func (c *Call) halves(n int) (sum, other []byte) {
	return c.scratch[:n], c.scratch[len(c.scratch)/2:][:n]
}

// reduce combines In of all ranks in Out of the root, in the order of places.
func (c *Call) reduce() bool {
	for c.at < len(c.spec.In) {
		n := min(len(c.spec.In)-c.at, c.piece())
		sum, other := c.halves(n)
		turn := c.turn
		c.turn++
		switch {
		case turn == 0:
			copy(sum, c.spec.In[c.at:])
		case turn <= c.children:
			c.spec.Combine(sum, other)
		}
		switch {
		case turn < c.children:
			return c.receive(c.own+1<<turn, other)
		case turn == c.children && c.own != 0:
			return c.send(c.parent(), sum)
		case turn == c.children:
			copy(c.spec.Out[c.at:], sum)
		}
		c.done(n)
	}
	return false
}

// exchange is reduce and broadcast with a message from each rank to each other one. It combines in
// the same order and association.
func (c *Call) exchange() bool {
	n, others := len(c.spec.In), c.size-1
	if n == 0 {
		return false
	}
	turn := c.turn
	c.turn++
	switch other := (c.own + 1 + turn%max(1, others)) % c.size; {
	case turn < others:
		return c.send(other, c.spec.In)
	case turn < 2*others:
		return c.receive(other, c.block(other))
	}
	c.combine()
	return false
}

// funnel is reduce and broadcast with a message from each rank to the root and one back. It
// combines in the same order and association.
func (c *Call) funnel() bool {
	turn, others := c.turn, c.size-1
	c.turn++
	switch {
	case len(c.spec.In) == 0:
		return false
	case c.own != 0 && turn == 0:
		return c.send(0, c.spec.In)
	case c.own != 0 && turn == 1:
		return c.receive(0, c.spec.Out)
	case c.own != 0 || turn == 2*others:
		return false
	case turn < others:
		return c.receive(1+turn, c.block(1+turn))
	case turn == others:
		c.combine()
	}
	return c.send(1+turn-others, c.spec.Out)
}

// block is the room in scratch for In of the rank at a place.
func (c *Call) block(place int) []byte {
	n := len(c.spec.In)
	return c.scratch[place*n:][:n]
}

// combine combines In of all ranks, all others' in scratch, in Out, as reduce does.
func (c *Call) combine() {
	copy(c.block(c.own), c.spec.In)
	for bit := 1; bit < c.size; bit *= 2 {
		for at := 0; at+bit < c.size; at += 2 * bit {
			c.spec.Combine(c.block(at), c.block(at+bit))
		}
	}
	copy(c.spec.Out, c.block(0))
}

// subtree returns the number of places in the subtree of a place, which begins with it.
func (c *Call) subtree(place int) int {
	if place == 0 {
		return c.size
	}
	return min(place&-place, c.size-place)
}

// gather collects In of all ranks in Out of the root, in the order of the group. A rank in between
// passes data on in full chunks.
func (c *Call) gather() bool {
	n := len(c.spec.In)
	if c.own == 0 {
		return c.collect()
	}
	for end := n * c.subtree(c.own); ; {
		if c.held == wire.MaxPayload || c.at == end && c.held > 0 {
			held := c.held
			c.held = 0
			return c.send(c.parent(), c.scratch[:held])
		}
		if c.at == end {
			return false
		}
		room := c.scratch[c.held:]
		if c.at < n { // its own
			moved := copy(room, c.spec.In[c.at:])
			c.at, c.held = c.at+moved, c.held+moved
			continue
		}
		child := c.own + highest(c.at/n)
		room = room[:min(len(room), n*(child-c.own+c.subtree(child))-c.at)]
		c.at, c.held = c.at+len(room), c.held+len(room)
		return c.receive(child, room)
	}
}

// highest returns the highest bit of a positive number.
func highest(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

// collect is gather at the root.
func (c *Call) collect() bool {
	n := len(c.spec.In)
	place := c.turn
	c.turn++
	switch {
	case n == 0 || place == c.size:
		return false
	case place == 0:
		copy(c.spec.Out[c.rank(0)*n:], c.spec.In)
		return c.collect()
	}
	return c.receive(highest(place), c.spec.Out[c.rank(place)*n:][:n])
}

// allToAll sends a block of In to each rank, and receives one of Out from each, chunk by chunk, so
// that credits return in between.
func (c *Call) allToAll() bool {
	n := len(c.spec.In) / c.size
	if c.round == 0 {
		copy(c.spec.Out[c.own*n:][:n], c.spec.In[c.own*n:])
		c.round = 1
	}
	for c.round < c.size {
		if c.at == n {
			c.round, c.at = c.round+1, 0
			continue
		}
		end := min(n, c.at+wire.MaxPayload)
		turn := c.turn
		c.turn++
		if turn == 0 {
			to := (c.own + c.round) % c.size
			return c.send(to, c.spec.In[to*n:][c.at:end])
		}
		from := (c.own - c.round + c.size) % c.size
		room := c.spec.Out[from*n:][c.at:end]
		c.done(len(room))
		return c.receive(from, room)
	}
	return false
}

// scan combines In of the ranks up to this one in Out, in the order of places. In round k a rank
// has the sum of 2^k ranks, itself the last, and adds the sum of the 2^k before.
func (c *Call) scan() bool {
	for c.at < len(c.spec.In) {
		n := min(len(c.spec.In)-c.at, c.piece())
		sum, other := c.halves(n)
		far, receives := 1<<(c.turn/2), c.turn%2 == 1
		switch {
		case c.turn == 0:
			copy(sum, c.spec.In[c.at:])
		case !receives && c.own >= far/2:
			c.spec.Combine(other, sum)
			copy(sum, other)
		}
		c.turn++
		switch {
		case far >= c.size:
			copy(c.spec.Out[c.at:], sum)
			c.done(n)
		case !receives && c.own+far < c.size:
			return c.send(c.own+far, sum)
		case receives && c.own >= far:
			return c.receive(c.own-far, other)
		}
	}
	return false
}

// barrier sends a byte to the rank 2^k places behind in round k, and receives one from
// the rank so far before.
func (c *Call) barrier() bool {
	far, receives := 1<<(c.turn/2), c.turn%2 == 1
	c.turn++
	switch {
	case far >= c.size:
		return false
	case receives:
		return c.receive((c.own-far+c.size)%c.size, c.scratch[1:])
	}
	return c.send((c.own+far)%c.size, c.scratch[:1])
}
