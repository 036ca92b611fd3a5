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

// The accesses of mode windows, which lib/c/ctest/testdata/windows.c makes too. Window 0 of each
// rank has a part for each rank, then data from the left neighbour, and then words.
const (
	part    = 4096
	passed  = 5000 // bytes of data
	counted = 10
)

// accesses is a rank's view of its parts.
type accesses struct {
	ctx    context.Context
	job    *margay.Job
	random uint64
	copies [][]byte // of its parts, by rank
	words  int      // offset of the words: data have come, a counter by adding, one by swapping
}

func (a *accesses) draw(n int) int {
	a.random = scramble(a.random)
	return int(a.random % uint64(n))
}

func windows(ctx context.Context, job *margay.Job, seed, count string) error {
	s, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	a, err := newAccesses(ctx, job, s)
	if err != nil {
		return err
	}
	for i := range n {
		if err := a.access(i); err != nil {
			return fmt.Errorf("access %d: %w", i, err)
		}
	}
	for _, f := range []func() error{a.compare, a.count, a.ring, a.wrong, a.started, a.startedEvent} {
		if err := f(); err != nil {
			return err
		}
	}
	fmt.Println("whole")
	return job.Finalize(ctx)
}

// newAccesses makes the window of this rank, and waits for the other ranks' windows.
func newAccesses(ctx context.Context, job *margay.Job, seed uint64) (*accesses, error) {
	a := &accesses{ctx: ctx, job: job, random: seed + uint64(job.Rank()), words: job.Size()*part + (passed+7)/8*8}
	for range job.Size() {
		a.copies = append(a.copies, make([]byte, part))
	}
	if _, err := job.Window(0, a.words+24); err != nil {
		return nil, err
	}
	return a, job.Barrier(ctx)
}

// unharmed makes accesses by datagrams, as the end-to-end tests need it: it prints "playing RANK"
// when none passes the node kernel of this node any more, and goes on for some seconds.
func unharmed(ctx context.Context, job *margay.Job, seed, seconds string) error {
	s, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(seconds)
	if err != nil {
		return err
	}
	a, err := newAccesses(ctx, job, s)
	if err != nil {
		return err
	}
	for rank := range job.Size() {
		for job.NodeOf(rank) != job.Node() && !job.Direct(rank) {
			if err := job.Get(ctx, rank, 0, 0, make([]byte, 1)); err != nil {
				return err
			}
		}
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	fmt.Println("playing", job.Rank())
	for i, end := 0, time.Now().Add(time.Duration(n)*time.Second); time.Now().Before(end); i++ {
		if err := a.access(i); err != nil {
			return fmt.Errorf("access %d: %w", i, err)
		}
	}
	for _, f := range []func() error{a.compare, a.count} {
		if err := f(); err != nil {
			return err
		}
	}
	fmt.Println("whole")
	return job.Finalize(ctx)
}

// access makes a random access to a part of this rank.
func (a *accesses) access(i int) error {
	to, own := a.draw(a.job.Size()), a.job.Rank()*part
	mine := a.copies[to]
	if kind := a.draw(4); kind < 2 {
		offset := a.draw(part)
		length := a.draw(part - offset + 1)
		if kind == 0 {
			for k := range mine[offset : offset+length] {
				mine[offset+k] = byte(i + k)
			}
			return a.job.Put(a.ctx, to, 0, own+offset, mine[offset:offset+length])
		}
		got := make([]byte, length)
		if err := a.job.Get(a.ctx, to, 0, own+offset, got); err != nil {
			return err
		}
		return same(got, mine[offset:offset+length])
	}
	offset := a.draw(part/8) * 8
	was := binary.LittleEndian.Uint64(mine[offset:])
	value := scramble(a.random)
	expected := was + uint64(a.draw(2)) // or another one
	var old uint64
	var err error
	switch {
	case a.draw(2) == 0:
		old, err = a.job.FetchAdd(a.ctx, to, 0, own+offset, value)
		value += was
	default:
		old, err = a.job.CompareSwap(a.ctx, to, 0, own+offset, expected, value)
		if expected != was {
			value = was
		}
	}
	binary.LittleEndian.PutUint64(mine[offset:], value)
	if err == nil && old != was {
		err = fmt.Errorf("there was %x before, not %x", old, was)
	}
	return err
}

// compare compares all parts of this rank with what it has written.
func (a *accesses) compare() error {
	if err := a.job.Quiet(a.ctx); err != nil {
		return err
	}
	for rank, want := range a.copies {
		got := make([]byte, part)
		if err := a.job.Get(a.ctx, rank, 0, a.job.Rank()*part, got); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("the part in the window of rank %d is another one", rank)
		}
	}
	return nil
}

// count counts in two words of rank 0, with all ranks.
func (a *accesses) count() error {
	for range counted {
		if _, err := a.job.FetchAdd(a.ctx, 0, 0, a.words+8, 1); err != nil {
			return err
		}
		for expected := uint64(0); ; {
			old, err := a.job.CompareSwap(a.ctx, 0, 0, a.words+16, expected, expected+1)
			if err != nil {
				return err
			}
			if old == expected {
				break
			}
			expected = old
		}
	}
	if a.job.Rank() != 0 {
		return nil
	}
	for _, event := range []int{a.words + 8, a.words + 16} {
		if err := a.job.EventWait(a.ctx, 0, event, uint64(counted*a.job.Size())); err != nil {
			return err
		}
		if more, err := a.job.EventTest(0, event, uint64(counted*a.job.Size())+1); more || err != nil {
			return fmt.Errorf("the word has counted too far: %w", err)
		}
	}
	return nil
}

// ring passes data to the right, with events.
func (a *accesses) ring() error {
	window, err := a.job.Window(0, a.words+24)
	if err != nil {
		return err
	}
	at := a.job.Size() * part
	right := (a.job.Rank() + 1) % a.job.Size()
	for round := range 10 {
		data := bytes.Repeat([]byte{byte(round)}, passed)
		if err := a.job.PutEvent(a.ctx, right, 0, at, data, a.words); err != nil {
			return err
		}
		if err := a.job.EventWait(a.ctx, 0, a.words, uint64(round+1)); err != nil {
			return err
		}
		if err := same(window[at:][:passed], data); err != nil {
			return err
		}
		if err := a.job.Barrier(a.ctx); err != nil {
			return err
		}
	}
	return nil
}

// wrong makes accesses that must fail.
func (a *accesses) wrong() error {
	right := (a.job.Rank() + 1) % a.job.Size()
	if err := a.job.Get(a.ctx, right, 9, 0, make([]byte, 1)); !errors.Is(err, margay.ErrWindow) {
		return fmt.Errorf("a get from no window: %w", err)
	}
	if _, err := a.job.FetchAdd(a.ctx, right, 0, 4, 1); !errors.Is(err, margay.ErrWindow) {
		return fmt.Errorf("an add to half a word: %w", err)
	}
	err := a.job.Put(a.ctx, right, 0, a.words+23, make([]byte, 2))
	if err == nil {
		err = a.job.Quiet(a.ctx)
	}
	if !errors.Is(err, margay.ErrWindow) {
		return fmt.Errorf("a put beyond a window: %w", err)
	}
	for _, f := range []func(context.Context) error{a.job.Quiet, a.job.Barrier} {
		if err := f(a.ctx); err != nil { // it was reported
			return err
		}
	}
	return a.late(right)
}

// late makes a put whose refusal is the error of a barrier, unless it is known at once.
func (a *accesses) late(right int) error {
	put := a.job.Put(a.ctx, right, 0, a.words+23, make([]byte, 2))
	met := a.job.Barrier(a.ctx)
	if (put == nil) == (met == nil) || !errors.Is(errors.Join(put, met), margay.ErrWindow) {
		return fmt.Errorf("a put beyond a window: %w; the barrier after it: %w", put, met)
	}
	if err := a.job.Barrier(a.ctx); err != nil {
		return err
	}
	return a.job.Quiet(a.ctx)
}

// refused prints the errors of calls about refused puts.
func refused(ctx context.Context, job *margay.Job) error {
	if err := job.Put(ctx, 0, 9, 0, make([]byte, 1)); err != nil {
		return err
	}
	fmt.Println(job.Barrier(ctx))
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if err := job.Put(ctx, 0, 9, 0, make([]byte, 1)); err != nil {
		return err
	}
	fmt.Println(job.Finalize(ctx))
	fmt.Println(job.Barrier(ctx))
	return nil
}
