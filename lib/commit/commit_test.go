package commit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// The window of a rank for a group: words, then the event, then data.
const (
	words      = 3
	eventAt    = 8 * words
	dataAt     = eventAt + 8
	windowSize = dataAt + 5000
)

// world is a job of ranks that are in some groups. Its messages arrive at random moments, in order
// between two ranks. The window of a group has the group's number, so that groups do not mix.
type world struct {
	t       *testing.T
	random  *rand.Rand
	ranks   []*member
	groups  [][]int // by number: the ranks by place
	pending [][]mail
	now     int
	begun   map[uint64]*action // by number of the action
	dead    int                // rank that has died; nowhere: none
}

type mail struct {
	args    [2]uint64
	payload []byte
}

// member is a rank.
type member struct {
	*world
	rank    int
	desk    *Desk
	teams   []*collective.Group // by group, nil: it is not in it
	windows [][]byte            // by group
	lacks   []bool              // by group: it has no window
	applied [][]uint64          // by group: actions that took effect here, in order
	actions []*action           // under way
}

// action is an operation of a rank.
type action struct {
	number         uint64
	group          int
	op             wire.CommitOp
	data           []byte
	call           *Call
	started, ended int // moments; 0: it has not ended
	status         wire.CommitStatus
	decided        bool // it takes effect
	abandoned      bool
}

func id(group int) wire.GroupID { return wire.NewGroupID(uint32(group), uint16(group)) }

func newWorld(t *testing.T, random *rand.Rand, size int) *world {
	w := &world{t: t, random: random, pending: make([][]mail, size*size), begun: make(map[uint64]*action), dead: nowhere}
	w.groups = append(w.groups, make([]int, size))
	for rank := range size {
		w.groups[0][rank] = rank
	}
	for range random.IntN(3) {
		w.groups = append(w.groups, random.Perm(size)[:1+random.IntN(size)])
	}
	for rank := range size {
		m := &member{world: w, rank: rank}
		for group, ranks := range w.groups {
			var team *collective.Group
			switch {
			case group == 0:
				team = collective.NewJob(rank, size, false)
			case slices.Contains(ranks, rank):
				team = collective.NewGroup(id(group), ranks, rank, false)
			}
			m.teams = append(m.teams, team)
			m.windows = append(m.windows, make([]byte, windowSize))
			m.lacks = append(m.lacks, group == 2 && random.IntN(4) == 0)
			m.applied = append(m.applied, nil)
		}
		m.desk = NewDesk(m, func(number wire.GroupID) *collective.Group {
			for group, team := range m.teams {
				if team != nil && id(group) == number {
					return team
				}
			}
			return nil
		})
		w.ranks = append(w.ranks, m)
	}
	return w
}

func word(window []byte, at uint64) uint64 { return binary.LittleEndian.Uint64(window[at:]) }

// prepare is what Prepare returns for a window.
func prepare(op *wire.CommitOp, window []byte) wire.CommitStatus {
	if status := op.Within(len(window)); status != wire.CommitOK {
		return status
	}
	if op.Compare != 0 && !op.Compare.Holds(word(window, op.Offset), op.Value) {
		return wire.CommitFalse
	}
	return wire.CommitOK
}

// apply changes a window.
func apply(op *wire.CommitOp, window, data []byte) {
	copy(window[op.Offset:], data)
	if op.Second != wire.NoOffset {
		v := op.Word
		if op.Compare == 0 {
			v = word(window, op.Second) + 1
		}
		binary.LittleEndian.PutUint64(window[op.Second:], v)
	}
}

// Prepare, Apply and Count implement Memory.
func (m *member) Prepare(op *wire.CommitOp) wire.CommitStatus {
	if m.lacks[op.Window] {
		return wire.CommitNoWindow
	}
	return prepare(op, m.windows[op.Window])
}

func (m *member) Apply(op *wire.CommitOp, data []byte) {
	number := op.Word
	if op.Compare == 0 {
		number = binary.LittleEndian.Uint64(data)
	}
	m.applied[op.Window] = append(m.applied[op.Window], number)
	apply(op, m.windows[op.Window], data)
}

func (m *member) Count(uint8, uint64) {}

// Post and Probe implement Sender. A message is in memory that outlives its sender.
func (m *member) Post(rank int, args [2]uint64, payload []byte) (bool, error) {
	if m.random.IntN(8) == 0 {
		return false, nil
	}
	queue := &m.pending[m.rank*len(m.ranks)+rank]
	*queue = append(*queue, mail{args, bytes.Clone(payload)})
	return true, nil
}

func (m *member) Probe(int) error { return nil }

// start starts a random action.
func (m *member) start() {
	group := m.random.IntN(len(m.groups))
	if m.teams[group] == nil {
		return
	}
	a := &action{number: uint64(len(m.begun) + 1), group: group, started: m.now}
	m.begun[a.number] = a
	a.op = wire.CommitOp{Window: uint8(group), Second: wire.NoOffset, Word: a.number}
	if m.random.IntN(3) == 0 {
		a.data = make([]byte, 8+m.random.IntN(m.random.IntN(4000)+1))
		for i := range a.data {
			a.data[i] = byte(a.number) + byte(i)
		}
		binary.LittleEndian.PutUint64(a.data, a.number)
		a.op.Offset, a.op.Value = dataAt+uint64(m.random.IntN(20)), uint64(len(a.data))
		if m.random.IntN(2) == 0 {
			a.op.Second = eventAt
		}
		if m.random.IntN(10) == 0 {
			a.op.Offset += windowSize
		}
	} else {
		a.op.Compare = wire.Comparison(1 + m.random.IntN(6))
		a.op.Offset, a.op.Value = 8*uint64(m.random.IntN(words)), uint64(m.random.IntN(int(a.number)+2))
		if m.random.IntN(3) > 0 {
			a.op.Second = 8 * uint64(m.random.IntN(words))
		}
	}
	a.call = m.desk.Start(m.teams[group], a.op, a.data, wire.NoOffset)
	m.actions = append(m.actions, a)
}

// act advances a rank, and may start or abandon an operation.
func (m *member) act() {
	if m.rank == m.dead {
		return
	}
	m.now++
	m.desk.Advance(m)
	m.see()
	if len(m.actions) < 3 && len(m.begun) < 60 && m.dead == nowhere && m.random.IntN(3) == 0 {
		m.start()
	}
	if len(m.actions) > 0 && m.random.IntN(60) == 0 {
		a := m.actions[m.random.IntN(len(m.actions))]
		a.decided = m.desk.Abandon(m.teams[a.group], a.call)
		a.abandoned = true
		clear(a.data) // they are the caller's
		m.see()
	}
}

// see notes the operations that are over.
func (m *member) see() {
	m.actions = slices.DeleteFunc(m.actions, func(a *action) bool {
		if !a.call.Over() {
			return false
		}
		a.ended = m.now
		if a.call.Err() != nil {
			m.t.Fatal(a.call.Err())
		}
		if !a.abandoned {
			a.status, _ = a.call.Status()
			a.decided = a.status == wire.CommitOK
		}
		return true
	})
}

// deliver delivers a random message.
func (w *world) deliver() {
	pair := w.random.IntN(len(w.pending))
	to := w.ranks[pair%len(w.ranks)]
	if len(w.pending[pair]) == 0 || to.rank == w.dead {
		return
	}
	l := w.pending[pair][0]
	w.pending[pair] = w.pending[pair][1:]
	m, err := wire.ParseCommit(l.args, len(l.payload))
	if err == nil {
		err = to.desk.Arrive(pair/len(w.ranks), m, l.payload)
	}
	if err != nil {
		w.t.Fatalf("rank %d of %d gets %+v from rank %d: %v", to.rank, len(w.ranks), m, pair/len(w.ranks), err)
	}
}

func (w *world) quiet() bool {
	for pair, q := range w.pending {
		if len(q) > 0 && pair%len(w.ranks) != w.dead {
			return false
		}
	}
	return true
}

// play plays until nothing is under way, or a rank waits for one that has died.
func (w *world) play(dies int) {
	for idle, steps := 0, 0; idle < 40*len(w.ranks); steps++ {
		if steps > 1e6 {
			w.t.Fatal("the ranks do not come to an end")
		}
		for range 1 + w.random.IntN(3*len(w.ranks)) {
			w.deliver()
		}
		w.ranks[w.random.IntN(len(w.ranks))].act()
		if dies--; dies == 0 {
			w.dead = w.random.IntN(len(w.ranks))
		}
		idle++
		if !w.quiet() || len(w.begun) < 60 && w.dead == nowhere || dies > 0 {
			idle = 0
		}
	}
}

// order returns the actions of a group that took effect, or compared, in the order of turns.
func (w *world) order(group int) (actions []*action) {
	for _, a := range w.begun {
		if a.group == group && a.call.turn != 0 && a.ended != 0 {
			actions = append(actions, a)
		}
	}
	slices.SortFunc(actions, func(a, b *action) int { return int(a.call.turn) - int(b.call.turn) })
	return actions
}

// judge compares a world in which all is over with one program that carries out the operations in
// the order of turns.
func (w *world) judge(group int) {
	lacks := slices.ContainsFunc(w.groups[group], func(rank int) bool { return w.ranks[rank].lacks[group] })
	window := make([]byte, windowSize)
	var applied []uint64
	latest := 0 // moment of the last start
	for _, a := range w.order(group) {
		if a.ended < latest {
			w.t.Fatalf("action %d was over before an action of an earlier turn began", a.number)
		}
		latest = max(latest, a.started)
		want := prepare(&a.op, window)
		if lacks && want == wire.CommitOK {
			want = wire.CommitNoWindow
		}
		reason := a.status == want || lacks && a.status == wire.CommitNoWindow // of two, either is reported
		if !a.abandoned && !reason {
			w.t.Fatalf("action %d, %+v, has status %d, want %d", a.number, a.op, a.status, want)
		}
		if a.decided != (want == wire.CommitOK) && !a.abandoned || a.decided && want != wire.CommitOK {
			w.t.Fatalf("action %d, %+v, takes effect: %v", a.number, a.op, a.decided)
		}
		if !a.decided || a.op.ReadsOnly() {
			continue
		}
		applied = append(applied, a.number)
		if a.op.Compare == 0 && a.abandoned {
			a.data = w.copyOf(a)
		}
		apply(&a.op, window, a.data)
	}
	for _, rank := range w.groups[group] {
		m := w.ranks[rank]
		if !slices.Equal(m.applied[group], applied) || !bytes.Equal(m.windows[group], window) {
			w.t.Fatalf("rank %d of group %d, %v, has %v, want %v", rank, group, w.groups[group], m.applied[group], applied)
		}
		if m.desk.BusyIn(id(group)) {
			w.t.Fatalf("rank %d is not done", rank)
		}
	}
}

// copyOf returns the data of an action as they were.
func (w *world) copyOf(a *action) []byte {
	data := make([]byte, len(a.data))
	for i := range data {
		data[i] = byte(a.number) + byte(i)
	}
	binary.LittleEndian.PutUint64(data, a.number)
	return data
}

func rounds(short int) int {
	if os.Getenv("MARGAY_SOAK") != "" {
		return 50 * short
	}
	return short
}

// Operations of several groups at a time, which callers start and abandon in any order, take effect
// at all ranks or at none, in one order everywhere, and their results are a sequential program's;
// messages arrive in any order that the system allows, and find no room.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range rounds(60) {
		w := newWorld(t, random, 1+random.IntN(9))
		w.play(0)
		for group := range w.groups {
			w.judge(group)
		}
	}
}

// A rank dies in the middle. What it has sent still arrives. An operation has taken effect at all
// of the ranks that are left or at none, unless the dead one was its root and was sending the
// decision.
func TestRankDies(t *testing.T) {
	seed := check.Seed(t)
	random := rand.New(rand.NewPCG(seed, 1))
	partial := 0
	for range rounds(150) {
		w := newWorld(t, random, 2+random.IntN(8))
		w.play(1 + random.IntN(400))
		for group, ranks := range w.groups {
			if !slices.Contains(ranks, w.dead) {
				w.judge(group)
				continue
			}
			least, most := w.spread(group)
			p := w.ranks[w.dead].desk.parts[id(group)]
			holds := p != nil && p.running != nil && p.running.parent == nowhere && p.running.told > 0 && !p.running.applied
			if most-least > 1 || most != least && !holds {
				t.Fatalf("rank %d of %v has died, and the others have %d to %d operations", w.dead, ranks, least, most)
			}
			partial += most - least
		}
	}
	t.Log("operations that some ranks have:", partial)
}

// spread returns how many operations have taken effect at a rank that lives, at least and at most.
func (w *world) spread(group int) (least, most int) {
	var longest []uint64
	least = 1 << 30
	for _, rank := range w.groups[group] {
		if rank == w.dead {
			continue
		}
		applied := w.ranks[rank].applied[group]
		least, most = min(least, len(applied)), max(most, len(applied))
		if len(applied) > len(longest) {
			longest = applied
		}
	}
	for _, rank := range w.groups[group] {
		if applied := w.ranks[rank].applied[group]; rank != w.dead && !slices.Equal(applied, longest[:len(applied)]) {
			w.t.Fatalf("rank %d has %v, another one %v", rank, applied, longest)
		}
	}
	return min(least, most), most
}

// Of the writers that race, one wins each round, and all ranks have its word.
func TestOneWinner(t *testing.T) {
	const size = 4
	seed := check.Seed(t)
	w := newWorld(t, rand.New(rand.NewPCG(seed, 2)), size)
	was := uint64(0)
	for round := range rounds(200) {
		calls := make([]*Call, size)
		for rank, m := range w.ranks {
			op := wire.CommitOp{Compare: wire.Equal, Value: was, Word: uint64(round*size + rank + 1)}
			calls[rank] = m.desk.Start(m.teams[0], op, nil, wire.NoOffset)
		}
		for steps := 0; slices.ContainsFunc(calls, func(c *Call) bool { return !c.Over() }); steps++ {
			if steps > 1e5 {
				t.Fatal("the ranks do not come to an end")
			}
			w.deliver()
			m := w.ranks[w.random.IntN(size)]
			m.desk.Advance(m)
		}
		winner := nowhere
		for rank, c := range calls {
			status, _ := c.Status()
			if status == wire.CommitOK && winner != nowhere || status != wire.CommitOK && status != wire.CommitFalse {
				t.Fatalf("round %d: rank %d has status %d, rank %d has won", round, rank, status, winner)
			}
			if status == wire.CommitOK {
				winner = rank
			}
		}
		was = uint64(round*size + winner + 1)
		for rank, m := range w.ranks {
			if got := word(m.windows[0], 0); winner == nowhere || got != was {
				t.Fatalf("round %d: rank %d has %d, rank %d has won with %d", round, rank, got, winner, was)
			}
		}
	}
}

// sent collects messages.
type sent struct {
	messages []wire.Commit
	probed   []int
}

func (s *sent) Post(_ int, args [2]uint64, payload []byte) (bool, error) {
	m, err := wire.ParseCommit(args, len(payload))
	s.messages = append(s.messages, m)
	return true, err
}

func (s *sent) Probe(rank int) error {
	s.probed = append(s.probed, rank)
	return nil
}

// A rank without a group says so, and its callers do not wait for it.
func TestFreed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, freed := range []int{0, 1, 2} {
		w := newWorld(t, random, 3)
		w.ranks[freed].teams[0] = nil
		m := w.ranks[(freed+1)%3]
		calls := []*Call{
			m.desk.Start(m.teams[0], wire.CommitOp{Compare: wire.Equal, Second: wire.NoOffset}, nil, wire.NoOffset),
			m.desk.Start(m.teams[0], wire.CommitOp{Value: 3000, Offset: dataAt, Second: wire.NoOffset}, make([]byte, 3000), wire.NoOffset),
		}
		for i := 0; !calls[1].Over(); i++ {
			w.deliver()
			other := w.ranks[random.IntN(3)]
			other.desk.Advance(other)
			if i > 1e6 {
				t.Fatalf("rank %d waits for rank %d", m.rank, freed)
			}
		}
		for i, c := range calls {
			if status, rank := c.Status(); status != wire.CommitFreed || rank != freed {
				t.Errorf("call %d has status %d at rank %d, want rank %d", i, status, rank, freed)
			}
		}
	}
}

// A rank that waits probes the other, more and more seldom. The leader probes the rank with the
// turn while another one wants it.
func TestProbes(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 2)), 3)
	caller, leader := w.ranks[1].desk, w.ranks[0].desk
	var s sent
	caller.Start(w.ranks[1].teams[0], wire.CommitOp{Compare: wire.Equal, Second: wire.NoOffset}, nil, wire.NoOffset)
	caller.Advance(&s)
	now := time.Duration(0)
	for i := range 3 {
		next := caller.Due(now, &s)
		if want := firstPatience << i; next-now != want || len(s.probed) != i {
			t.Errorf("it waits %v, want %v, and has probed %v", next-now, want, s.probed)
		}
		now = next
	}
	for _, rank := range []int{1, 2} {
		if err := leader.Arrive(rank, s.messages[0], nil); err != nil {
			t.Fatal(err)
		}
		leader.Advance(&s)
	}
	s.probed = nil
	leader.Due(leader.Due(now, &s), &s)
	if !slices.Equal(s.probed, []int{1}) {
		t.Errorf("the leader probes %v", s.probed)
	}
}

// Whatever comes, a rank keeps no more than its window has room for, and says what makes no sense.
func FuzzArrive(f *testing.F) {
	f.Add([]byte{1, byte(wire.CommitBegin), 0, 1, 1, 1, byte(wire.CommitData), 0, 1, 9, 1, byte(wire.CommitDecide), 0, 1, 0})
	f.Add([]byte{2, byte(wire.CommitAsk), 0, 0, 0, 1, byte(wire.CommitAsk), 0, 0, 0, 2, byte(wire.CommitRelease), 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		w := newWorld(t, rand.New(rand.NewPCG(uint64(len(b)), 0)), 4)
		m := w.ranks[len(b)%4]
		for ; len(b) >= 5; b = b[5:] {
			c := wire.Commit{Kind: wire.CommitKind(b[1]), Status: wire.CommitStatus(b[2]), Number: uint64(b[3]), Place: uint32(b[4])}
			payload := make([]byte, 4*int(b[4]))
			if c.Kind == wire.CommitBegin {
				payload = wire.CommitOp{Compare: wire.Comparison(b[2] % 7), Value: uint64(b[3]) << 8, Second: uint64(b[4]) * 8}.Encode()
			}
			if c, err := wire.ParseCommit(c.Args(), len(payload)); err == nil {
				if err := m.desk.Arrive(int(b[0])%4, c, payload); err != nil && !errors.Is(err, wire.ErrCommit) {
					t.Fatal(err)
				}
			}
			if b[0] > 200 {
				m.desk.Start(m.teams[0], wire.CommitOp{Compare: wire.Equal, Second: 8}, nil, wire.NoOffset)
			}
			m.desk.Advance(new(sent))
		}
		for _, p := range m.desk.parts {
			if p.running != nil && len(p.running.data) > windowSize || len(p.waiting) > 4 {
				t.Error(fmt.Sprint("it keeps ", len(p.running.data), " bytes"))
			}
		}
	})
}
