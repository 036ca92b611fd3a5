package collective

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// world is a job of ranks that are in some groups. Its messages arrive at random moments, in order
// between two ranks.
type world struct {
	t       *testing.T
	seed    uint64
	random  *rand.Rand
	groups  [][]int    // by number: the ranks by place; the first are all ranks
	plans   [][]plan   // by group: its calls in order
	ranks   []*member  // by rank
	pending [][]letter // by source * ranks + target
}

type letter struct {
	args    [2]uint64
	payload []byte
}

// plan is a call of a group.
type plan struct {
	Spec
	length int // of the data of a rank, or of its block for each
}

// member is a rank.
type member struct {
	*world
	rank    int
	groups  []*Group // by number, nil: it is not in it
	next    []int    // by group: the calls that it has started
	running []running
}

type running struct {
	group, number int
	call          *Call
	out           []byte
}

func newWorld(t *testing.T, seed uint64, random *rand.Rand, size int) *world {
	w := &world{t: t, seed: seed, random: random, pending: make([][]letter, size*size)}
	w.groups = append(w.groups, random.Perm(size))
	slices.Sort(w.groups[0])
	for range random.IntN(4) {
		w.groups = append(w.groups, random.Perm(size)[:1+random.IntN(size)])
	}
	for _, ranks := range w.groups {
		var plans []plan
		for range random.IntN(6) {
			plans = append(plans, newPlan(random, len(ranks)))
		}
		w.plans = append(w.plans, plans)
	}
	near := random.IntN(2) == 0
	for rank := range size {
		m := &member{world: w, rank: rank, groups: make([]*Group, len(w.groups)), next: make([]int, len(w.groups))}
		m.groups[0] = NewJob(rank, size, near)
		for i, ranks := range w.groups[1:] {
			if slices.Contains(ranks, rank) {
				m.groups[i+1] = NewGroup(wire.NewGroupID(uint32(ranks[0]), uint16(i+1)), ranks, rank, near)
			}
		}
		w.ranks = append(w.ranks, m)
	}
	return w
}

func newPlan(random *rand.Rand, size int) plan {
	p := plan{Spec: Spec{Kind: wire.CallKind(1 + random.IntN(int(wire.CallBarrier))), Element: 8 + random.IntN(20)}}
	if p.Kind.Rooted() {
		p.Root = random.IntN(size)
	}
	most := 3000
	switch random.IntN(8) {
	case 0:
		most = 40000
		p.Element = 1000 + random.IntN(30000)
	case 1, 2:
		most = wire.MaxPayload
	}
	p.length = random.IntN(max(1, most/p.Element)+1) * p.Element
	if p.Kind == wire.CallBarrier {
		p.length = 0
	}
	return p
}

// input is the data of a rank for a call.
func (w *world) input(group, number, rank, length int) []byte {
	r := rand.New(rand.NewPCG(w.seed, uint64(group)<<40|uint64(number)<<32|uint64(rank)))
	b := make([]byte, length)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// mix is associative for elements of 8 bytes or more, and not commutative: the composition of
// affine functions of 32-bit numbers.
func mix(element int) func(into, from []byte) {
	return func(into, from []byte) {
		for at := 0; at < len(into); at += element {
			a, b := into[at:], from[at:]
			m, c := binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(a[4:])
			n, d := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
			binary.LittleEndian.PutUint32(a, m*n)
			binary.LittleEndian.PutUint32(a[4:], n*c+d)
		}
	}
}

// want returns what a call leaves at a place, nil for nothing.
func (w *world) want(group, number, place int) (want []byte) {
	p, size := w.plans[group][number], len(w.groups[group])
	length := p.length
	if p.Kind == wire.CallAllToAll {
		length *= size
	}
	in := func(place int) []byte { return w.input(group, number, w.groups[group][place], length) }
	sum := func(first, count int) []byte {
		sum := in(first)
		for i := 1; i < count; i++ {
			mix(p.Element)(sum, in((first+i)%size))
		}
		return sum
	}
	switch p.Kind {
	case wire.CallBroadcast:
		return in(p.Root)
	case wire.CallAllReduce:
		return sum(0, size)
	case wire.CallScan:
		return sum(0, place+1)
	case wire.CallAllToAll:
		for from := range size {
			want = append(want, in(from)[place*p.length:][:p.length]...)
		}
		return want
	case wire.CallBarrier:
		return nil
	}
	switch {
	case p.Kind != wire.CallAllGather && place != p.Root:
		return nil
	case p.Kind == wire.CallReduce:
		return sum(p.Root, size)
	}
	for place := range size {
		want = append(want, in(place)...)
	}
	return want
}

// start starts a rank's next call of a group.
func (m *member) start(group int) {
	number := m.next[group]
	m.next[group]++
	p, size := m.plans[group][number], len(m.world.groups[group])
	s, length, results := p.Spec, p.length, p.length
	switch s.Kind {
	case wire.CallGather, wire.CallAllGather:
		results *= size
	case wire.CallAllToAll:
		length, results = length*size, results*size
	}
	s.In, s.Out = m.input(group, number, m.rank, length), make([]byte, results)
	s.Combine = mix(s.Element)
	if s.Kind == wire.CallBroadcast || results == length && s.Kind != wire.CallAllToAll && m.random.IntN(2) == 0 {
		s.Out = s.In
	}
	m.running = append(m.running, running{group, number, m.groups[group].Start(s), s.Out})
}

// Post implements Sender.
func (m *member) Post(rank int, args [2]uint64, payload []byte) (bool, error) {
	if m.random.IntN(10) == 0 {
		return false, nil
	}
	queue := &m.pending[m.rank*len(m.ranks)+rank]
	*queue = append(*queue, letter{args, bytes.Clone(payload)})
	return true, nil
}

// act advances a rank, checks its calls that are over, and may start others.
func (m *member) act() {
	for _, g := range m.groups {
		if g != nil {
			g.Advance(m)
		}
	}
	m.running = slices.DeleteFunc(m.running, func(r running) bool {
		if !r.call.Over() {
			return false
		}
		place := m.groups[r.group].Place()
		what := fmt.Sprintf("rank %d of %d, place %d of group %d, %v, call %d, %+v", m.rank, len(m.ranks), place, r.group, m.world.groups[r.group], r.number,
			m.plans[r.group][r.number])
		if err := r.call.Err(); err != nil {
			m.t.Fatalf("%s: %v", what, err)
		}
		if want := m.want(r.group, r.number, place); want != nil && !bytes.Equal(r.out, want) {
			m.t.Fatalf("%s gives another result", what)
		}
		return true
	})
	group := m.random.IntN(len(m.groups))
	g := m.groups[group]
	if g != nil && len(g.queue) < 4 && m.next[group] < len(m.plans[group]) {
		m.start(group) // with no regard to other groups, on which other ranks may wait
	}
}

// deliver delivers a random message.
func (w *world) deliver() {
	pair := w.random.IntN(len(w.pending))
	if len(w.pending[pair]) == 0 {
		return
	}
	l := w.pending[pair][0]
	w.pending[pair] = w.pending[pair][1:]
	source, to := pair/len(w.ranks), w.ranks[pair%len(w.ranks)]
	c, err := wire.ParseCall(l.args, len(l.payload), len(w.ranks))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, g := range to.groups {
		if g == nil || g.ID() != c.Group {
			continue
		}
		if err := g.Arrive(source, c, l.payload); err != nil {
			w.t.Fatal(err)
		}
		return
	}
	w.t.Fatalf("rank %d is not in group %d", to.rank, c.Group)
}

// over reports whether all ranks have done all calls.
func (w *world) over() bool {
	for _, m := range w.ranks {
		if len(m.running) > 0 {
			return false
		}
		for i, g := range m.groups {
			if g != nil && m.next[i] < len(w.plans[i]) {
				return false
			}
		}
	}
	return true
}

// Calls of several groups at a time, with any root and length, that ranks start in any order
// between groups, give what a sequential program computes; messages arrive in any order that the
// system allows, and find no room. No rank waits for ever.
func TestTreeModel(t *testing.T) {
	seed := check.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range max(30, rounds()/10) {
		size := 1 + random.IntN(9)
		if random.IntN(10) == 0 {
			size = 13 + random.IntN(4)
		}
		w := newWorld(t, seed, random, size)
		idle := 0
		for !w.over() {
			before := w.moves()
			for range 1 + random.IntN(4*size) {
				w.deliver()
			}
			w.ranks[random.IntN(size)].act()
			if idle++; w.moves() != before {
				idle = 0
			}
			if idle > 2000*size {
				t.Fatalf("%d ranks wait for each other", size)
			}
		}
	}
}

// moves is a number that changes with each message and call.
func (w *world) moves() (n int) {
	for _, q := range w.pending {
		n += 1000 * len(q)
	}
	for _, m := range w.ranks {
		n += len(m.running)
		for _, next := range m.next {
			n += 100 * next
		}
	}
	return n
}

// A rank waits for another, or is in a group with it.
func two(kind wire.CallKind) (*Group, *Call) {
	g := NewJob(0, 2, false)
	return g, g.Start(Spec{Kind: kind, Type: wire.TypeInt32, Op: wire.OpSum, In: make([]byte, 8), Out: make([]byte, 8), Element: 4, Combine: func(a, b []byte) {}})
}

// post collects messages.
type post []letter

func (p *post) Post(rank int, args [2]uint64, payload []byte) (bool, error) {
	*p = append(*p, letter{args, bytes.Clone(payload)})
	return true, nil
}

// An error of different calls names both, and ends the calls that follow.
func TestMismatch(t *testing.T) {
	base := wire.Call{Number: 1, Kind: wire.CallReduce, Type: wire.TypeInt32, Op: wire.OpSum, Length: 8}
	for name, change := range map[string]func(*wire.Call){
		"number": func(c *wire.Call) { c.Number++ }, "root": func(c *wire.Call) { c.Root = 1 },
		"kind": func(c *wire.Call) { c.Kind = wire.CallGather }, "type": func(c *wire.Call) { c.Type = wire.TypeUint32 },
		"operation": func(c *wire.Call) { c.Op = wire.OpMax }, "length": func(c *wire.Call) { c.Length = 12 },
	} {
		other := base
		change(&other)
		g, c := two(wire.CallReduce)
		behind := g.Start(Spec{Kind: wire.CallBarrier})
		if err := g.Arrive(1, other, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		g.Advance(new(post))
		for _, part := range []string{fmt.Sprintf("call %d, %s", other.Number, other), fmt.Sprintf("call 1, %s", base), "rank 1"} {
			if err := c.Err(); !errors.Is(err, ErrMismatch) || !bytes.Contains([]byte(err.Error()), []byte(part)) {
				t.Errorf("%s: %v", name, err)
			}
		}
		after := g.Start(Spec{Kind: wire.CallBarrier})
		if g.Busy() || !behind.Over() || !after.Over() || !errors.Is(behind.Err(), ErrMismatch) || !errors.Is(after.Err(), ErrMismatch) {
			t.Errorf("%s: then %v, %v", name, behind.Err(), after.Err())
		}
	}
}

// A rank that waits probes the other again and again, more and more seldom, until there is
// progress.
func TestProbes(t *testing.T) {
	g, c := two(wire.CallReduce)
	var sent post
	g.Advance(&sent)
	now, gaps := time.Duration(0), []time.Duration(nil)
	for range 4 {
		next, err := g.Due(now, &sent)
		if early, _ := g.Due(next-1, &sent); err != nil || early != next {
			t.Fatal(next, early, err)
		}
		gaps, now = append(gaps, next-now), next
	}
	if want := []time.Duration{firstPatience, 2 * firstPatience, 4 * firstPatience, 8 * firstPatience}; !slices.Equal(gaps, want) {
		t.Errorf("it waits %v", gaps)
	}
	if len(sent) != 3 || sent[0].args != (wire.Call{Number: 1, Kind: wire.CallProbe}).Args() {
		t.Errorf("it sends %v", sent)
	}
	if err := g.Arrive(1, c.header, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	g.Advance(&sent)
	if next, _ := g.Due(now, &sent); next != now+firstPatience || len(sent) != 3 {
		t.Errorf("after some progress it waits for %v and sends %v", next-now, sent)
	}
}

// All ranks of a colour come to the same group, in the order of keys.
func TestSplit(t *testing.T) {
	seed := check.Seed(t)
	random := rand.New(rand.NewPCG(seed, 5))
	for range 60 {
		size := 1 + random.IntN(80)
		ranks := random.Perm(2 * size)[:size]
		var wishes []byte
		var all []Wish
		for range ranks {
			all = append(all, Wish{int32(random.IntN(4) - 1), int32(random.IntN(5) - 2), uint16(random.IntN(1 << 16))})
			wishes = append(wishes, all[len(all)-1].Encode()...)
		}
		for place, rank := range ranks {
			id, places := NewGroup(9, ranks, rank, false).Split(wishes)
			if all[place].Colour < 0 {
				if places != nil {
					t.Fatalf("rank %d of no colour is in %v", rank, places)
				}
				continue
			}
			ordered := slices.IsSortedFunc(places, func(a, b int) int {
				return slices.Compare([]int32{all[a].Key, int32(a)}, []int32{all[b].Key, int32(b)})
			})
			members := 0
			for p, w := range all {
				if w.Colour == all[place].Colour {
					members++
					ordered = ordered && slices.Contains(places, p)
				}
			}
			if !ordered || len(places) != members || id != wire.NewGroupID(uint32(ranks[places[0]]), all[places[0]].Drawn) {
				t.Fatalf("place %d of %v becomes one of group %d, %v", place, all, id, places)
			}
		}
	}
}

// Whatever comes, a rank holds at most the window from each other one and never more credit than
// it has spent, and its calls end as they should or with an error.
func FuzzArrive(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Add(append(append([]byte(nil), make([]byte, 16)...), 1, 8, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		g := NewGroup(1<<16|1, []int{2, 0, 3, 9}, 0, true)
		for len(b) >= 19 {
			args := [2]uint64{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
			payload := make([]byte, int(b[17])*5)
			if c, err := wire.ParseCall(args, len(payload), 10); err == nil {
				if c.Kind == wire.CallWhere {
					payload = wire.WherePayload(wire.Where{Rank: uint32(b[16] & 3), Call: wire.Call{Group: c.Group, Number: c.Number, Kind: wire.CallKind(1 + b[17]%9)}})
				}
				if err := g.Arrive(int(int8(b[16])), c, payload); err != nil && !errors.Is(err, wire.ErrChunk) {
					t.Fatal(err)
				}
			}
			kind, data := wire.CallKind(1+b[18]%uint8(wire.CallBarrier)), make([]byte, 4*int(b[16]))
			g.Start(Spec{Kind: kind, In: data, Out: make([]byte, 4*len(data)), Element: 4, Combine: func(a, b []byte) {}})
			g.Advance(new(post))
			g.Answer(new(post), b[17]&1 != 0)
			b = b[19:]
		}
		for place, p := range g.streams.peers {
			if p != nil && (len(p.chunks) > wire.CollectiveWindow || p.flying > wire.CollectiveWindow) {
				t.Errorf("place %d: %d chunks, %d in flight", place, len(p.chunks), p.flying)
			}
		}
	})
}
