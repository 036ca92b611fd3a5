package wire

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Bits of an area's path word.
const (
	PathDirect = 1  // messages between ranks of the node may take channels
	PathYield  = 2  // a rank that waits may yield its core for a while before it sleeps
	PathSpin   = 4  // and may spin before that
	PathMeet   = 8  // barriers may be completed on the boards
	PathStrewn = 16 // the CPUs of the ranks of this node are shared with other nodes, and barriers may climb the tree
	PathFar    = 32 // messages to ranks of other nodes may take mirrored channels
)

// Results of an Outlet or an Inlet: the process to wake. Other values are local ranks.
const (
	WakeNobody = -1
	WakeKernel = -2
	WakeMirror = -3 // none: the caller sends the new bytes of the mirrored channel to the message's rank
)

// ErrChannels reports that a channel must be fetched before the next message can be handled.
var ErrChannels = errors.New("wire: there are channels that were not fetched")

// Outlet sends a rank's messages, each on its path. It is not safe for concurrent use.
type Outlet struct {
	area  *Area
	board *Board
	send  *Producer
	to    []*outlet // by rank; nil: there is no channel to it
	node  uint32

	longs  map[uint32]*Long // by target: the message that is being sent
	number uint16           // of the last one that was begun
	first  []byte           // payload of a first piece

	// Positions of the send ring behind messages that passed the node kernel, but for Notes.
	spoken  uint64 // the last one
	strayed uint64 // the last one to another node
	cleared uint64 // all before had arrived at a barrier of the node kernels
}

// mirrored is instead of a local rank at the other end of a mirrored channel.
const mirrored = -1

// outlet is a rank's way to another.
type outlet struct {
	*ChannelProducer
	local   int            // the other rank, or mirrored
	limit   int            // bytes of the longest payload of a record
	kernel  uint64         // position of the send ring behind the last message to it
	through bool           // that message may not be settled
	hasty   int            // messages that do not wait for that
	settled *atomic.Uint64 // position of the send ring before which all messages to it are settled
	spoken  uint64         // position of the channel behind the last message but Notes
}

// NewOutlet makes the outlet of the rank that has the area.
func NewOutlet(a *Area, b *Board, h Header) *Outlet {
	return &Outlet{area: a, board: b, send: a.SendProducer(), to: make([]*outlet, h.Size), node: h.Node, longs: make(map[uint32]*Long)}
}

// Open adds the channel to a rank, which is a local rank of the job.
func (o *Outlet) Open(c *Channel, rank, local int) {
	o.add(c, rank, local, ChannelPayload, o.area.Settled())
}

// OpenMirror adds the mirrored channel to a rank of another node, whose datagrams carry at most so
// many bytes of records.
func (o *Outlet) OpenMirror(c *Channel, rank, most int) {
	o.add(c, rank, mirrored, min(ChannelPayload, most&^7-ChannelHeader), c.Settled())
}

func (o *Outlet) add(c *Channel, rank, local, limit int, settled *atomic.Uint64) {
	o.to[rank] = &outlet{ChannelProducer: c.Producer(), local: local, limit: limit, kernel: o.send.Position(), through: true, settled: settled}
}

// direct reports whether a message to a handler takes a channel, which may be nil. Node kernels
// carry out requests about windows of other nodes. Notes take any channel.
func (o *Outlet) direct(to *outlet, handler uint16) bool {
	if to == nil {
		return false
	}
	if handler == HandlerBarrier {
		return to.Closed().Load() != ChannelEnded
	}
	if !o.open(to) || to.local == mirrored && handler == HandlerRemote {
		return false
	}
	if to.through && to.settled.Load() < to.kernel {
		return false
	}
	to.through, to.hasty = false, 0
	return true
}

// hasty is how many messages behind one that has waited in vain do not wait.
const hasty = 64

// Unsettled reports whether messages to a rank of another node could take a mirrored channel if
// those that passed the node kernels were settled. A rank that sends without a pause should wait
// for that: otherwise it would send through the node kernels forever.
func (o *Outlet) Unsettled(rank uint32) bool {
	to := o.to[rank]
	return to != nil && to.local == mirrored && o.open(to) && !o.direct(to, HandlerPiece)
}

// Calm is Unsettled for a message that would wait. After Haste, some do not.
func (o *Outlet) Calm(rank uint32) (wait bool) {
	if !o.Unsettled(rank) {
		return false
	}
	to := o.to[rank]
	if to.hasty == 0 {
		return true
	}
	to.hasty--
	return false
}

// Haste notes that a message to a rank has waited in vain.
func (o *Outlet) Haste(rank uint32) { o.to[rank].hasty = hasty }

// open reports whether messages may take a channel when those before them are settled.
func (o *Outlet) open(to *outlet) bool {
	bit := uint32(PathDirect)
	if to.local == mirrored {
		bit = PathFar
	}
	return o.area.Path().Load()&bit != 0 && to.Closed().Load() == 0
}

// Push sends a message of at most MaxPayload bytes to the rank r.Peer. It reports whether there was
// room, and which process to wake.
func (o *Outlet) Push(r *Record) (ok bool, wake int, err error) {
	if len(r.Payload) > MaxPayload {
		return false, WakeNobody, ErrTooLong
	}
	to := o.to[r.Peer]
	return o.push(r, to, o.direct(to, r.Handler))
}

// push is Push on a path.
func (o *Outlet) push(r *Record, to *outlet, direct bool) (ok bool, wake int, err error) {
	if direct {
		if ok, err = to.Push(r); err != nil {
			return false, WakeNobody, fmt.Errorf("channel to rank %d: %w", r.Peer, err)
		}
		if ok && r.Handler != HandlerBarrier {
			to.spoken = to.position
		}
		if ok && to.local == mirrored {
			return true, WakeMirror, nil
		}
		if ok && o.board.Claim(to.local) {
			return true, to.local, nil
		}
		return ok, WakeNobody, nil
	}
	if to != nil {
		r.After = to.Mark()
	}
	ok, ring, err := o.send.Push(*r)
	if ok && to != nil {
		to.kernel, to.through = o.send.Position(), true
	}
	if ok && r.Handler != HandlerBarrier {
		o.passed(r.Peer)
	}
	if ring {
		return ok, WakeKernel, err
	}
	return ok, WakeNobody, err
}

// Wait announces that the rank is going to wait for room for a message with so much payload to a
// handler of a rank. It reports whether there is none; otherwise waiting would be wrong.
func (o *Outlet) Wait(rank uint32, handler uint16, payload int) (wait bool) {
	if to := o.to[rank]; o.direct(to, handler) {
		return to.Wait(payload)
	}
	return o.send.Wait(payload)
}

// passed notes that a message to a rank passes the node kernel.
func (o *Outlet) passed(rank uint32) {
	o.spoken = o.send.Position()
	if o.area.NodeOf(rank) != o.node {
		o.strayed = o.spoken
	}
}

// Spoken returns the position of the mirrored channel to a rank behind its last message, not
// counting Notes; 0 if there is no channel.
func (o *Outlet) Spoken(rank int) uint64 {
	if to := o.to[rank]; to != nil {
		return to.spoken
	}
	return 0
}

// Ended reports whether a rank that a channel leads to has ended.
func (o *Outlet) Ended(rank int) bool {
	to := o.to[rank]
	return to != nil && to.Closed().Load() == ChannelEnded
}

// Quiet reports whether all messages that passed the node kernel are settled, and none need pass
// it. The caller has waited for the messages in mirrored channels.
func (o *Outlet) Quiet() bool {
	return o.area.Path().Load()&PathMeet != 0 && o.area.Settled().Load() >= o.spoken && o.strayed <= o.cleared
}

// Passed returns the position of the send ring behind all messages that passed the node kernel, for
// Clear.
func (o *Outlet) Passed() uint64 { return o.send.Position() }

// Clear notes that a barrier of the node kernels is complete which the rank had entered when Passed
// returned position.
func (o *Outlet) Clear(position uint64) { o.cleared = max(o.cleared, position) }

// Inlet receives a rank's messages, in the order that the paths demand. It is not safe for
// concurrent use.
type Inlet struct {
	area    *Area
	board   *Board
	node    uint32
	receive *Consumer
	upcalls *Consumer
	from    []*inlet // by rank; nil: there is no channel from it
	all     []*inlet
	turn    int // index in all of the channel to look at first
	known   uint32
	stalled bool

	// Where the last message of Next came from: one of the two.
	ring    *Consumer
	channel *inlet
	later   bool // it is a piece behind the first
}

// inlet is another rank's way to this one.
type inlet struct {
	*ChannelConsumer
	rank  uint32
	node  uint32
	local int // or mirrored
	count uint64
}

// NewInlet makes the inlet of the rank that has the area, in a job of size ranks.
func NewInlet(a *Area, b *Board, h Header) *Inlet {
	return &Inlet{
		area: a, board: b, node: h.Node, receive: a.ReceiveConsumer(), upcalls: a.UpcallConsumer(), from: make([]*inlet, h.Size),
	}
}

// Missing returns the index of a channel that must be fetched, if there is one.
func (in *Inlet) Missing() (index uint32, ok bool) {
	return in.known, in.area.Channels().Load() != in.known
}

// Fetched notes that the missing channel was fetched.
func (in *Inlet) Fetched() { in.known++ }

// Open adds the channel from a rank, which is a local rank of the job.
func (in *Inlet) Open(c *Channel, rank uint32, local int) {
	in.open(&inlet{ChannelConsumer: c.Consumer(), rank: rank, node: in.node, local: local})
}

// OpenMirror adds the mirrored channel from a rank of another node.
func (in *Inlet) OpenMirror(c *Channel, rank uint32) {
	in.open(&inlet{ChannelConsumer: c.Consumer(), rank: rank, node: in.area.NodeOf(rank), local: mirrored})
}

func (in *Inlet) open(c *inlet) {
	in.from[c.rank] = c
	in.all = append(in.all, c)
}

// Next returns the message to be handled next, and whether there is one. It is valid until Done,
// which must follow. The error is ErrChannels, or ErrCorrupt.
func (in *Inlet) Next() (r Record, ok bool, err error) {
	in.stalled = false
	// An upcall sent before the message in the ring has arrived before it.
	some := in.receive.Ready()
	if r, ok, err = in.NextUpcall(); ok || err != nil {
		return r, ok, err
	}
	if some {
		return in.nextReceived()
	}
	for range in.all {
		c := in.all[in.turn]
		if !c.Ready() {
			in.turn = (in.turn + 1) % len(in.all)
			continue
		}
		// What the same rank sent before through the node kernel is in the rings by now.
		if in.upcalls.Ready() || in.receive.Ready() {
			return in.Next()
		}
		return in.take(c)
	}
	return Record{}, false, nil
}

// Stalled reports whether Next has returned no message because messages that were sent before the
// one in the receive ring have not arrived. Until they have, it returns no others.
func (in *Inlet) Stalled() bool { return in.stalled }

// NextUpcall is Next for upcalls alone.
func (in *Inlet) NextUpcall() (r Record, ok bool, err error) {
	in.ring, in.channel = in.upcalls, nil
	return in.upcalls.Next()
}

// WaitUpcalls announces that the rank wants to be interrupted by upcalls. It reports whether there
// are none.
func (in *Inlet) WaitUpcalls() bool { return in.upcalls.Wait() }

// nextReceived returns the next message of the receive ring, or one of a channel that was sent
// before it.
func (in *Inlet) nextReceived() (r Record, ok bool, err error) {
	r, ok, err = in.receive.Next()
	in.ring, in.channel = in.receive, nil
	if !ok || err != nil || r.After == 0 || int(r.Peer) >= len(in.from) {
		return r, ok, err
	}
	from := in.from[r.Peer]
	if from == nil {
		if _, missing := in.Missing(); missing {
			in.receive.Unread()
			return Record{}, false, ErrChannels
		}
		return r, true, nil
	}
	switch before := from.Before(r.After); {
	case before && from.Ready():
		in.receive.Unread()
		return in.take(from)
	case before && from.local == mirrored: // it has not arrived yet
		in.stalled = true
		in.receive.Unread()
		return Record{}, false, nil
	}
	return r, true, nil
}

// take returns the next message of a channel.
func (in *Inlet) take(c *inlet) (r Record, ok bool, err error) {
	r, ok, err = c.Next()
	if err != nil {
		return r, false, fmt.Errorf("channel from rank %d: %w", c.rank, err)
	}
	r.Peer, r.Node = c.rank, c.node
	in.ring, in.channel, in.later = nil, c, laterPiece(&r)
	return r, ok, nil
}

// Done gives back the room of the last message of Next, and returns which process to wake.
func (in *Inlet) Done() (wake int) {
	c := in.channel
	if c == nil {
		if in.ring.Release() {
			return WakeKernel
		}
		return WakeNobody
	}
	blocked := c.Done()
	if c.local == mirrored { // its producer counts at the other end
		if !in.later {
			c.count++
			c.Count().Store(c.count)
		}
		blocked = false
	}
	if c.returned == c.position {
		in.turn = (in.turn + 1) % len(in.all) // each rank's messages get their turn
	}
	if blocked && in.board.Claim(c.local) {
		return c.local
	}
	return WakeNobody
}
