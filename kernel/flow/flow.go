// Package flow decides when the messages of one job may leave a node, whether arriving ones had
// credits, which credits return to which node, and whether everything that was sent has arrived.
//
// It is a state machine without locks, goroutines or I/O: the caller reports events, and carries
// out the Actions that they cause. Its persistent Counters are in memory that the caller provides
// and that outlives the node kernel; New continues from any state of them.
//
// # Credits
//
// Messages travel in virtual channels. The messages to one rank that were forwarded the same number
// of times are one Channel, and each node that sends into it has a window: bytes that may be on
// their way, or wait at the rank's node. The sender counts the bytes that it spends, the receiver
// the bytes that it takes, and reports them as a running total, so that a repeated report does no
// harm. A channel without forwards is reported when a quarter of its window was taken. The receiver
// counts arrivals too, and refuses a message that exceeds its sender's credits. A sender never
// knows more taken bytes than the receiver, so no honest sender is refused.
//
// # Forwarding
//
// A forwarded message keeps its credit in the channel in which it came until it is taken in the
// channel in which it goes on. That channel belongs to more hops, so each message waits only for
// messages with more hops than itself, and no cycle can form. The credits of one Stream, a channel
// and a sender, return in the order in which their messages were handled: a total then stands for
// certain messages. So a forwarded message delays the credits behind it.
//
// Messages that this node sends because of one that has arrived (Cause) are forwarded messages,
// too: the credit of the one that caused them does not return before they are taken. What waits for
// credits is bounded: see Room.
//
// # Quiescence
//
// Flush notes what the node has sent to each node. Each node is asked to acknowledge: a message is
// settled once it has come to a rank's node and was not forwarded from there, or was taken where it
// was forwarded to. The node is Quiesced when all messages from before the last Flush are settled.
package flow

import (
	"slices"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
)

// Window is how many bytes of messages may be on their way from one node to one rank, or wait at
// the rank's node, besides forwarded messages. Each channel of forwarded messages has a quarter.
const Window = 256 << 10

// Hops is the number of channels of a rank: for messages forwarded 0 to slot.MaxHops times.
const Hops = slot.MaxHops + 1

// Channel is the number of a virtual channel among the channels of all ranks of the job.
type Channel int

// ChannelOf returns the channel of messages to a rank that were forwarded so often.
func ChannelOf(rank id.Rank, hops uint8) Channel { return Channel(int(rank)*Hops + int(hops)) }

// Of returns the channel of a message.
func Of(m *frame.Message) Channel { return ChannelOf(m.Target, m.Hops) }

// Rank returns the target of the channel's messages.
func (c Channel) Rank() id.Rank { return id.Rank(c / Hops) }

// Hops returns how often the channel's messages were forwarded.
func (c Channel) Hops() uint8 { return uint8(c % Hops) }

// Window returns the credits of each sender, in bytes.
func (c Channel) Window() uint64 {
	if c.Hops() == 0 {
		return Window
	}
	return Window / 4
}

// Stream is the part of a channel that comes from one member of the job, a node.
type Stream struct {
	Channel Channel
	Member  int
}

// Origin describes a message that has arrived at this node.
type Origin struct {
	Stream
	Number uint64 // among all messages from that member
	Cost   uint64 // bytes
}

// Counters is the persistent state of a node, zeroes for a new job. The caller provides the memory,
// and may read it whenever it may call the Flow.
type Counters struct {
	Sent       []uint64   // by member: messages sent to it
	Received   []uint64   // by member: messages received from it and handled
	Spent      []uint64   // by Channel: bytes sent into it from here
	Taken      [][]uint64 // by channel of the local ranks, then by member: bytes taken
	Forwarding *uint64    // messages being forwarded, which only the Flow's own memory knows
}

// Config describes a job to the Flow of one of its nodes. Members are numbers of nodes from 0.
type Config struct {
	Self    int       // the member that this node is
	Members int       // number of nodes
	Place   []int     // by rank: its member
	Local   []id.Rank // ranks of this node, in the order of Counters.Taken
}

// Credit is a credit to be sent to a member.
type Credit struct {
	Member int
	frame.Credit
}

// Answer is an acknowledgement to be sent to a member: so many of its messages are settled.
type Answer struct {
	Member int
	Number uint64
}

// Actions collects what the caller must do after events. The zero value is ready.
type Actions struct {
	Credits []Credit
	Answers []Answer
	Placed  []id.Rank // sources of messages that have come to the rank that they were forwarded to, or whose
	// caused messages have
	Quiesced bool // Flow.Quiesced may have become true
	Room     bool // messages that had no credits may have some
}

// Flow is the state of the messages of one job at one node. It is not safe for concurrent use.
type Flow struct {
	config   Config
	counters Counters
	local    []int32 // by rank: its index among the local ranks; -1: it is elsewhere

	// As sender. Here and below, a slice for all ranks or members is nil until it is needed:
	// there are many of them, and most jobs send no message.
	channels     []credits // by Channel; see credits
	flushed      []uint64  // by member: messages sent to it before the last Flush
	acknowledged []uint64  // by member: messages from here that it has settled

	// As receiver, by channel of the local ranks, then by member.
	arrivals [][]arrivals // see arrived
	reported [][]uint64   // bytes of Taken that the member was sent

	asked []uint64 // by member: messages that it wants to know settled; 0: it knows

	// Forwarded messages.
	queues map[Channel]*queue   // without credits yet
	queued uint64               // bytes in them
	onward map[Channel][]onward // sent and not taken, in order
	held   map[Stream][]*held   // credits not returned, in order; the first is being forwarded
}

// credits are of a channel.
type credits struct {
	granted  uint64 // bytes from here that are known to be taken
	reserved uint64 // bytes reserved and not yet spent
}

// arrivals counts the bytes that have arrived in a stream. It is not persistent: messages that
// arrived and were not taken are lost with the node kernel, so a new one begins with the bytes
// taken.
type arrivals struct {
	came  uint64
	limit uint64 // came must not exceed it; a lower bound, raised when it is reached
}

// New returns the Flow of a node, with the counters of a new job or of an earlier node kernel.
func New(c Config, counters Counters) *Flow {
	return &Flow{
		config: c, counters: counters, local: places(c),
		arrivals: make([][]arrivals, len(c.Local)*Hops), reported: make([][]uint64, len(c.Local)*Hops),
		queues: make(map[Channel]*queue), onward: make(map[Channel][]onward), held: make(map[Stream][]*held),
	}
}

// places returns the index of each rank among the local ranks, or -1.
func places(c Config) []int32 {
	local := slices.Repeat([]int32{-1}, len(c.Place))
	for index, rank := range c.Local {
		local[rank] = int32(index)
	}
	return local
}

// credits returns the credits of a channel.
func (f *Flow) credits(c Channel) *credits {
	if f.channels == nil {
		f.channels = make([]credits, len(f.config.Place)*Hops)
		for _, rank := range f.config.Local {
			for hops := range uint8(Hops) {
				own := Stream{ChannelOf(rank, hops), f.config.Self}
				f.channels[own.Channel].granted = *f.taken(own)
			}
		}
	}
	return &f.channels[c]
}

// arrived returns the arrivals in a stream to a local rank. Before the first one of a channel, all
// bytes that came were taken.
func (f *Flow) arrived(s Stream) *arrivals {
	row := &f.arrivals[f.at(s.Channel)]
	if *row == nil {
		*row = make([]arrivals, f.config.Members)
		for member, taken := range f.counters.Taken[f.at(s.Channel)] {
			(*row)[member].came = taken
		}
	}
	return &(*row)[s.Member]
}

// element returns an element of a slice that is made when it is needed.
func element(list *[]uint64, size, index int) *uint64 {
	if *list == nil {
		*list = make([]uint64, size)
	}
	return &(*list)[index]
}

// reports returns the bytes of a stream to a local rank that its member knows to be taken.
func (f *Flow) reports(s Stream) *uint64 {
	return element(&f.reported[f.at(s.Channel)], f.config.Members, s.Member)
}

// at returns the index of a channel of a local rank.
func (f *Flow) at(c Channel) int { return int(f.local[c.Rank()])*Hops + int(c.Hops()) }

// taken returns the bytes of a stream to a local rank that were taken.
func (f *Flow) taken(s Stream) *uint64 { return &f.counters.Taken[f.at(s.Channel)][s.Member] }

// HasRoom reports whether there are credits for cost bytes in a channel.
func (f *Flow) HasRoom(c Channel, cost uint64) bool {
	in := f.credits(c)
	return f.counters.Spent[c]+in.reserved+cost <= in.granted+c.Window()
}

// Reserve reserves credits for cost bytes, and reports whether there were enough. Reservations are
// not persistent: a node kernel that is killed has not sent the message.
func (f *Flow) Reserve(c Channel, cost uint64) bool {
	if !f.HasRoom(c, cost) {
		return false
	}
	f.credits(c).reserved += cost
	return true
}

// Spend notes that messages with reserved credits are being sent.
func (f *Flow) Spend(c Channel, cost uint64) {
	f.credits(c).reserved -= cost
	f.counters.Spent[c] += cost
}

// Send counts n messages as sent to a member and returns the number of the first.
func (f *Flow) Send(member int, n uint64) (first uint64) {
	first = f.counters.Sent[member]
	f.counters.Sent[member] += n
	return first
}

// Credit handles a credit from a member. One that the member cannot give is ignored.
func (f *Flow) Credit(member int, c frame.Credit, a *Actions) {
	if int(c.Rank) >= len(f.config.Place) || f.config.Place[c.Rank] != member || c.Hops >= Hops {
		return
	}
	channel := ChannelOf(c.Rank, c.Hops)
	if c.Taken > f.counters.Spent[channel] {
		return
	}
	f.grant(channel, c.Taken, a)
}

// grant notes that bytes of a channel were taken, and completes the forwards that came with them.
func (f *Flow) grant(c Channel, total uint64, a *Actions) {
	in := f.credits(c)
	in.granted = max(in.granted, total)
	a.Room = true
	for len(f.onward[c]) > 0 && f.onward[c][0].position <= total {
		h := f.onward[c][0].held
		if f.onward[c] = f.onward[c][1:]; len(f.onward[c]) == 0 {
			delete(f.onward, c)
		}
		if h.waits--; h.waits == 0 {
			a.Placed = append(a.Placed, h.source)
		}
		f.release(h.Stream, a)
		*f.counters.Forwarding--
	}
}

// Expected returns the number of the next message from a member. A frame with another one shows
// that messages were lost.
func (f *Flow) Expected(member int) uint64 { return f.counters.Received[member] }

// Admit counts a message that has arrived for a local rank. It reports false if the sender had no
// credit for it.
func (f *Flow) Admit(o Origin) bool {
	in := f.arrived(o.Stream)
	if in.came+o.Cost > in.limit {
		in.limit = *f.taken(o.Stream) + o.Channel.Window()
	}
	if in.came+o.Cost > in.limit {
		return false
	}
	in.came += o.Cost
	return true
}

// Receive notes that the next n messages from a member were handled: given to a rank or an
// extension, or forwarded.
func (f *Flow) Receive(member int, n uint64) { f.counters.Received[member] += n }

// Take notes that an admitted message is finished at this node, so that its credit can return.
func (f *Flow) Take(o Origin, a *Actions) {
	if list := f.held[o.Stream]; len(list) > 0 {
		f.held[o.Stream] = append(list, &held{Origin: o})
		return
	}
	f.giveBack(o, a)
}

// giveBack returns the credit of a message.
func (f *Flow) giveBack(o Origin, a *Actions) {
	total := f.taken(o.Stream)
	*total += o.Cost
	if o.Member == f.config.Self {
		f.grant(o.Channel, *total, a)
		return
	}
	reported := f.reports(o.Stream)
	// A node that forwards waits for the credit of each message.
	if o.Channel.Hops() == 0 && *total-*reported < Window/4 {
		return
	}
	*reported = *total
	a.Credits = append(a.Credits, Credit{o.Member, creditOf(o.Channel, *total)})
}

func creditOf(c Channel, total uint64) frame.Credit {
	return frame.Credit{Rank: c.Rank(), Hops: c.Hops(), Taken: total}
}

// Ask handles a member's request for an acknowledgement. If not all of its messages are settled,
// another answer follows.
func (f *Flow) Ask(member int, a *Actions) {
	number := f.Settled(member)
	if received := f.counters.Received[member]; number < received {
		*element(&f.asked, f.config.Members, member) = received
	}
	a.Answers = append(a.Answers, Answer{member, number})
}

// Settled returns the number of the first message from a member that is not settled.
func (f *Flow) Settled(member int) uint64 {
	n := f.counters.Received[member]
	for _, rank := range f.config.Local {
		if list := f.held[Stream{ChannelOf(rank, 0), member}]; len(list) > 0 {
			n = min(n, list[0].Number)
		}
	}
	return n
}

// Flush demands that all messages sent so far be settled. It returns the members that must be asked
// for an acknowledgement, behind those messages.
func (f *Flow) Flush() (ask []int) {
	f.flushed = append(f.flushed[:0], f.counters.Sent...)
	for member := range f.flushed {
		if member != f.config.Self && f.late(member) {
			ask = append(ask, member)
		}
	}
	return ask
}

// Acknowledge handles a member's acknowledgement. One of messages that were not sent is ignored.
func (f *Flow) Acknowledge(member int, number uint64) {
	if number <= f.counters.Sent[member] {
		known := element(&f.acknowledged, f.config.Members, member)
		*known = max(*known, number)
	}
}

// late reports whether messages to a member from before the last Flush may not be settled.
func (f *Flow) late(member int) bool {
	if member == f.config.Self {
		return f.flushed[member] > f.Settled(member)
	}
	return f.flushed[member] > *element(&f.acknowledged, f.config.Members, member)
}

// Quiesced reports whether all messages from before the last Flush are settled.
func (f *Flow) Quiesced() bool {
	for member := range f.flushed {
		if f.late(member) {
			return false
		}
	}
	return true
}

// Resume returns all credits of a member, to be sent after frames may have been lost. The member
// must be asked for an acknowledgement too.
func (f *Flow) Resume(member int) (credits []frame.Credit) {
	for _, rank := range f.config.Local {
		for hops := range uint8(Hops) {
			s := Stream{ChannelOf(rank, hops), member}
			total := *f.taken(s)
			*f.reports(s) = total
			credits = append(credits, creditOf(s.Channel, total))
		}
	}
	return credits
}

// Status describes a channel as one node sees it. The fields about arrivals hold for a stream to a
// local rank and are 0 for others.
type Status struct {
	Spent, Reserved, Granted uint64 // bytes sent from here
	Came, Taken, Reported    uint64 // bytes that came here
}

// Status returns the state of a stream. The fields about bytes sent describe this node as the
// sender, and not the member.
func (f *Flow) Status(s Stream) Status {
	out := f.credits(s.Channel)
	status := Status{Spent: f.counters.Spent[s.Channel], Reserved: out.reserved, Granted: out.granted}
	if f.local[s.Channel.Rank()] >= 0 {
		status.Came, status.Taken, status.Reported = f.arrived(s).came, *f.taken(s), *f.reports(s)
	}
	return status
}
