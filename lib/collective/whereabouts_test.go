package collective

import (
	"errors"
	"strings"
	"testing"
	"time"

	"margay/kernel/abi/wire"
)

// circle is the group of all ranks of a job, whose messages arrive at once.
type circle struct {
	t      *testing.T
	groups []*Group
	meets  []bool // by rank: it is in a barrier of the job
}

// seat is the Sender of a rank of a circle.
type seat struct {
	*circle
	rank int
}

func (s seat) Post(rank int, args [2]uint64, payload []byte) (bool, error) {
	c, err := wire.ParseCall(args, len(payload), len(s.groups))
	if err == nil {
		err = s.groups[rank].Arrive(s.rank, c, payload)
	}
	if err != nil {
		s.t.Error(err)
	}
	return true, nil
}

func newCircle(t *testing.T, size int) *circle {
	c := &circle{t: t, meets: make([]bool, size)}
	for rank := range size {
		c.groups = append(c.groups, NewJob(rank, size, false))
	}
	return c
}

// run lets time pass, in which the ranks do what they can.
func (c *circle) run(from, to time.Duration) {
	for now := from; now <= to; now += firstPatience / 5 {
		for rank, g := range c.groups {
			s := seat{c, rank}
			g.Advance(s)
			g.Answer(s, c.meets[rank])
			if g.Busy() {
				if _, err := g.Due(now, s); err != nil {
					c.t.Fatal(err)
				}
			}
		}
	}
}

// of returns a call of ranks with 8 bytes.
func of(kind wire.CallKind, root, length int) Spec {
	return Spec{Kind: kind, Root: root, In: make([]byte, length), Out: make([]byte, 8*length), Element: 4, Combine: func(a, b []byte) {}}
}

// Ranks whose calls differ, and that wait for each other or for one of those, fail soon with an
// error that names two of them, whether data meet or not.
func TestDifferentCalls(t *testing.T) {
	const gather, reduce, broadcast, barrier = wire.CallGather, wire.CallReduce, wire.CallBroadcast, wire.CallBarrier
	for name, test := range map[string]struct {
		calls []Spec
		fails []int  // the ranks that must fail
		want  string // in the error of the first of them
	}{
		"both wait":       {[]Spec{of(gather, 0, 8), of(broadcast, 0, 8)}, []int{0, 1}, "rank 1 is in call 1, broadcast of 64 bytes with root 0; this rank is in call 1, gather of 8 bytes"},
		"roots":           {[]Spec{of(gather, 0, 8), of(gather, 1, 8)}, []int{0, 1}, "gather of 8 bytes with root 1; this rank is in call 1, gather of 8 bytes with root 0"},
		"no elements":     {[]Spec{of(reduce, 0, 8), of(reduce, 0, 0)}, []int{0}, "rank 1 is in call 1, reduce of 0 bytes with root 0; this rank is in call 1, reduce of 8 bytes"},
		"group barrier":   {[]Spec{of(reduce, 0, 8), of(barrier, 0, 0)}, []int{0, 1}, "rank 1 is in call 1, barrier; this rank is in call 1, reduce of 8 bytes"},
		"one of three":    {[]Spec{of(barrier, 0, 0), of(barrier, 0, 0), of(broadcast, 0, 8)}, []int{0, 1, 2}, "rank 2 is in call 1, broadcast of 64 bytes with root 0"},
		"far from a root": {[]Spec{of(gather, 0, 8), of(gather, 0, 8), of(gather, 0, 8), of(broadcast, 2, 8)}, []int{0, 2}, "rank 3 is in call 1, broadcast of 64 bytes with root 2"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCircle(t, len(test.calls))
			calls := make([]*Call, len(test.calls))
			for rank, s := range test.calls {
				calls[rank] = c.groups[rank].Start(s)
			}
			c.run(0, 5*firstPatience)
			for i, rank := range test.fails {
				err := calls[rank].Err()
				if !errors.Is(err, ErrMismatch) || i == 0 && !strings.Contains(err.Error(), test.want) {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// A rank whose call succeeded, because it awaited no other, fails in its next one, and so does a
// third rank that awaits it there.
func TestDifferentCallsBefore(t *testing.T) {
	c := newCircle(t, 3)
	gather := c.groups[0].Start(of(wire.CallGather, 0, 8))
	calls := []*Call{gather}
	for _, g := range c.groups[1:] {
		g.Start(of(wire.CallBroadcast, 2, 8))
		g.Start(of(wire.CallReduce, 2, 8))
		calls = append(calls, g.Start(of(wire.CallBarrier, 0, 0)))
	}
	c.run(0, 8*firstPatience)
	for i, call := range calls {
		if err := call.Err(); !errors.Is(err, ErrMismatch) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// A rank that reports from a later call has sent what the earlier ones need, which may not have
// been looked at.
func TestAheadWithData(t *testing.T) {
	c := newCircle(t, 2)
	first, second := seat{c, 0}, seat{c, 1}
	call := c.groups[0].Start(of(wire.CallBroadcast, 1, 8))
	c.groups[0].Advance(first)
	for _, now := range []time.Duration{0, firstPatience} {
		if _, err := c.groups[0].Due(now, first); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []wire.CallKind{wire.CallBroadcast, wire.CallBroadcast, wire.CallBarrier} {
		c.groups[1].Start(of(kind, 1, 8))
		c.groups[1].Advance(second)
	}
	c.groups[1].Answer(second, false)
	c.groups[0].Advance(first)
	if err := call.Err(); err != nil || !call.over {
		t.Errorf("the call is over: %v, %v", call.over, err)
	}
}

// A rank that is late, or has not come to a call, causes no error.
func TestLateRank(t *testing.T) {
	c := newCircle(t, 2)
	first := c.groups[0].Start(of(wire.CallReduce, 0, 8))
	c.run(0, 20*firstPatience)
	if first.Over() {
		t.Fatal(first.Err())
	}
	second := c.groups[1].Start(of(wire.CallReduce, 0, 8))
	c.run(20*firstPatience, 21*firstPatience)
	if !first.Over() || first.Err() != nil || !second.Over() || second.Err() != nil {
		t.Errorf("%v, %v", first.Err(), second.Err())
	}
}

// A rank in a barrier of the job and one in a call know of each other, and the call goes on when
// the barrier's rank comes to it.
func TestBarrierAndCall(t *testing.T) {
	c := newCircle(t, 2)
	c.meets[1] = true
	call := c.groups[0].Start(of(wire.CallReduce, 0, 8))
	if _, known := c.groups[1].Early(); known {
		t.Error("rank 0 is early before it has asked")
	}
	c.run(0, 4*firstPatience)
	if want := " in call 1, reduce of 8 bytes with root 0: rank 1 is in a barrier of the job"; c.groups[0].Apart() != want {
		t.Errorf("it waits%s", c.groups[0].Apart())
	}
	if w, known := c.groups[1].Early(); !known || w.String() != "rank 0 is in call 1, reduce of 8 bytes with root 0" {
		t.Errorf("early is %s, %v", w, known)
	}
	c.meets[1] = false
	c.groups[1].Start(of(wire.CallReduce, 0, 8))
	c.run(4*firstPatience, 5*firstPatience)
	if _, known := c.groups[1].Early(); known || !call.Over() || call.Err() != nil {
		t.Errorf("early: %v; the call: %v, %v", known, call.Over(), call.Err())
	}
}
