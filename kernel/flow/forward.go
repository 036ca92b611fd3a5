package flow

import (
	"maps"
	"slices"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
)

// MaxQueued is how many bytes of messages may wait for credits at this node when an extension sends
// another one.
const MaxQueued = 4 << 20

// held is a credit that has not returned: its message is being forwarded, or one before it in its
// stream is. A message that causes others has one of no bytes, besides its own behind that.
type held struct {
	Origin
	waits  int     // messages that are not taken where they were sent to
	source id.Rank // of the message that came
}

// queue holds messages of a channel that have no credits yet, in order.
type queue struct {
	list  []Forward
	bytes uint64
}

// Forward is a message on its way to another rank than the one that it came to.
type Forward struct {
	Message frame.Message // with its new target, its hops counted
	held    *held
}

// From returns the rank that forwards the message. One that an extension sends is forwarded by the
// rank that the message came to that caused it.
func (f *Forward) From() id.Rank { return f.held.Channel.Rank() }

// onward is a forwarded message that was sent. It is taken once that many bytes of its channel are.
type onward struct {
	position uint64
	held     *held
}

// Forward notes that an admitted message goes on to another rank: m, with the new target, and one
// hop more. The payload is the Flow's until the message is sent (Next).
func (f *Flow) Forward(o Origin, m frame.Message) {
	f.hold(&held{Origin: o, source: m.Source}, m)
}

// Cause notes that this node sends messages because of an admitted one of source, which must be
// taken or forwarded after that. Each has one hop more than the admitted one. The payloads are the
// Flow's until the messages are sent (Next).
func (f *Flow) Cause(o Origin, source id.Rank, messages []frame.Message) {
	o.Cost = 0
	f.hold(&held{Origin: o, source: source}, messages...)
}

// hold queues messages and holds credits until they are taken.
func (f *Flow) hold(h *held, messages ...frame.Message) {
	h.waits = len(messages)
	f.held[h.Stream] = append(f.held[h.Stream], h)
	*f.counters.Forwarding += uint64(len(messages))
	for _, m := range messages {
		c := Of(&m)
		q := f.queues[c]
		if q == nil {
			q = new(queue)
			f.queues[c] = q
		}
		q.list = append(q.list, Forward{m, h})
		q.bytes += m.Cost()
		f.queued += m.Cost()
	}
}

// Room reports whether an extension may send into a channel: less than the channel's window waits
// there for credits, and less than MaxQueued in all channels.
func (f *Flow) Room(c Channel) bool {
	q := f.queues[c]
	return f.queued < MaxQueued && (q == nil || q.bytes < c.Window())
}

// Next reserves credits for queued forwards and returns those that have them, in order within each
// channel. For each member it stops behind the message with which limit bytes are reached.
func (f *Flow) Next(limit uint64) (next []Forward) {
	bytes := make([]uint64, f.config.Members)
	for _, c := range slices.Sorted(maps.Keys(f.queues)) {
		q, member := f.queues[c], f.config.Place[c.Rank()]
		for len(q.list) > 0 && bytes[member] < limit && f.Reserve(c, q.list[0].Message.Cost()) {
			cost := q.list[0].Message.Cost()
			bytes[member] += cost
			q.bytes -= cost
			f.queued -= cost
			next = append(next, q.list[0])
			q.list = q.list[1:]
		}
		if len(q.list) == 0 {
			delete(f.queues, c)
		}
	}
	return next
}

// SendOn notes that a message from Next is being sent. The order within a channel must be the order
// of Next.
func (f *Flow) SendOn(fw Forward) {
	c := Of(&fw.Message)
	f.Spend(c, fw.Message.Cost())
	f.onward[c] = append(f.onward[c], onward{f.counters.Spent[c], fw.held})
}

// release returns the credits of a stream up to the first message that is still being forwarded.
func (f *Flow) release(s Stream, a *Actions) {
	list := f.held[s]
	for len(list) > 0 && list[0].waits == 0 {
		f.giveBack(list[0].Origin, a)
		list = list[1:]
	}
	if f.held[s] = list; len(list) == 0 {
		delete(f.held, s)
	}
	if s.Channel.Hops() > 0 {
		return
	}
	if s.Member == f.config.Self {
		a.Quiesced = true
	} else if asked := *element(&f.asked, f.config.Members, s.Member); asked > 0 && f.Settled(s.Member) >= asked {
		f.asked[s.Member] = 0
		a.Answers = append(a.Answers, Answer{s.Member, asked})
	}
}

// Held returns the bytes of messages to a local rank whose credits wait for a forward.
func (f *Flow) Held(rank id.Rank) (bytes uint64) {
	for s, list := range f.held {
		for _, h := range list {
			if s.Channel.Rank() == rank {
				bytes += h.Cost
			}
		}
	}
	return bytes
}

// Forwards reports whether any message is being forwarded, or any credit waits for one.
func (f *Flow) Forwards() bool {
	return *f.counters.Forwarding != 0 || len(f.held) > 0 || len(f.onward) > 0 || len(f.queues) > 0
}
