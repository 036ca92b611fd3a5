package margay_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"

	"margay/lib/margay"
)

// The calls of mode collect, which lib/c/ctest/testdata/collect.c makes too.

// scramble is a step of splitmix64.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// collector makes the calls. Its fields until random determine the call.
type collector struct {
	ctx    context.Context
	job    *margay.Job
	seed   uint64
	number uint64
	on     margay.Ranks
	ranks  []int // of on, by place
	root   int   // a place
	op     margay.Op
	count  int
	random uint64

	groups []crew
	held   []held
	digest uint64 // of the results that all ranks of the job have, in any order
}

// crew is a group of the ranks of a colour.
type crew struct {
	group *margay.Group // nil: this rank has no colour
	ranks []int
}

// held is a call that was started, and its check.
type held struct {
	request *margay.Request
	check   func() error
}

// made is a call in both forms, and a check of its result.
type made struct {
	call  func() error
	start func() (*margay.Request, error)
	check func() error
}

// draw draws a number below n.
func (c *collector) draw(n int) int {
	c.random = scramble(c.random)
	return int(c.random % uint64(n))
}

// value is a rank's k-th value for the call.
func (c *collector) value(rank, k int) uint64 {
	return scramble(scramble(scramble(c.seed+c.number)+uint64(rank)) + uint64(k))
}

// collect makes the calls that a seed determines.
func collect(ctx context.Context, job *margay.Job, seed, count string) error {
	s, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(count, 10, 64)
	if err != nil {
		return err
	}
	c := collector{ctx: ctx, job: job, seed: s}
	for c.number = range n {
		if err := c.next(); err != nil {
			return fmt.Errorf("call %d: %w", c.number, err)
		}
	}
	if err := c.waitAll(); err != nil {
		return err
	}
	fmt.Printf("%016x\n", c.digest)
	return job.Finalize(ctx)
}

// next makes or starts a call of all ranks or of a group, and may make a group before.
func (c *collector) next() error {
	c.random = scramble(c.seed ^ scramble(c.number))
	if c.draw(10) == 0 {
		if err := c.regroup(); err != nil {
			return fmt.Errorf("regroup: %w", err)
		}
	}
	c.on, c.ranks = c.job, all(c.job.Size())
	if of := c.draw(4); of < len(c.groups) {
		c.on, c.ranks = c.groups[of].group, c.groups[of].ranks
		if c.groups[of].group == nil {
			return nil
		}
	}
	kind := c.draw(11)
	c.root = c.draw(len(c.ranks))
	element := c.draw(6)
	ops := 6
	if element >= 4 {
		ops = 3
	}
	c.op = margay.Op(1 + c.draw(ops))
	c.count = c.draw(40)
	if c.draw(8) == 0 {
		c.count = c.draw(6000)
	}
	starts, lets := c.draw(2) == 0, c.draw(4)
	m := c.pick(kind, element)
	if !starts {
		if err := m.call(); err != nil {
			return err
		}
		return m.check()
	}
	r, err := m.start()
	if err != nil {
		return err
	}
	c.held = append(c.held, held{r, m.check})
	switch {
	case lets == 0:
		return c.waitAll()
	case len(c.held) > 6:
		return c.waitSome()
	}
	return nil
}

func all(size int) (ranks []int) {
	for rank := range size {
		ranks = append(ranks, rank)
	}
	return ranks
}

// waitAll waits for all calls that were started.
func (c *collector) waitAll() error {
	var requests []*margay.Request
	for _, h := range c.held {
		requests = append(requests, h.request)
	}
	if err := margay.WaitAll(c.ctx, requests...); err != nil {
		return err
	}
	for _, h := range c.held {
		if err := h.check(); err != nil {
			return err
		}
	}
	c.held = nil
	return nil
}

// waitSome waits for a call that was started, and tests another until that is complete, too.
func (c *collector) waitSome() error {
	var requests []*margay.Request
	for _, h := range c.held {
		requests = append(requests, h.request)
	}
	i, err := margay.WaitAny(c.ctx, requests...)
	if err != nil {
		return err
	}
	if err := c.held[i].check(); err != nil {
		return err
	}
	c.held = slices.Delete(c.held, i, i+1)
	for {
		done, err := c.held[0].request.Test()
		if err != nil {
			return err
		}
		if done {
			break
		}
	}
	defer func() { c.held = c.held[1:] }()
	return c.held[0].check()
}

// colour is a rank's colour in the group that is made now.
func (c *collector) colour(rank int) int { return int(c.value(rank, 1<<20)%4) - 1 }

func (c *collector) key(rank int) int { return int(c.value(rank, 1<<21)%3) - 1 }

// regroup makes a group, by a list or by colours. If there are three, the first is freed.
func (c *collector) regroup() error {
	byList := c.draw(2) == 0
	if len(c.groups) == 3 {
		if err := c.waitAll(); err != nil {
			return err
		}
		if g := c.groups[0].group; g != nil {
			if err := g.Free(); err != nil {
				return err
			}
			if err := g.Barrier(c.ctx); !errors.Is(err, margay.ErrFreed) {
				return fmt.Errorf("a barrier of a group that is freed: %w", err)
			}
		}
		c.groups = c.groups[1:]
	}
	own := c.colour(c.job.Rank())
	var ranks []int
	for rank := range c.job.Size() {
		if c.colour(rank) == own && own >= 0 {
			ranks = append(ranks, rank)
		}
	}
	var g *margay.Group
	var err error
	if byList {
		slices.Reverse(ranks)
		g, err = margay.NewGroup(c.ctx, c.job, ranks)
	} else {
		slices.SortStableFunc(ranks, func(a, b int) int { return c.key(a) - c.key(b) })
		g, err = margay.Split(c.ctx, c.job, own, c.key(c.job.Rank()))
	}
	if err != nil {
		return err
	}
	c.groups = append(c.groups, crew{g, ranks})
	if own < 0 {
		if g != nil {
			return errors.New("a rank of no colour is in a group")
		}
		return nil
	}
	if g.Size() != len(ranks) || ranks[g.Rank()] != c.job.Rank() {
		return fmt.Errorf("place %d of %d in a group of %v", g.Rank(), g.Size(), ranks)
	}
	for place, rank := range ranks {
		if g.JobRank(place) != rank {
			return fmt.Errorf("rank %d is at place %d of %v", g.JobRank(place), place, ranks)
		}
	}
	return nil
}

// isRoot reports whether this rank is the root.
func (c *collector) isRoot() bool { return c.on.Rank() == c.root }

// pick returns the call of a kind.
func (c *collector) pick(kind, element int) made {
	switch kind {
	case 0:
		return c.broadcast()
	case 1, 2, 3:
		return c.reduce(kind, element)
	case 4, 5:
		return c.gather(kind == 5)
	case 6:
		return c.allToAll()
	case 7, 8:
		return c.compose(kind == 8)
	case 9:
		return c.inexact()
	}
	return c.barrier()
}

func (c *collector) bytes(rank, count int) []byte {
	b := make([]byte, count)
	for k := range b {
		b[k] = byte(c.value(rank, k))
	}
	return b
}

func same[T comparable](got, want []T) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("the result is another one")
	}
	return nil
}

func (c *collector) broadcast() made {
	data, want, root := c.bytes(c.job.Rank(), c.count), c.bytes(c.ranks[c.root], c.count), c.root
	on := c.on
	return made{
		func() error { return margay.Broadcast(c.ctx, on, root, data) },
		func() (*margay.Request, error) { return margay.StartBroadcast(on, root, data) },
		func() error { return same(data, want) },
	}
}

func (c *collector) barrier() made {
	on := c.on
	start := func() (*margay.Request, error) { return margay.StartBarrier(on) }
	call := func() error {
		if g, ok := on.(*margay.Group); ok {
			return g.Barrier(c.ctx)
		}
		r, err := start()
		if err != nil {
			return err
		}
		return r.Wait(c.ctx)
	}
	return made{call, start, func() error { return nil }}
}

func (c *collector) gather(all bool) made {
	own, on, root := c.bytes(c.job.Rank(), c.count), c.on, c.root
	var want []byte
	for _, rank := range c.ranks {
		want = append(want, c.bytes(rank, c.count)...)
	}
	got := make([]byte, len(want))
	check := func() error { return same(got, want) }
	if all {
		return made{
			func() error { return margay.AllGather(c.ctx, on, own, got) },
			func() (*margay.Request, error) { return margay.StartAllGather(on, own, got) }, check,
		}
	}
	if !c.isRoot() {
		got, want = nil, nil
	}
	return made{
		func() error { return margay.Gather(c.ctx, on, root, own, got) },
		func() (*margay.Request, error) { return margay.StartGather(on, root, own, got) }, check,
	}
}

func (c *collector) allToAll() made {
	on, size := c.on, len(c.ranks)
	own, got := c.bytes(c.job.Rank(), size*c.count), make([]byte, size*c.count)
	var want []byte
	for _, rank := range c.ranks {
		want = append(want, c.bytes(rank, size*c.count)[on.Rank()*c.count:][:c.count]...)
	}
	return made{
		func() error { return margay.AllToAll(c.ctx, on, own, got) },
		func() (*margay.Request, error) { return margay.StartAllToAll(on, own, got) },
		func() error { return same(got, want) },
	}
}

func (c *collector) reduce(kind, element int) made {
	switch element {
	case 0:
		return reduceAs[int32](c, kind)
	case 1:
		return reduceAs[int64](c, kind)
	case 2:
		return reduceAs[uint32](c, kind)
	case 3:
		return reduceAs[uint64](c, kind)
	case 4:
		return reduceAs[float32](c, kind)
	}
	return reduceAs[float64](c, kind)
}

// numbers returns a rank's values. Sums of those with fractions are exact.
func numbers[T margay.Number](c *collector, rank int) []T {
	s := make([]T, c.count)
	for k := range s {
		v := c.value(rank, k)
		if half := 0.5; T(half) != 0 {
			s[k] = T(int64(v%2001) - 1000)
		} else {
			s[k] = T(v)
		}
	}
	return s
}

// reduceAs is a reduce, an all-reduce or a scan.
func reduceAs[T margay.Number](c *collector, kind int) made {
	on, root, op := c.on, c.root, c.op
	own := numbers[T](c, c.job.Rank())
	last := len(c.ranks)
	if kind == 3 {
		last = on.Rank() + 1
	}
	want := numbers[T](c, c.ranks[0])
	for _, rank := range c.ranks[1:last] {
		for i, v := range numbers[T](c, rank) {
			want[i] = combined(op, want[i], v)
		}
	}
	check := func() error { return same(own, want) }
	switch kind {
	case 1:
		if !c.isRoot() {
			check = func() error { return nil }
		}
		return made{
			func() error { return margay.Reduce(c.ctx, on, root, own, own, op) },
			func() (*margay.Request, error) { return margay.StartReduce(on, root, own, own, op) }, check,
		}
	case 2:
		return made{
			func() error { return margay.AllReduce(c.ctx, on, own, own, op) },
			func() (*margay.Request, error) { return margay.StartAllReduce(on, own, own, op) }, check,
		}
	}
	return made{
		func() error { return margay.Scan(c.ctx, on, own, own, op) },
		func() (*margay.Request, error) { return margay.StartScan(on, own, own, op) }, check,
	}
}

func combined[T margay.Number](op margay.Op, a, b T) T {
	switch op {
	case margay.Sum:
		return a + b
	case margay.Min:
		return min(a, b)
	case margay.Max:
		return max(a, b)
	case margay.And:
		return T(uint64(a) & uint64(b))
	case margay.Or:
		return T(uint64(a) | uint64(b))
	}
	return T(uint64(a) ^ uint64(b))
}

// affine is a function of numbers. Its composition is associative and not commutative.
type affine struct{ factor, term, more uint64 }

func composed(into, from []affine) {
	for i, f := range from {
		into[i] = affine{into[i].factor * f.factor, into[i].term*f.factor + f.term, into[i].more ^ f.more}
	}
}

func (c *collector) affines(rank int) []affine {
	s := make([]affine, c.count)
	for k := range s {
		s[k] = affine{c.value(rank, 3*k), c.value(rank, 3*k+1), c.value(rank, 3*k+2)}
	}
	return s
}

// compose is a reduce or a scan with a function.
func (c *collector) compose(scans bool) made {
	on, root, size := c.on, c.root, len(c.ranks)
	own := c.affines(c.job.Rank())
	first, count := root, size
	if scans {
		first, count = 0, on.Rank()+1
	}
	want := c.affines(c.ranks[first])
	for i := 1; i < count; i++ {
		composed(want, c.affines(c.ranks[(first+i)%size]))
	}
	check := func() error { return same(own, want) }
	if scans {
		return made{
			func() error { return margay.ScanFunc(c.ctx, on, own, own, composed) },
			func() (*margay.Request, error) { return margay.StartScanFunc(on, own, own, composed) }, check,
		}
	}
	if !c.isRoot() {
		check = func() error { return nil }
	}
	return made{
		func() error { return margay.ReduceFunc(c.ctx, on, root, own, own, composed) },
		func() (*margay.Request, error) { return margay.StartReduceFunc(on, root, own, own, composed) }, check,
	}
}

// inexact adds numbers whose sum depends on the order. All ranks must have the same.
func (c *collector) inexact() made {
	on, number := c.on, c.number
	own := make([]float64, c.count)
	for k := range own {
		v := c.value(c.job.Rank(), k)
		own[k] = math.Ldexp(float64(v>>11), int(v%60)-80)
	}
	sum := make([]float64, c.count)
	return made{
		func() error { return margay.AllReduce(c.ctx, on, own, sum, margay.Sum) },
		func() (*margay.Request, error) { return margay.StartAllReduce(on, own, sum, margay.Sum) },
		func() error {
			if _, world := on.(*margay.Job); world {
				h := fnv.New64a()
				_ = binary.Write(h, binary.LittleEndian, number)
				_ = binary.Write(h, binary.LittleEndian, sum)
				c.digest ^= h.Sum64()
			}
			return nil
		},
	}
}

// calls makes calls that are wrong.
func calls(ctx context.Context, job *margay.Job) error {
	number, eight := make([]int32, 1), make([]byte, 8)
	fmt.Println(margay.Reduce(ctx, job, 9, number, number, margay.Sum))
	fmt.Println(margay.AllReduce(ctx, job, make([]float64, 1), make([]float64, 1), margay.And))
	fmt.Println(margay.Broadcast(ctx, job, 0, eight))
	fmt.Println(margay.AllGather(ctx, job, eight, make([]byte, 24)))
	return nil
}

// tests tests a call that fails.
func tests(ctx context.Context, job *margay.Job) error {
	first, err := margay.StartBroadcast(job, 0, make([]byte, 8))
	if err != nil {
		return err
	}
	second, err := margay.StartBroadcast(job, 0, make([]byte, 8))
	if err != nil {
		return err
	}
	for done := false; !done; {
		done, err = first.Test()
	}
	fmt.Println(err)
	fmt.Println(second.Wait(ctx))
	fmt.Println(margay.Broadcast(ctx, job, 0, make([]byte, 8)))
	return nil
}
