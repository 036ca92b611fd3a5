package channel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/keep"
	"margay/nimble/memory"
)

// kept plays the job's init.
type kept map[string]*keep.Item

func (k kept) Keep(item keep.Item) error {
	c := item
	c.Files = nil
	for _, f := range item.Files {
		d, err := keep.Duplicate(f.Fd(), f.Name())
		if err != nil {
			return err
		}
		c.Files = append(c.Files, d)
	}
	if before := k[item.Name]; before != nil {
		before.CloseFiles()
	}
	k[item.Name] = &c
	return nil
}

func (k kept) Drop(name string) error { delete(k, name); return nil }

func (k kept) close() {
	for _, item := range k {
		item.CloseFiles()
	}
}

// Handlers of the model's messages: the verdict of an extension on them, while there is one.
const (
	deliver = iota
	consume
	upcall
	forward
)

// message identifies one message: the number-th from one rank to another.
type message struct {
	source, target int
	number         uint64
}

func (m message) args() [2]uint64 { return [2]uint64{m.number, uint64(m.source)<<8 | uint64(m.target)} }

func messageOf(r wire.Record) message {
	return message{int(r.Args[1] >> 8), int(r.Args[1] & 0xff), r.Args[0]}
}

// modelRank is a rank of the model, with the node kernel's view of it.
type modelRank struct {
	area  *wire.Area
	out   *wire.Outlet
	in    *wire.Inlet
	maps  []*memory.Memory
	next  []uint64 // by target: the number of the last message
	ended bool

	// Of the node kernel.
	sent     *wire.Consumer
	receive  *wire.Producer
	upcalls  *wire.Producer
	overflow []wire.Record
}

// model is a job on one node. It makes the real decisions of senders, node kernel and receivers,
// one step at a time.
type model struct {
	t        *testing.T
	random   *rand.Rand
	kept     kept
	table    *Table
	board    *wire.Board
	ranks    []*modelRank
	extended bool // there is an extension
	onward   []wire.Record
	barrier  uint64

	state    map[message]string // fate of a message; "": it is on its way
	ordinary map[[2]int]uint64  // by source and target: the last ordinary message handled
	pending  map[message]bool   // upcalls that the node kernel has put into a ring
	closed   map[message]bool   // sent after the end of the target was published
}

func newModel(t *testing.T, random *rand.Rand, ranks int) *model {
	m := &model{
		t: t, random: random, kept: make(kept), state: make(map[message]string), ordinary: make(map[[2]int]uint64),
		pending: make(map[message]bool), closed: make(map[message]bool),
	}
	t.Cleanup(m.kept.close)
	nodes := make([]uint32, ranks)
	for i := range ranks {
		header := wire.Header{Job: 7, Rank: uint32(i), Size: uint32(ranks), LocalRank: uint32(i), LocalSize: uint32(ranks), Nodes: 1}
		area, err := wire.NewArea(make([]byte, wire.AreaSize(ranks)), header, nodes)
		if err != nil {
			t.Fatal(err)
		}
		r := &modelRank{area: area, next: make([]uint64, ranks)}
		r.attach()
		m.ranks = append(m.ranks, r)
	}
	var err error
	if m.table, err = New(m.config()); err != nil {
		t.Fatal(err)
	}
	for i, r := range m.ranks {
		r.out = wire.NewOutlet(r.area, m.table.board, wire.Header{Size: uint32(ranks)})
		r.in = wire.NewInlet(r.area, m.table.board, wire.Header{Size: uint32(ranks), LocalRank: uint32(i)})
	}
	m.board = m.table.board
	m.setPath()
	return m
}

func (m *model) close() {
	m.table.Close()
	for _, r := range m.ranks {
		for _, memory := range r.maps {
			memory.Close()
		}
	}
}

func (m *model) config() Config {
	c := Config{Keeper: m.kept, Log: m.t.Logf}
	for i, r := range m.ranks {
		c.Ranks = append(c.Ranks, Rank{Number: id.Rank(i), Area: r.area, Passed: r.sent.Position()})
	}
	return c
}

// attach takes the node kernel's ends of the rank's rings, as a node kernel does when it starts.
func (r *modelRank) attach() {
	r.sent, r.receive, r.upcalls = r.area.SendConsumer(), r.area.ReceiveProducer(), r.area.UpcallProducer()
}

func (m *model) setPath() {
	bits := uint32(wire.PathDirect | wire.PathFar | wire.PathMeet)
	if m.extended {
		bits = 0
	}
	m.table.SetPath(bits)
}

// is notes the fate of a message, which has exactly one.
func (m *model) is(what string, x message) {
	if had := m.state[x]; had != "" {
		m.t.Fatalf("message %+v is %s, and was %s before", x, what, had)
	}
	m.state[x] = what
}

// post sends a message from a rank.
func (m *model) post(source int) {
	s := m.ranks[source]
	x := message{source: source, target: m.random.IntN(len(m.ranks))}
	if s.ended {
		return
	}
	x.number = s.next[x.target] + 1
	r := wire.Record{
		Handler: uint16(m.random.IntN(forward + 1)), Peer: uint32(x.target), Args: x.args(), Payload: make([]byte, m.random.IntN(wire.MaxPayload+1)),
	}
	ok, _, err := s.out.Push(&r)
	if err != nil {
		m.t.Fatal(err)
	}
	if ok {
		s.next[x.target]++
		m.state[x] = ""
		m.closed[x] = m.ranks[x.target].ended
	}
}

// judge takes messages of a rank as the node kernel does.
func (m *model) judge(source int) {
	s := m.ranks[source]
	for range m.random.IntN(5) {
		r, ok, err := s.sent.Next()
		if err != nil {
			m.t.Fatal(err)
		}
		if !ok {
			break
		}
		target := int(r.Peer)
		m.table.Speak(source, target)
		r.Payload = slices.Clone(r.Payload)
		r.Peer = uint32(source)
		switch kind := int(r.Handler); {
		case !m.extended || kind == deliver:
			m.put(target, r)
		case kind == consume:
			m.is("consumed", messageOf(r))
		case kind == upcall:
			m.raise(target, r)
		default:
			m.table.Settling(source).Held()
			m.onward = append(m.onward, r)
		}
	}
	s.sent.Release()
	m.table.Settling(source).Passed(s.sent.Position())
}

// put puts a message into the receive ring of a rank, or behind those that wait for room.
func (m *model) put(target int, r wire.Record) {
	t := m.ranks[target]
	if t.ended {
		m.is("refused", messageOf(r))
		return
	}
	if len(t.overflow) == 0 && m.random.IntN(8) > 0 {
		if ok, _, err := t.receive.Push(r); ok || err != nil {
			return
		}
	}
	t.overflow = append(t.overflow, r)
	m.table.Settling(int(r.Peer)).Held()
}

func (m *model) raise(target int, r wire.Record) {
	t := m.ranks[target]
	if t.ended {
		m.is("refused", messageOf(r))
		return
	}
	if ok, _, err := t.upcalls.Push(r); !ok || err != nil {
		m.is("consumed", messageOf(r)) // the model's extension drops it then
		return
	}
	m.pending[messageOf(r)] = true
}

// refill moves messages that wait into the receive ring of a rank.
func (m *model) refill(target int) {
	t := m.ranks[target]
	for len(t.overflow) > 0 && m.random.IntN(4) > 0 {
		r := t.overflow[0]
		if ok, _, err := t.receive.Push(r); !ok || err != nil {
			return
		}
		t.overflow = t.overflow[1:]
		m.table.Settling(int(r.Peer)).Placed()
	}
}

// arrive completes a message that is being forwarded: another rank's extension consumes it.
func (m *model) arrive() {
	if len(m.onward) == 0 {
		return
	}
	r := m.onward[0]
	m.onward = m.onward[1:]
	m.is("forwarded", messageOf(r))
	m.table.Settling(int(r.Peer)).Placed()
}

// poll handles at most this many messages of a rank.
func (m *model) poll(rank, most int) {
	t := m.ranks[rank]
	if t.ended {
		return
	}
	if m.random.IntN(2) == 0 {
		m.fetch(rank)
	}
	for range most {
		r, ok, err := t.in.Next()
		if errors.Is(err, wire.ErrChannels) {
			m.fetch(rank)
			continue
		}
		if err != nil {
			m.t.Fatal(err)
		}
		if !ok {
			return
		}
		m.handled(rank, r)
		t.in.Done()
	}
}

// handled checks a message that a rank handles.
func (m *model) handled(rank int, r wire.Record) {
	x := messageOf(r)
	if x.target != rank || int(r.Peer) != x.source {
		m.t.Fatalf("rank %d handles message %+v as of rank %d", rank, x, r.Peer)
	}
	m.is("handled", x)
	pair := [2]int{x.source, x.target}
	if m.pending[x] {
		delete(m.pending, x)
		return
	}
	if x.number < m.ordinary[pair] {
		m.t.Fatalf("message %+v is handled after message %d", x, m.ordinary[pair])
	}
	m.ordinary[pair] = x.number
	for y := range m.pending {
		if y.source == x.source && y.target == x.target && y.number < x.number {
			m.t.Fatalf("message %+v is handled before upcall %d", x, y.number)
		}
	}
}

// fetch fetches all channels of a rank.
func (m *model) fetch(rank int) {
	t := m.ranks[rank]
	for {
		index, missing := t.in.Missing()
		if !missing {
			return
		}
		f, err := m.table.Fetch(rank, uint64(index))
		if err != nil {
			m.t.Fatal(err)
		}
		f.Bell.Close()
		peer, producer := f.Local, f.Producer
		c := m.mapped(t, f.Memory)
		if producer {
			t.out.Open(c, peer, peer)
		} else {
			t.in.Open(c, uint32(peer), peer)
		}
		t.in.Fetched()
	}
}

func (m *model) mapped(t *modelRank, f *os.File) *wire.Channel {
	defer f.Close()
	mem, err := memory.Attach("channel", int(f.Fd()), wire.ChannelSize)
	if err != nil {
		m.t.Fatal(err)
	}
	t.maps = append(t.maps, mem)
	c, err := wire.OpenChannel(mem.Bytes())
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// restart ends the node kernel and starts another one. If that loses messages, it ends the job
// instead.
func (m *model) restart() {
	for _, r := range m.ranks {
		if len(r.overflow) > 0 {
			return
		}
	}
	if len(m.onward) > 0 {
		return
	}
	old := m.table
	for _, r := range m.ranks {
		r.attach()
	}
	var err error
	if m.table, err = Adopt(m.config(), m.kept); err != nil {
		m.t.Fatal(err)
	}
	m.board = m.table.board
	for i, r := range m.ranks {
		if r.ended {
			m.table.Ended(i)
		}
	}
	m.setPath()
	m.t.Cleanup(old.Close) // the ranks of the model have its board
}

// end ends a rank. Messages that it has not handled are lost with it.
func (m *model) end(rank int) {
	t := m.ranks[rank]
	if t.ended {
		return
	}
	t.ended = true
	m.table.Ended(rank)
	for _, r := range t.overflow {
		m.is("refused", messageOf(r))
		m.table.Settling(int(r.Peer)).Placed()
	}
	t.overflow = nil
}

// meet enters all ranks into a barrier of the board. If the barrier completes, messages sent before
// it must be at hand.
func (m *model) meet() {
	m.barrier++
	for i, r := range m.ranks {
		m.fetch(i)
		m.board.Enter(i, m.barrier, r.out.Quiet())
	}
	if m.board.Arrived(0, m.barrier) < len(m.ranks) {
		m.t.Fatal("a barrier that all have entered is not complete")
	}
	if !m.board.Quiet(m.barrier) {
		return
	}
	for i := range m.ranks {
		m.poll(i, 1<<30)
	}
	for x, what := range m.state {
		if what == "" {
			m.t.Fatalf("message %+v is not handled after barrier %d", x, m.barrier)
		}
	}
}

// finish delivers everything that is on its way, and checks that nothing is missing.
func (m *model) finish() {
	for range 1 << 14 {
		for i := range m.ranks {
			m.judge(i)
			m.refill(i)
			m.arrive()
			m.poll(i, 100)
		}
	}
	for x, what := range m.state {
		switch {
		case what == "" && !m.ranks[x.target].ended:
			m.t.Errorf("message %+v is lost", x)
		case what == "" && m.closed[x]:
			m.t.Errorf("message %+v to a rank that had ended was not refused", x)
		}
	}
}

// In whatever order senders, node kernel and receivers take their steps, each message of a pair of
// ranks is handled once and in the order of sending, while extensions come and go, ranks end and
// node kernels restart.
func TestPathsKeepOrder(t *testing.T) {
	seed := check.Seed(t)
	for round := range 60 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			ends := round%3 == 0
			m := newModel(t, random, 1+random.IntN(4))
			defer m.close()
			for range 3000 {
				rank := random.IntN(len(m.ranks))
				switch step := random.IntN(1000); {
				case step < 450:
					m.post(rank)
				case step < 650:
					m.judge(rank)
				case step < 750:
					m.refill(rank)
				case step < 770:
					m.arrive()
				case step < 950:
					m.poll(rank, random.IntN(20))
				case step < 970:
					m.extended = !m.extended
					m.setPath()
				case step < 976:
					m.restart()
				case step < 978 && ends:
					m.end(rank)
				case step >= 990 && !ends:
					m.meet()
				}
			}
			m.finish()
		})
	}
}
