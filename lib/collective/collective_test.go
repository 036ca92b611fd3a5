package collective

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// world is a job whose messages wait until a rank that waits delivers one at random.
type world struct {
	mu      sync.Mutex
	changed sync.Cond
	random  *rand.Rand
	ranks   []*Streams
	pending map[[2]int][]message // by source and target, in order
	waiting int                  // ranks that wait since the last change
	running int
	stuck   bool
	most    int // chunks that a rank held from another
}

type message struct {
	args    [2]uint64
	payload []byte
}

var errStuck = errors.New("all ranks wait and no message is on the way")

func newWorld(size int, random *rand.Rand) *world {
	w := &world{random: random, pending: make(map[[2]int][]message), running: size}
	w.changed.L = &w.mu
	for range size {
		w.ranks = append(w.ranks, NewStreams(size))
	}
	return w
}

// deliver delivers a random message and reports whether there was one. The caller holds mu.
func (w *world) deliver() bool {
	var pairs [][2]int
	for pair, messages := range w.pending {
		if len(messages) > 0 {
			pairs = append(pairs, pair)
		}
	}
	if len(pairs) == 0 {
		return false
	}
	slices.SortFunc(pairs, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	pair := pairs[w.random.IntN(len(pairs))]
	m := w.pending[pair][0]
	w.pending[pair] = w.pending[pair][1:]
	to := w.ranks[pair[1]]
	if err := to.Arrive(pair[0], m.args, m.payload); err != nil {
		panic(err)
	}
	w.most = max(w.most, len(to.peer(pair[0]).chunks))
	w.change()
	return true
}

// change wakes the ranks that wait. The caller holds mu.
func (w *world) change() {
	w.waiting = 0
	w.changed.Broadcast()
}

// wait waits until ok. The caller holds mu.
func (w *world) wait(ok func() bool) error {
	for !ok() {
		if w.stuck {
			return errStuck
		}
		if w.deliver() {
			continue
		}
		if w.waiting++; w.waiting == w.running {
			w.stuck = true
			w.change()
			continue
		}
		w.changed.Wait()
	}
	return nil
}

func (w *world) post(from, to int, args [2]uint64, payload []byte) {
	pair := [2]int{from, to}
	w.pending[pair] = append(w.pending[pair], message{args, bytes.Clone(payload)})
	w.change()
}

// end notes that a rank has made its last call.
func (w *world) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	w.change()
}

// carrier is a rank in a call.
type carrier struct {
	*world
	rank int
	call wire.Call
}

func (c carrier) Send(to int, chunk []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wait(func() bool { return c.ranks[c.rank].HasCredit(to) }); err != nil {
		return err
	}
	c.ranks[c.rank].Spend(to)
	c.post(c.rank, to, c.call.Args(), chunk)
	return nil
}

func (c carrier) Receive(from int, buf []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(buf) > 0 {
		if err := c.wait(func() bool { return c.ranks[c.rank].HasData(from) }); err != nil {
			return err
		}
		n, credit, err := c.ranks[c.rank].Take(from, c.call, buf)
		if err != nil {
			return err
		}
		if credit > 0 {
			c.post(c.rank, from, wire.Call{Kind: wire.CallCredit, Length: uint64(credit)}.Args(), nil)
		}
		buf = buf[n:]
	}
	return nil
}

// plan is what all ranks call.
type plan struct {
	kind    wire.CallKind
	root    int
	length  int
	element int
}

// input is the data of a rank for a call.
func input(seed uint64, number, rank, length int) []byte {
	r := rand.New(rand.NewPCG(seed, uint64(number)<<32|uint64(rank)))
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

// want returns what a call leaves on a rank, nil for nothing.
func want(seed uint64, number int, p plan, rank, size int) []byte {
	in := func(rank int) []byte { return input(seed, number, rank, p.length) }
	switch p.kind {
	case wire.CallBroadcast:
		return in(p.root)
	case wire.CallReduce, wire.CallAllReduce:
		if p.kind == wire.CallReduce && rank != p.root {
			return nil
		}
		sum := in(p.root)
		for i := 1; i < size; i++ {
			mix(p.element)(sum, in((p.root+i)%size))
		}
		return sum
	}
	if rank != p.root {
		return nil
	}
	var all []byte
	for i := range size {
		all = append(all, in(i)...)
	}
	return all
}

// call makes a call and returns what it leaves.
func call(c carrier, seed uint64, number int, p plan, size int) ([]byte, error) {
	data := input(seed, number, c.rank, p.length)
	place := Place{Rank: c.rank, Size: size, Root: p.root}
	switch p.kind {
	case wire.CallBroadcast:
		return data, Broadcast(c, place, data)
	case wire.CallReduce:
		err := Reduce(c, place, data, data, p.element, make([]byte, 2*Piece(p.element)), mix(p.element))
		return data, err
	case wire.CallAllReduce:
		err := AllReduce(c, place, data, data, make([]byte, size*p.length), mix(p.element))
		return data, err
	}
	out := make([]byte, size*p.length)
	return out, Gather(c, place, data, out)
}

// Calls in any order, with any root and length, give what a sequential program computes, in jobs of
// all sizes and with messages in any order that the system allows; and no rank holds more than the
// window.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, size := range []int{1, 2, 3, 4, 5, 6, 7, 8, 13, 16} {
		w := newWorld(size, rand.New(rand.NewPCG(seed, uint64(size))))
		plans := make([]plan, 8)
		for i := range plans {
			p := plan{kind: wire.CallKind(1 + random.IntN(2)), root: random.IntN(size), element: 8 + random.IntN(20)}
			if random.IntN(3) == 0 {
				p.kind = wire.CallGather
			}
			if random.IntN(8) == 0 {
				p.element = 1000 + random.IntN(40000)
			}
			p.length = random.IntN(max(1, 40000/p.element)) * p.element
			if random.IntN(3) == 0 && IsSmall(size, 1, p.element) {
				p.kind, p.root, p.length = wire.CallAllReduce, 0, random.IntN(wire.MaxPayload/p.element+1)*p.element
			}
			plans[i] = p
		}
		var running sync.WaitGroup
		for rank := range size {
			running.Go(func() {
				defer w.end()
				for i, p := range plans {
					c := carrier{w, rank, wire.Call{Number: uint32(i), Root: uint32(p.root), Kind: p.kind, Length: uint64(p.length)}}
					got, err := call(c, seed, i, p, size)
					if err != nil {
						t.Errorf("size %d, rank %d, call %d, %+v: %v", size, rank, i, p, err)
						return
					}
					if want := want(seed, i, p, rank, size); want != nil && !bytes.Equal(got, want) {
						t.Errorf("size %d, rank %d, call %d, %+v gives another result", size, rank, i, p)
					}
				}
			})
		}
		running.Wait()
		if w.most > wire.CollectiveWindow {
			t.Errorf("a rank held %d chunks of another", w.most)
		}
	}
}

// An error of different calls names both.
func TestMismatch(t *testing.T) {
	base := wire.Call{Number: 3, Kind: wire.CallReduce, Type: wire.TypeInt32, Op: wire.OpSum, Length: 8}
	for name, change := range map[string]func(*wire.Call){
		"number": func(c *wire.Call) { c.Number++ }, "root": func(c *wire.Call) { c.Root = 1 },
		"kind": func(c *wire.Call) { c.Kind = wire.CallGather }, "type": func(c *wire.Call) { c.Type = wire.TypeUint32 },
		"operation": func(c *wire.Call) { c.Op = wire.OpMax }, "length": func(c *wire.Call) { c.Length = 12 },
	} {
		other := base
		change(&other)
		s := NewStreams(2)
		if err := s.Arrive(1, other.Args(), make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		_, _, err := s.Take(1, base, make([]byte, 8))
		for _, part := range []string{fmt.Sprint("call ", other.Number, ", ", other), fmt.Sprint("call 3, ", base), "rank 1"} {
			if !errors.Is(err, ErrMismatch) || !bytes.Contains([]byte(err.Error()), []byte(part)) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Whatever comes, a rank holds at most the window from each other one and never more credit than
// it has spent.
func FuzzArrive(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewStreams(4)
		for len(b) >= 19 {
			args := [2]uint64{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
			err := s.Arrive(int(int8(b[16])), args, make([]byte, int(b[17])*5))
			if err != nil && !errors.Is(err, wire.ErrChunk) {
				t.Fatal(err)
			}
			if to := int(b[18] % 4); s.HasCredit(to) {
				s.Spend(to)
			}
			b = b[19:]
		}
		for rank, p := range s.peers {
			if p != nil && (len(p.chunks) > wire.CollectiveWindow || p.flying > wire.CollectiveWindow) {
				t.Errorf("rank %d: %d chunks, %d in flight", rank, len(p.chunks), p.flying)
			}
		}
	})
}
