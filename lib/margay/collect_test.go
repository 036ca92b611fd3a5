package margay_test

import (
	"bytes"
	"context"
	"encoding/binary"
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

// collector makes the calls. Its fields until inputs determine the call.
type collector struct {
	ctx    context.Context
	job    *margay.Job
	seed   uint64
	number uint64
	root   int
	op     margay.Op
	count  int
	all    []byte // results that all ranks have
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
	digest := fnv.New64a()
	for c.number = range n {
		if err := c.next(); err != nil {
			return fmt.Errorf("call %d: %w", c.number, err)
		}
		digest.Write(c.all)
		c.all = nil
	}
	fmt.Printf("%016x\n", digest.Sum64())
	return job.Finalize(ctx)
}

// next makes a call.
func (c *collector) next() error {
	r := scramble(c.seed ^ scramble(c.number))
	draw := func(n uint64) int { r = scramble(r); return int(r % n) }
	kind := draw(7)
	c.root = draw(uint64(c.job.Size()))
	element := draw(6)
	ops := uint64(6)
	if element >= 4 {
		ops = 3
	}
	c.op = margay.Op(1 + draw(ops))
	c.count = draw(40)
	if draw(8) == 0 {
		c.count = draw(6000)
	}
	switch kind {
	case 0:
		return c.broadcast()
	case 1, 2:
		return c.reduce(element, kind == 2)
	case 3, 4:
		return c.gather(kind == 4)
	case 5:
		return c.compose()
	}
	return c.inexact()
}

func (c *collector) bytes(rank int) []byte {
	b := make([]byte, c.count)
	for k := range b {
		b[k] = byte(c.value(rank, k))
	}
	return b
}

func (c *collector) broadcast() error {
	data := c.bytes(c.job.Rank())
	if err := margay.Broadcast(c.ctx, c.job, c.root, data); err != nil {
		return err
	}
	c.all = data
	return same(data, c.bytes(c.root))
}

func same[T comparable](got, want []T) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("the result is another one")
	}
	return nil
}

func (c *collector) gather(all bool) error {
	own := c.bytes(c.job.Rank())
	var want []byte
	for rank := range c.job.Size() {
		want = append(want, c.bytes(rank)...)
	}
	got := make([]byte, len(want))
	if all {
		if err := margay.AllGather(c.ctx, c.job, own, got); err != nil {
			return err
		}
		c.all = got
		return same(got, want)
	}
	if err := margay.Gather(c.ctx, c.job, c.root, own, got); err != nil || c.job.Rank() != c.root {
		return err
	}
	return same(got, want)
}

func (c *collector) reduce(element int, all bool) error {
	switch element {
	case 0:
		return reduceAs[int32](c, all)
	case 1:
		return reduceAs[int64](c, all)
	case 2:
		return reduceAs[uint32](c, all)
	case 3:
		return reduceAs[uint64](c, all)
	case 4:
		return reduceAs[float32](c, all)
	}
	return reduceAs[float64](c, all)
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

func reduceAs[T margay.Number](c *collector, all bool) error {
	own := numbers[T](c, c.job.Rank())
	want := numbers[T](c, 0)
	for rank := 1; rank < c.job.Size(); rank++ {
		for i, v := range numbers[T](c, rank) {
			want[i] = combined(c.op, want[i], v)
		}
	}
	if all {
		if err := margay.AllReduce(c.ctx, c.job, own, own, c.op); err != nil {
			return err
		}
		var b bytes.Buffer
		_ = binary.Write(&b, binary.LittleEndian, own)
		c.all = b.Bytes()
		return same(own, want)
	}
	if err := margay.Reduce(c.ctx, c.job, c.root, own, own, c.op); err != nil || c.job.Rank() != c.root {
		return err
	}
	return same(own, want)
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

func (c *collector) compose() error {
	own := c.affines(c.job.Rank())
	want := c.affines(c.root)
	for i := 1; i < c.job.Size(); i++ {
		composed(want, c.affines((c.root+i)%c.job.Size()))
	}
	err := margay.ReduceFunc(c.ctx, c.job, c.root, own, own, composed)
	if err != nil || c.job.Rank() != c.root {
		return err
	}
	return same(own, want)
}

// inexact adds numbers whose sum depends on the order.
func (c *collector) inexact() error {
	own := make([]float64, c.count)
	for k := range own {
		v := c.value(c.job.Rank(), k)
		own[k] = math.Ldexp(float64(v>>11), int(v%60)-80)
	}
	sum := make([]float64, c.count)
	if err := margay.AllReduce(c.ctx, c.job, own, sum, margay.Sum); err != nil {
		return err
	}
	for _, v := range sum {
		c.all = binary.LittleEndian.AppendUint64(c.all, math.Float64bits(v))
	}
	return nil
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
