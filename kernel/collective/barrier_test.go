package collective

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/id"
)

// report is what one node sends to another.
type report struct {
	arrived, released, ended bool
	rank                     id.Rank
	number                   uint64
}

// message is one that a rank has sent.
type message struct {
	before  uint64 // the barrier that its sender entered next
	handled bool
}

// modelRank is a rank, which outlives node kernels.
type modelRank struct {
	node              int
	entered, released uint64
	ended             bool
}

// modelNode is a node of the model.
type modelNode struct {
	counters Counters
	barrier  *Barrier
	sent     []*message
	flushed  int // messages that were sent before the last flush
	missing  bool
}

// model is the ranks of a job and the network between its nodes.
type model struct {
	t      *testing.T
	random *rand.Rand
	rough  bool // node kernels are killed between two instructions
	ranks  []*modelRank
	nodes  []*modelNode
	ways   map[[2]int][]report
	last   uint64  // barriers that ranks enter
	quits  id.Rank // ends before the last barrier; -1 as unsigned: none
	after  uint64  // the barrier that it enters last
}

func newModel(t *testing.T, seed uint64) *model {
	r := rand.New(rand.NewPCG(seed, 3))
	m := &model{t: t, random: r, rough: true, ways: make(map[[2]int][]report), last: 1 + r.Uint64N(5), quits: 1<<32 - 1}
	for node := range 1 + r.IntN(9) {
		for range 1 + r.IntN(3) {
			m.ranks = append(m.ranks, &modelRank{node: node})
		}
		m.nodes = append(m.nodes, &modelNode{counters: Counters{Arrived: make([]uint64, 2), Reported: new(uint64), Released: new(uint64)}})
	}
	if r.IntN(3) == 0 {
		m.quits, m.after = id.Rank(r.IntN(len(m.ranks))), r.Uint64N(m.last)
	}
	for node := range m.nodes {
		m.boot(node)
	}
	return m
}

// local returns the ranks of a node.
func (m *model) local(node int) (ranks []id.Rank) {
	for rank, r := range m.ranks {
		if r.node == node {
			ranks = append(ranks, id.Rank(rank))
		}
	}
	return ranks
}

// boot makes the Barrier of a node from its counters, as a new node kernel does.
func (m *model) boot(node int) {
	n := m.nodes[node]
	n.barrier = New(Config{Self: node, Members: len(m.nodes), Local: m.local(node)}, n.counters)
	n.flushed = 0
	m.release(node, n.barrier.Released())
	for _, rank := range m.local(node) {
		if m.ranks[rank].ended {
			n.barrier.End(rank, m.ranks[rank].entered)
		}
	}
}

// release lets a node's ranks out of barriers, which must be complete.
func (m *model) release(node int, number uint64) {
	for _, rank := range m.local(node) {
		m.ranks[rank].released = number
	}
	for rank, r := range m.ranks {
		if r.entered < number {
			m.t.Fatalf("node %d leaves barrier %d, rank %d has entered %d", node, number, rank, r.entered)
		}
	}
	for sender, n := range m.nodes {
		for _, sent := range n.sent {
			if sent.before <= number && !sent.handled {
				m.t.Fatalf("node %d leaves barrier %d before a message of node %d is handled", node, number, sender)
			}
		}
	}
}

// carry carries out a step of a node.
func (m *model) carry(node int, s Step) {
	b := m.nodes[node].barrier
	if s.Arrived > 0 {
		m.send(node, b.Parent(), report{arrived: true, number: s.Arrived})
	}
	if s.Release > 0 {
		m.release(node, s.Release)
		for _, child := range b.Children() {
			m.send(node, child, report{released: true, number: s.Release})
		}
	}
}

func (m *model) send(from, to int, r report) {
	way := [2]int{from, to}
	m.ways[way] = append(m.ways[way], r)
}

// advance does what a node does after each event.
func (m *model) advance(node int) {
	n := m.nodes[node]
	if _, _, found := n.barrier.Missing(); found {
		n.missing = true
	}
	quiesced := !slices.ContainsFunc(n.sent[:n.flushed], func(sent *message) bool { return !sent.handled })
	if !n.barrier.Ready() || !quiesced {
		return
	}
	released := *n.counters.Released
	s := n.barrier.Advance()
	if m.rough && m.random.IntN(8) == 0 { // killed behind the first word that it wrote
		*n.counters.Released = released
		m.restart(node)
		return
	}
	m.carry(node, s)
}

// look makes a node notice what a rank has entered.
func (m *model) look(rank id.Rank) {
	r := m.ranks[rank]
	n := m.nodes[r.node]
	n.barrier.Enter(rank, r.entered)
	m.gather(r.node)
}

func (m *model) gather(node int) {
	n := m.nodes[node]
	flush, err := n.barrier.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	if flush {
		n.flushed = len(n.sent)
	}
	m.advance(node)
}

// end ends a rank.
func (m *model) end(rank id.Rank) {
	r := m.ranks[rank]
	r.ended = true
	m.look(rank)
	m.nodes[r.node].barrier.End(rank, r.entered)
	m.gather(r.node)
	for other := range m.nodes {
		if other != r.node {
			m.send(r.node, other, report{ended: true, rank: rank, number: r.entered})
		}
	}
}

// arrive handles a report. Now and then it will come again, later.
func (m *model) arrive(way [2]int) {
	r := m.ways[way][0]
	m.ways[way] = m.ways[way][1:]
	if m.random.IntN(4) == 0 {
		m.ways[way] = append(m.ways[way], r)
	}
	b := m.nodes[way[1]].barrier
	switch {
	case r.arrived:
		b.Arrive(way[0], r.number)
	case r.released:
		m.carry(way[1], b.Release(way[0], r.number))
	case r.ended:
		b.End(r.rank, r.number)
	}
	m.advance(way[1])
}

// lose drops all reports on the way between two nodes. Both then send everything again.
func (m *model) lose(a, b int) {
	for _, way := range [][2]int{{a, b}, {b, a}} {
		m.ways[way] = nil
		n := m.nodes[way[0]].barrier
		if way[1] == n.Parent() {
			m.send(way[0], way[1], report{arrived: true, number: n.Reported()})
		}
		if slices.Contains(n.Children(), way[1]) {
			m.send(way[0], way[1], report{released: true, number: n.Released()})
		}
		for rank, entered := range n.Ended() {
			if m.ranks[rank].node == way[0] {
				m.send(way[0], way[1], report{ended: true, rank: rank, number: entered})
			}
		}
	}
}

// act makes a rank send a message, enter a barrier or end.
func (m *model) act(rank id.Rank) {
	r := m.ranks[rank]
	n := m.nodes[r.node]
	switch {
	case r.ended || r.entered > r.released:
	case rank == m.quits && r.released == m.after:
		m.end(rank)
	case m.random.IntN(3) == 0:
		n.sent = append(n.sent, &message{before: r.entered + 1})
	case r.entered < m.last:
		r.entered++
	}
}

// step does something at random.
func (m *model) step() {
	node, other := m.random.IntN(len(m.nodes)), m.random.IntN(len(m.nodes))
	rank, way := id.Rank(m.random.IntN(len(m.ranks))), [2]int{node, other}
	switch choice := m.random.IntN(21); {
	case choice < 6:
		m.act(rank)
	case choice < 10:
		m.look(rank)
	case choice < 14 && len(m.ways[way]) > 0:
		m.arrive(way)
	case choice < 19 && len(m.nodes[node].sent) > 0:
		m.nodes[node].sent[m.random.IntN(len(m.nodes[node].sent))].handled = true
		m.advance(node)
	case choice == 19 && node != other:
		m.lose(node, other)
	case choice == 20:
		m.restart(node)
	}
}

// restart replaces the node kernel of a node.
func (m *model) restart(node int) {
	m.boot(node)
	for other := range m.nodes {
		if other != node {
			m.lose(node, other)
		}
	}
}

// finish lets everything happen that can, in turn.
func (m *model) finish() {
	for range 1000 * m.last {
		for rank := range m.ranks {
			m.act(id.Rank(rank))
			m.look(id.Rank(rank))
		}
		for node, n := range m.nodes {
			for _, sent := range n.sent {
				sent.handled = true
			}
			m.advance(node)
			for other := range m.nodes {
				if way := [2]int{node, other}; len(m.ways[way]) > 0 {
					m.arrive(way)
				}
			}
		}
		if m.over() {
			return
		}
	}
	for rank, r := range m.ranks {
		m.t.Errorf("rank %d on node %d has entered %d barriers and left %d of %d", rank, r.node, r.entered, r.released, m.last)
	}
}

// over reports whether all ranks have left all barriers that can be left, and all nodes with ranks
// that wait know about the missing one.
func (m *model) over() bool {
	for rank, r := range m.ranks {
		switch {
		case m.quits == 1<<32-1:
			if r.released < m.last {
				return false
			}
		case id.Rank(rank) == m.quits:
			if !r.ended {
				return false
			}
		case r.released < m.after || r.entered == m.after || !m.nodes[r.node].missing:
			return false
		}
	}
	return true
}

// Whatever order reports, losses, duplicates and restarts come in, no rank leaves a barrier before
// all ranks have entered it and all earlier messages are handled, all ranks leave it then, and a
// rank that waits for one that has ended is reported.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	for run := range uint64(400) {
		t.Run(fmt.Sprint("run ", run), func(t *testing.T) {
			m := newModel(t, seed+run)
			for range 300 * len(m.nodes) {
				m.step()
			}
			m.rough = false
			m.finish()
			if m.quits != 1<<32-1 {
				for rank, r := range m.ranks {
					if r.released > m.after {
						t.Errorf("rank %d has left barrier %d, which rank %d has not entered", rank, r.released, m.quits)
					}
				}
			}
		})
	}
}

// A rank cannot enter a barrier before it has left the one before, nor take one back.
func TestClaims(t *testing.T) {
	counters := Counters{Arrived: make([]uint64, 2), Reported: new(uint64), Released: new(uint64)}
	*counters.Reported, *counters.Released = 5, 5
	for entered, ok := range map[uint64]bool{0: false, 4: false, 5: true, 6: true, 7: false, 1<<64 - 1: false} {
		b := New(Config{Self: 0, Members: 1, Local: []id.Rank{3}}, counters)
		b.Enter(3, entered)
		_, err := b.Gather()
		var claim *ClaimError
		if (err == nil) != ok || !ok && (!errors.As(err, &claim) || *claim != ClaimError{3, entered, 5}) {
			t.Errorf("%d barriers: %v", entered, err)
		}
		if bounded := b.End(3, entered); bounded > 6 {
			t.Errorf("ended after %d barriers", bounded)
		}
	}
}

// Reports count only from the nodes that may make them.
func TestStrangers(t *testing.T) {
	counters := Counters{Arrived: make([]uint64, 2), Reported: new(uint64), Released: new(uint64)}
	b := New(Config{Self: 1, Members: 4, Local: []id.Rank{0}}, counters)
	for _, member := range []int{1, 2, 3} {
		if s := b.Release(member, 1); s != (Step{}) {
			t.Errorf("node %d releases: %+v", member, s)
		}
	}
	for _, member := range []int{0, 1, 2} {
		b.Arrive(member, 1)
	}
	b.Enter(0, 1)
	if flush, err := b.Gather(); !flush || err != nil || b.Ready() {
		t.Errorf("ready without the child: %v, %v", flush, err)
	}
	b.Arrive(3, 1)
	if !b.Ready() || b.Advance() != (Step{Arrived: 1}) || b.Ready() {
		t.Errorf("%+v", b)
	}
	if s := b.Release(0, 1); s != (Step{Release: 1}) || b.Release(0, 1) != (Step{}) {
		t.Errorf("the parent releases: %+v", s)
	}
}
