package flow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
)

// newCounters returns the counters of a new job.
func newCounters(members, ranks, local int) Counters {
	c := Counters{
		Sent: make([]uint64, members), Received: make([]uint64, members), Spent: make([]uint64, Hops*ranks), Forwarding: new(uint64),
	}
	for range Hops * local {
		c.Taken = append(c.Taken, make([]uint64, members))
	}
	return c
}

// letter is a message of the model, at one of the nodes that it comes to.
type letter struct {
	frame.Message
	node     int     // that sends it
	number   uint64  // among all from there to the next node
	position uint64  // of its end among the bytes of its channel; 0 until it is sent
	before   *letter // the same message on its way to this node, or the one that caused it; nil at its source
	open     int     // itself, until it has come to where it stays, and those that it causes, until they are settled
}

// settled reports whether the letter, and all that it causes, have come to where they stay.
func (l *letter) settled() bool { return l.open == 0 }

// entry is a credit of a stream that may return when letters are taken.
type entry struct {
	cost uint64
	next []*letter
}

// settle notes that a letter has come to where it stays.
func (l *letter) settle() {
	for ; l != nil; l = l.before {
		if l.open--; l.open > 0 {
			return
		}
	}
}

// parcel is what one node sends to another: messages, or a question.
type parcel struct {
	number  uint64
	letters []*letter
}

// control is a frame that overtakes messages.
type control struct {
	credits []frame.Credit
	answer  *Answer
}

// pending is a message that waits for room in its rank's ring.
type pending struct {
	origin Origin
	letter *letter
}

// modelNode is a node of the model, beside the Flow that is tested.
type modelNode struct {
	counters Counters
	flow     *Flow
	overflow []pending
	order    map[Stream][]entry    // of all messages that were taken or forwarded, in order
	queued   map[Channel][]*letter // the same as in the Flow
	flushed  []uint64              // messages sent to each member before the last flush
	unplaced map[id.Rank]int       // forwarded messages that have not come to their targets, by source
}

// model is a job on nodes that exchange frames over queues. It knows the whole truth.
type model struct {
	t       *testing.T
	random  *rand.Rand
	place   []int
	nodes   []*modelNode
	ways    map[[2]int][]parcel
	control map[[2]int][]control
	sent    map[[2]int][]*letter // from one node to another, in order
	spent   map[Stream]uint64    // bytes of those
}

func newModel(t *testing.T, seed uint64) *model {
	r := rand.New(rand.NewPCG(seed, 2))
	m := &model{
		t: t, random: r, ways: make(map[[2]int][]parcel), control: make(map[[2]int][]control), sent: make(map[[2]int][]*letter),
		spent: make(map[Stream]uint64),
	}
	nodes := 1 + r.IntN(4)
	for node := range nodes {
		for range 1 + r.IntN(2) {
			m.place = append(m.place, node)
		}
	}
	for node := range nodes {
		n := &modelNode{order: make(map[Stream][]entry), queued: make(map[Channel][]*letter), flushed: make([]uint64, nodes)}
		n.counters = newCounters(nodes, len(m.place), len(m.local(node)))
		m.nodes = append(m.nodes, n)
	}
	for node := range nodes {
		m.boot(node)
	}
	return m
}

func (m *model) local(node int) (ranks []id.Rank) {
	for rank, at := range m.place {
		if at == node {
			ranks = append(ranks, id.Rank(rank))
		}
	}
	return ranks
}

// boot makes the Flow of a node from its counters.
func (m *model) boot(node int) {
	n := m.nodes[node]
	n.flow = New(Config{Self: node, Members: len(m.nodes), Place: m.place, Local: m.local(node)}, n.counters)
	clear(n.flushed)
	n.unplaced = make(map[id.Rank]int)
}

// act carries out actions of a node.
func (m *model) act(node int, a Actions) {
	n := m.nodes[node]
	for _, source := range a.Placed {
		if n.unplaced[source]--; n.unplaced[source] < 0 {
			m.t.Fatalf("node %d: more messages of rank %d have come than were forwarded", node, source)
		}
	}
	for _, c := range a.Credits {
		way := [2]int{node, c.Member}
		m.control[way] = append(m.control[way], control{credits: []frame.Credit{c.Credit}})
	}
	for _, answer := range a.Answers {
		way := [2]int{node, answer.Member}
		m.control[way] = append(m.control[way], control{answer: &answer})
	}
}

// post sends messages of a node's ranks.
func (m *model) post(node int) {
	n := m.nodes[node]
	ranks := m.local(node)
	batch := make([][]*letter, len(m.nodes))
	spent := make(map[Channel]uint64)
	for range 1 + m.random.IntN(8) {
		l := &letter{node: node, open: 1, Message: frame.Message{
			Source: ranks[m.random.IntN(len(ranks))], Target: id.Rank(m.random.IntN(len(m.place))),
			Payload: make([]byte, m.random.IntN(20000)), // long ones, so that windows fill
		}}
		c := Of(&l.Message)
		if !n.flow.Reserve(c, l.Cost()) {
			continue
		}
		spent[c] += l.Cost()
		to := m.place[l.Target]
		batch[to] = append(batch[to], l)
	}
	if m.random.IntN(8) == 0 { // killed before they are sent: their room is free again
		if m.mayRestart(node) {
			m.restart(node)
			return
		}
	}
	for c, cost := range spent {
		n.flow.Spend(c, cost)
	}
	m.ship(node, batch)
}

// ship sends letters.
func (m *model) ship(node int, batch [][]*letter) {
	for to, letters := range batch {
		if len(letters) == 0 {
			continue
		}
		way := [2]int{node, to}
		first := m.nodes[node].flow.Send(to, uint64(len(letters)))
		if int(first) != len(m.sent[way]) {
			m.t.Fatalf("node %d sends message %d to node %d, not %d", node, first, to, len(m.sent[way]))
		}
		for i, l := range letters {
			l.number = first + uint64(i)
			at := Stream{Of(&l.Message), node}
			m.spent[at] += l.Cost()
			l.position = m.spent[at]
		}
		m.sent[way] = append(m.sent[way], letters...)
		m.ways[way] = append(m.ways[way], parcel{first, letters})
		if to == node {
			m.arrive(way)
		}
	}
}

// sendOn sends forwards that have credits.
func (m *model) sendOn(node int) {
	n := m.nodes[node]
	batch := make([][]*letter, len(m.nodes))
	for _, f := range n.flow.Next(30000) {
		c := Of(&f.Message)
		l := n.queued[c][0]
		n.queued[c] = n.queued[c][1:]
		if l.Cost() != f.Message.Cost() || l.before.Target != f.From() {
			m.t.Fatalf("channel %d: a forward out of order", c)
		}
		n.flow.SendOn(f)
		batch[m.place[l.Target]] = append(batch[m.place[l.Target]], l)
	}
	m.ship(node, batch)
}

// arrive handles the first parcel on a way.
func (m *model) arrive(way [2]int) {
	p := m.ways[way][0]
	m.ways[way] = m.ways[way][1:]
	from, node := way[0], way[1]
	n := m.nodes[node]
	if n.flow.Expected(from) != p.number {
		m.t.Fatalf("node %d expects message %d of node %d, not %d", node, n.flow.Expected(from), from, p.number)
	}
	var a Actions
	for i, l := range p.letters {
		o := Origin{Stream{Of(&l.Message), from}, p.number + uint64(i), l.Cost()}
		if !n.flow.Admit(o) {
			m.t.Fatalf("node %d refuses message %d of node %d", node, o.Number, from)
		}
		m.handle(node, o, l, &a)
	}
	n.flow.Receive(from, uint64(len(p.letters)))
	if len(p.letters) == 0 {
		n.flow.Ask(from, &a)
	}
	m.act(node, a)
}

// handle takes, delays or forwards a message.
func (m *model) handle(node int, o Origin, l *letter, a *Actions) {
	n := m.nodes[node]
	switch choice := m.random.IntN(10); {
	case choice < 3 && l.Hops < slot.MaxHops && m.random.IntN(2) == 0:
		m.cause(node, o, l)
		m.handle(node, o, l, a)
	case choice < 3 && l.Hops < slot.MaxHops && len(m.place) > 1:
		on := &letter{Message: l.Message, node: node, before: l, open: 1}
		on.Hops++
		for on.Target == l.Target {
			on.Target = id.Rank(m.random.IntN(len(m.place)))
		}
		n.order[o.Stream] = append(n.order[o.Stream], entry{l.Cost(), []*letter{on}})
		n.queued[Of(&on.Message)] = append(n.queued[Of(&on.Message)], on)
		n.flow.Forward(o, on.Message)
		n.unplaced[on.Source]++
	case choice < 6:
		l.settle()
		n.overflow = append(n.overflow, pending{o, l})
	default:
		l.settle()
		m.take(node, o, l, a)
	}
}

// cause sends messages because of a letter, where there is room.
func (m *model) cause(node int, o Origin, l *letter) {
	n := m.nodes[node]
	var sent []*letter
	var messages []frame.Message
	for range 1 + m.random.IntN(3) {
		on := &letter{node: node, before: l, open: 1, Message: frame.Message{
			Source: l.Target, Target: id.Rank(m.random.IntN(len(m.place))), Hops: l.Hops + 1, Payload: make([]byte, m.random.IntN(20000)),
		}}
		c := Of(&on.Message)
		var bytes uint64
		for _, waits := range n.queued[c] {
			bytes += waits.Cost()
		}
		if room := bytes < c.Window(); n.flow.Room(c) != room {
			m.t.Fatalf("node %d, channel %d: room beside %d bytes: %v", node, c, bytes, !room)
		} else if !room {
			continue
		}
		l.open++
		sent, messages = append(sent, on), append(messages, on.Message)
	}
	if len(sent) == 0 {
		return
	}
	for _, on := range sent {
		n.queued[Of(&on.Message)] = append(n.queued[Of(&on.Message)], on)
	}
	n.order[o.Stream] = append(n.order[o.Stream], entry{0, sent})
	n.flow.Cause(o, l.Source, messages)
	n.unplaced[l.Source]++
}

// take finishes a message.
func (m *model) take(node int, o Origin, l *letter, a *Actions) {
	n := m.nodes[node]
	n.order[o.Stream] = append(n.order[o.Stream], entry{cost: l.Cost()})
	n.flow.Take(o, a)
}

// drainOne takes a message that waits.
func (m *model) drainOne(node int) {
	n := m.nodes[node]
	if len(n.overflow) == 0 {
		return
	}
	i := m.random.IntN(len(n.overflow))
	p := n.overflow[i]
	n.overflow = slices.Delete(n.overflow, i, i+1)
	var a Actions
	m.take(node, p.origin, p.letter, &a)
	m.act(node, a)
}

// news handles the first control frame on a way.
func (m *model) news(way [2]int) {
	c := m.control[way][0]
	m.control[way] = m.control[way][1:]
	n, from := m.nodes[way[1]], way[0]
	var a Actions
	for _, credit := range c.credits {
		n.flow.Credit(from, credit, &a)
	}
	if c.answer != nil {
		m.claims([2]int{way[1], from}, c.answer.Number)
		n.flow.Acknowledge(from, c.answer.Number)
	}
	m.act(way[1], a)
}

// claims checks that the first n messages on a way are settled.
func (m *model) claims(way [2]int, n uint64) {
	for _, l := range m.sent[way][:n] {
		if l.Hops == 0 && !l.settled() {
			m.t.Fatalf("%d messages from node %d to node %d are claimed to be settled, number %d is not", n, way[0], way[1], l.number)
		}
	}
}

// lose drops all control frames between two nodes, and both send everything again.
func (m *model) lose(a, b int) {
	for _, way := range [][2]int{{a, b}, {b, a}} {
		m.control[way] = nil
		m.resume(way)
	}
}

// resume does what a node does when frames to another may have been lost.
func (m *model) resume(way [2]int) {
	flow := m.nodes[way[0]].flow
	m.ways[way] = append(m.ways[way], parcel{number: flow.counters.Sent[way[1]]})
	m.control[way] = append(m.control[way], control{credits: flow.Resume(way[1])})
}

// mayRestart reports whether a node has nothing that only its memory knows.
func (m *model) mayRestart(node int) bool {
	n := m.nodes[node]
	return len(n.overflow) == 0 && *n.counters.Forwarding == 0
}

// restart replaces a node's Flow by one that is made from its counters.
func (m *model) restart(node int) {
	m.boot(node)
	for other := range m.nodes {
		if other != node {
			m.lose(node, other)
		}
	}
}

// flush makes a node demand that all it has sent be settled.
func (m *model) flush(node int) {
	n := m.nodes[node]
	copy(n.flushed, n.counters.Sent)
	for _, to := range n.flow.Flush() {
		m.ways[[2]int{node, to}] = append(m.ways[[2]int{node, to}], parcel{number: n.counters.Sent[to]})
	}
}

// step does something at random.
func (m *model) step() {
	node, other := m.random.IntN(len(m.nodes)), m.random.IntN(len(m.nodes))
	way := [2]int{node, other}
	switch choice := m.random.IntN(20); {
	case choice < 4:
		m.post(node)
	case choice < 8 && len(m.ways[way]) > 0:
		m.arrive(way)
	case choice < 11 && len(m.control[way]) > 0:
		m.news(way)
	case choice < 14:
		m.drainOne(node)
	case choice < 17:
		m.sendOn(node)
	case choice < 18:
		m.flush(node)
	case choice == 18 && node != other:
		m.lose(node, other)
	case choice == 19 && m.mayRestart(node):
		m.restart(node)
	}
	m.check()
}

// returns reports whether a credit may return.
func (m *model) returns(e entry) bool {
	for _, l := range e.next {
		if l.position == 0 || m.taken(Stream{Of(&l.Message), l.node}) < l.position {
			return false
		}
	}
	return true
}

// taken returns the bytes of a stream that its target has taken.
func (m *model) taken(s Stream) uint64 { return *m.nodes[m.place[s.Channel.Rank()]].flow.taken(s) }

// check compares the Flows with the truth.
func (m *model) check() {
	for node, n := range m.nodes {
		for s, order := range n.order {
			var most uint64
			for _, e := range order {
				if !m.returns(e) {
					break
				}
				most += e.cost
			}
			if got := m.taken(s); got > most {
				m.t.Fatalf("node %d has returned %d bytes of %v, %d may return", node, got, s, most)
			}
		}
		if n.flow.Quiesced() {
			for to, count := range n.flushed {
				m.claims([2]int{node, to}, count)
			}
		}
	}
	for s, spent := range m.spent {
		if flight := spent - m.taken(s); flight > s.Channel.Window() {
			m.t.Fatalf("node %d has %d bytes in flight in channel %d", s.Member, flight, s.Channel)
		}
		if counted := m.nodes[s.Member].counters.Spent[s.Channel]; counted != spent {
			m.t.Fatalf("node %d counts %d bytes in channel %d, not %d", s.Member, counted, s.Channel, spent)
		}
	}
}

// settle handles everything that is on its way until nothing is left.
func (m *model) settle() {
	for range 100000 {
		busy := false
		for node, n := range m.nodes {
			for len(n.overflow) > 0 {
				m.drainOne(node)
				busy = true
			}
			busy = busy || len(n.flow.queues) > 0
			m.sendOn(node)
		}
		for from := range m.nodes {
			for to := range m.nodes {
				way := [2]int{from, to}
				for len(m.ways[way]) > 0 {
					m.arrive(way)
					busy = true
				}
				for len(m.control[way]) > 0 {
					m.news(way)
					busy = true
				}
			}
		}
		if !busy {
			return
		}
	}
	m.t.Fatal("messages wait in a circle")
}

// quiesced checks that all nodes know that all is settled.
func (m *model) quiesced() {
	for node, n := range m.nodes {
		if !n.flow.Quiesced() {
			m.t.Errorf("node %d does not quiesce", node)
		}
	}
}

// whole checks that no credit was lost: each node can use all windows again.
func (m *model) whole() {
	for node, n := range m.nodes {
		m.flush(node)
		for other := range m.nodes {
			if other != node {
				m.resume([2]int{node, other})
			}
		}
		for source, left := range n.unplaced {
			if left != 0 {
				m.t.Errorf("%d messages of rank %d that were forwarded are not placed", left, source)
			}
		}
		if n.flow.Forwards() {
			m.t.Fatalf("node %d still forwards", node)
		}
	}
	m.settle()
	m.quiesced()
	for node, n := range m.nodes {
		for c := range Channel(Hops * len(m.place)) {
			if !n.flow.HasRoom(c, c.Window()) || n.flow.HasRoom(c, c.Window()+1) {
				m.t.Errorf("node %d, channel %d: %+v", node, c, n.flow.Status(Stream{c, node}))
			}
		}
	}
}

// In any order of messages, credits, lost frames and restarts, no node has more in flight than its
// windows, credits return in order and none is lost, and no message is claimed to be settled that
// is not.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	for run := range uint64(150) {
		t.Run(fmt.Sprint("run ", run), func(t *testing.T) {
			m := newModel(t, seed+run)
			for range 400 {
				m.step()
			}
			for node := range m.nodes {
				m.flush(node)
			}
			m.settle()
			m.check()
			m.quiesced()
			m.whole()
		})
	}
}

// A sender gets at most a window into a channel, whatever was taken before.
func TestAdmit(t *testing.T) {
	for _, hops := range []uint8{0, slot.MaxHops} {
		counters := newCounters(2, 2, 1)
		config := Config{Self: 0, Members: 2, Place: []int{0, 1}, Local: []id.Rank{0}}
		o := Origin{Stream: Stream{ChannelOf(0, hops), 1}, Cost: 1000}
		for boot := range 3 {
			f := New(config, counters)
			n := uint64(0)
			for f.Admit(o) {
				n++
			}
			if n != o.Channel.Window()/o.Cost {
				t.Errorf("hops %d, boot %d: %d messages", hops, boot, n)
			}
			var a Actions
			f.Take(o, &a)
			if !f.Admit(o) || f.Admit(o) {
				t.Errorf("hops %d, boot %d: the message that was taken made room for %+v", hops, boot, f.Status(o.Stream))
			}
			for range n { // none is left for the next boot
				f.Take(o, &a)
			}
		}
	}
}

// Credits and acknowledgements that a member cannot give change nothing.
func TestClaims(t *testing.T) {
	f := New(Config{Self: 0, Members: 3, Place: []int{0, 1, 2}, Local: []id.Rank{0}}, newCounters(3, 3, 1))
	f.Reserve(ChannelOf(1, 0), 100)
	f.Spend(ChannelOf(1, 0), 100)
	f.Send(1, 1)
	f.Flush()
	var a Actions
	for _, c := range []frame.Credit{
		{Rank: 1, Taken: 101}, {Rank: 2, Taken: 0}, {Rank: 0, Taken: 0}, {Rank: 3, Taken: 0}, {Rank: 1<<32 - 1}, {Rank: 1, Hops: 1, Taken: 1},
		{Rank: 0, Hops: Hops, Taken: 0},
	} {
		f.Credit(1, c, &a)
	}
	f.Acknowledge(1, 2)
	f.Acknowledge(2, 1)
	if a.Room || len(a.Credits) > 0 || f.Status(Stream{ChannelOf(1, 0), 0}).Granted != 0 || f.Quiesced() {
		t.Errorf("%+v, %+v", a, f.Status(Stream{ChannelOf(1, 0), 0}))
	}
	f.Credit(1, frame.Credit{Rank: 1, Taken: 100}, &a)
	f.Acknowledge(1, 1)
	if !a.Room || f.Status(Stream{ChannelOf(1, 0), 0}).Granted != 100 || !f.Quiesced() {
		t.Errorf("%+v, %+v", a, f.Status(Stream{ChannelOf(1, 0), 0}))
	}
}
