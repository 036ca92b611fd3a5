package flow

import (
	"maps"
	"slices"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
)

// held is a message whose credit has not returned: it is being forwarded, or one before it in its
// stream is.
type held struct {
	Origin
	source id.Rank // of the message, if it is being forwarded
	done   bool
}

// Forward is a message on its way to another rank than the one that it came to.
type Forward struct {
	Message frame.Message // with its new target, its hops counted
	held    *held
}

// From returns the rank that forwards the message.
func (f *Forward) From() id.Rank { return f.held.Channel.Rank() }

// onward is a forwarded message that was sent. It is taken once that many bytes of its channel are.
type onward struct {
	position uint64
	held     *held
}

// Forward notes that an admitted message goes on to another rank: m, with the new target, and one
// hop more. The payload is the Flow's until the message is sent (Next).
func (f *Flow) Forward(o Origin, m frame.Message) {
	h := &held{Origin: o, source: m.Source}
	*f.counters.Forwarding++
	f.held[o.Stream] = append(f.held[o.Stream], h)
	c := Of(&m)
	f.queues[c] = append(f.queues[c], Forward{m, h})
}

// Next reserves credits for queued forwards and returns those that have them, in order within each
// channel. For each member it stops behind the message with which limit bytes are reached.
func (f *Flow) Next(limit uint64) (next []Forward) {
	bytes := make([]uint64, f.config.Members)
	for _, c := range slices.Sorted(maps.Keys(f.queues)) {
		queue, member := f.queues[c], f.config.Place[c.Rank()]
		for len(queue) > 0 && bytes[member] < limit && f.Reserve(c, queue[0].Message.Cost()) {
			bytes[member] += queue[0].Message.Cost()
			next = append(next, queue[0])
			queue = queue[1:]
		}
		if f.queues[c] = queue; len(queue) == 0 {
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
	for len(list) > 0 && list[0].done {
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
	} else if asked := f.asked[s.Member]; asked > 0 && f.Settled(s.Member) >= asked {
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
