package margay_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"margay/lib/margay"
)

// The operations of mode commit, which lib/c/ctest/testdata/commit.c makes too. Window 3 of each
// rank has words, and then a block to which all ranks transfer.
const (
	raced    = 0  // a word that all ranks race for
	compared = 8  // a word with the rank's number, plus 10
	written  = 16 // a word that comparisons write
	arrived  = 24 // an event of all transfers
	complete = 32 // an event of this rank's transfers
	block    = 64
	longest  = 20000
)

// committer is a rank of mode commit.
type committer struct {
	ctx    context.Context
	job    *margay.Job
	window []byte
}

func (c *committer) word(at int) uint64 { return binary.LittleEndian.Uint64(c.window[at:]) }

func commits(ctx context.Context, job *margay.Job, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	c := &committer{ctx: ctx, job: job}
	if c.window, err = job.Window(3, block+longest); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(c.window[compared:], uint64(job.Rank()+10))
	size := 64
	if job.Rank() == job.Size()-1 {
		size = 32
	}
	if _, err := job.Window(4, size); err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	for _, f := range []func(int) error{c.compare, c.race, c.transfer, c.refused, c.freed} {
		if err := f(n); err != nil {
			return err
		}
		if err := job.Barrier(ctx); err != nil {
			return err
		}
	}
	fmt.Println("whole")
	return job.Finalize(ctx)
}

// compare compares at rank 0, whose group has all ranks but, if there is another one, the last.
func (c *committer) compare(int) error {
	size := max(1, c.job.Size()-1)
	colour := 0
	if c.job.Rank() == size {
		colour = -1
	}
	g, err := margay.Split(c.ctx, c.job, colour, 0)
	if err != nil || g == nil || g.Rank() != 0 {
		return err
	}
	first, last := uint64(10), uint64(9+size)
	for i, k := range []struct {
		comparison margay.Comparison
		value      uint64
		want       bool
	}{
		{margay.Equal, first, size == 1}, {margay.Equal, first + 1, false}, {margay.NotEqual, last + 1, true}, {margay.NotEqual, last, false},
		{margay.Less, last + 1, true}, {margay.Less, last, false}, {margay.LessEqual, last, true}, {margay.LessEqual, last - 1, false},
		{margay.Greater, first - 1, true}, {margay.Greater, first, false}, {margay.GreaterEqual, first, true}, {margay.GreaterEqual, first + 1, false},
	} {
		was := c.word(written)
		got, err := margay.CompareAndWrite(c.ctx, g, 3, compared, k.comparison, k.value, written, uint64(i+1))
		if err != nil || got != k.want {
			return fmt.Errorf("comparison %d: %v, %w", i, got, err)
		}
		want := was
		if got {
			want = uint64(i + 1)
		}
		for rank := range size {
			var b [8]byte
			if err := c.job.Get(c.ctx, rank, 3, written, b[:]); err != nil || binary.LittleEndian.Uint64(b[:]) != want {
				return fmt.Errorf("comparison %d: rank %d has %d, not %d: %w", i, rank, b, want, err)
			}
		}
		if only, err := margay.CompareAndWrite(c.ctx, g, 3, compared, k.comparison, k.value, margay.NoWord, 0); err != nil || only != got {
			return fmt.Errorf("comparison %d alone: %v, %w", i, only, err)
		}
	}
	return nil
}

// race raises a word n times, against the other ranks.
func (c *committer) race(n int) error {
	for won := 0; won < n; {
		was := c.word(raced)
		ok, err := margay.CompareAndWrite(c.ctx, c.job, 3, raced, margay.Equal, was, raced, was+1)
		if err != nil {
			return err
		}
		if ok {
			won++
		}
	}
	if err := c.job.Barrier(c.ctx); err != nil {
		return err
	}
	if got := c.word(raced); got != uint64(n*c.job.Size()) {
		return fmt.Errorf("the word was raised %d times, not %d", got, n*c.job.Size())
	}
	return nil
}

// whole returns an error unless the block is one that a rank has sent: its length in the first 4
// bytes, and then one byte again and again.
func (c *committer) whole() error {
	n := int(binary.LittleEndian.Uint32(c.window[block:]))
	if n > longest || n > 0 && bytes.Count(c.window[block+4:block+n], c.window[block+4:block+5]) != n-4 {
		return fmt.Errorf("the block of %d bytes is torn", n)
	}
	return nil
}

// transfer transfers n blocks, and looks at those that come.
func (c *committer) transfer(n int) error {
	rank, size := c.job.Rank(), c.job.Size()
	for i := range n {
		data := bytes.Repeat([]byte{byte(rank*16 + i + 1)}, 8+(rank*7919+i*104729)%(longest-8))
		binary.LittleEndian.PutUint32(data, uint32(len(data)))
		r, err := margay.XferAndSignal(c.job, 3, block, data, arrived, complete)
		if err != nil {
			return err
		}
		for done := false; !done; {
			if done, err = c.job.EventTest(3, complete, uint64(i+1)); err != nil {
				return err
			}
			if err := c.whole(); err != nil {
				return err
			}
		}
		if err := r.Wait(c.ctx); err != nil {
			return err
		}
	}
	if err := c.job.EventWait(c.ctx, 3, arrived, uint64(n*size)); err != nil {
		return err
	}
	last := []uint64{c.word(block), ^c.word(block)}
	if err := margay.AllReduce(c.ctx, c.job, last, last, margay.Max); err != nil {
		return err
	}
	if last[0] != ^last[1] {
		return fmt.Errorf("the ranks have blocks %x and %x", last[0], ^last[1])
	}
	return c.whole()
}

// refused makes operations that one rank or the library refuses.
func (c *committer) refused(int) error {
	r, err := margay.XferAndSignal(c.job, 4, 16, make([]byte, 24), 8, margay.NoEvent)
	if err != nil {
		return err
	}
	if err := r.Wait(c.ctx); !errors.Is(err, margay.ErrWindow) {
		return fmt.Errorf("a transfer that rank %d refuses: %w", c.job.Size()-1, err)
	}
	for _, window := range []int{4, 5} {
		if _, err := margay.CompareAndWrite(c.ctx, c.job, window, 0, margay.Equal, 0, 40, 7); !errors.Is(err, margay.ErrWindow) {
			return fmt.Errorf("a comparison in window %d: %w", window, err)
		}
	}
	if err := c.job.Barrier(c.ctx); err != nil {
		return err
	}
	window, err := c.job.Window(4, 32)
	if err != nil || !bytes.Equal(window, make([]byte, 32)) {
		return fmt.Errorf("refused operations have changed the window to %x, %w", window, err)
	}
	if _, err := margay.XferAndSignal(c.job, 3, 0, nil, margay.NoEvent, 4); !errors.Is(err, margay.ErrWindow) {
		return fmt.Errorf("a local event that is half a word: %w", err)
	}
	return nil
}

// freed makes operations of a group that the last rank, or the first, has freed.
func (c *committer) freed(int) error {
	for _, freed := range []int{c.job.Size() - 1, 0} {
		g, err := margay.Split(c.ctx, c.job, 0, 0)
		if err != nil {
			return err
		}
		if g.Rank() == freed {
			err = g.Free()
		}
		if err := errors.Join(err, c.job.Barrier(c.ctx)); err != nil {
			return err
		}
		if _, err := margay.CompareAndWrite(c.ctx, g, 3, 0, margay.GreaterEqual, 0, 0, 1); !errors.Is(err, margay.ErrFreed) {
			return fmt.Errorf("a comparison of a group that rank %d has freed: %w", freed, err)
		}
		if g.Rank() != freed {
			if err := errors.Join(c.job.Barrier(c.ctx), g.Free()); err != nil {
				return err
			}
		} else if err := c.job.Barrier(c.ctx); err != nil {
			return err
		}
	}
	return nil
}

// giveUp gives operations up before other ranks have agreed.
func giveUp(ctx context.Context, job *margay.Job) error {
	if _, err := job.Window(0, 8); err != nil {
		return err
	}
	for _, most := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
		limited, cancel := context.WithTimeout(ctx, most)
		_, err := margay.CompareAndWrite(limited, job, 0, 0, margay.Equal, 0, 0, 1)
		cancel()
		fmt.Println(err)
		if _, err := job.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
