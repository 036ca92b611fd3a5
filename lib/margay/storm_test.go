package margay_test

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"margay/lib/margay"
)

// storm is a rank of mode storm: random messages of up to 1 MiB to all ranks, random accesses to
// their windows, barriers and all-reduces.
type storm struct {
	*accesses
	own              int
	sent, came       []uint64 // messages, by rank
	total, handled   uint64
	wrong            error
	rounds, accessed int
}

const stormHandler = 3

// stormyWeather is mode storm SEED SECONDS, as the end-to-end tests need it. It prints "playing
// RANK" when messages and accesses have had two seconds to find their ways, then goes on for some
// seconds and prints "whole RANK".
func stormyWeather(ctx context.Context, job *margay.Job, seed, seconds string) error {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	length, err := strconv.Atoi(seconds)
	if err != nil {
		return err
	}
	s := &storm{own: job.Rank(), sent: make([]uint64, job.Size()), came: make([]uint64, job.Size())}
	job.Handle(stormHandler, s.take)
	if s.accesses, err = newAccesses(ctx, job, n); err != nil {
		return err
	}
	if err := s.last(2 * time.Second); err != nil {
		return err
	}
	fmt.Println("playing", job.Rank())
	if err := s.last(time.Duration(length) * time.Second); err != nil {
		return err
	}
	if err := s.compare(); err != nil {
		return err
	}
	fmt.Println("whole", job.Rank(), s.rounds, "rounds", s.total, "messages", s.accessed, "accesses")
	return job.Finalize(ctx)
}

// content returns the bytes of a message, which follow from its source, its target and its number.
// Most messages are short.
func content(source, target int, number uint64) []byte {
	x := scramble(uint64(source)<<48 ^ uint64(target)<<32 ^ number)
	b := make([]byte, x>>32%(1<<min(x%21, x>>8%21)+1))
	for i := range b {
		b[i] = byte(x + uint64(i)*7 + uint64(i)>>8)
	}
	return b
}

// take checks a message: each arrives once, whole, and in the order of sending.
func (s *storm) take(m margay.Message) {
	want := content(m.Source, s.own, s.came[m.Source])
	if m.Args[0] != s.came[m.Source] || string(m.Payload) != string(want) {
		s.wrong = fmt.Errorf("message %d of %d bytes from rank %d, expected message %d of %d", m.Args[0], len(m.Payload), m.Source,
			s.came[m.Source], len(want))
	}
	s.came[m.Source]++
	s.handled++
}

// last plays rounds until this time has passed at all ranks.
func (s *storm) last(d time.Duration) error {
	end := time.Now().Add(d)
	for more := uint64(1); more > 0; s.rounds++ {
		for range 8 {
			if err := s.act(); err != nil {
				return fmt.Errorf("round %d: %w", s.rounds, err)
			}
		}
		if err := s.job.Barrier(s.ctx); err != nil {
			return fmt.Errorf("barrier of round %d: %w", s.rounds, err)
		}
		if s.wrong != nil {
			return s.wrong
		}
		sums := []uint64{s.total, s.handled, 0}
		if time.Now().Before(end) {
			sums[2] = 1
		}
		if err := margay.AllReduce(s.ctx, s.job, sums, sums, margay.Sum); err != nil {
			return fmt.Errorf("all-reduce of round %d: %w", s.rounds, err)
		}
		if sums[0] != sums[1] {
			return fmt.Errorf("round %d: %d messages were sent, %d handled", s.rounds, sums[0], sums[1])
		}
		more = sums[2]
	}
	return nil
}

// act sends a message, or makes an access.
func (s *storm) act() error {
	if s.draw(2) == 0 {
		s.accessed++
		return s.access(s.accessed)
	}
	to := s.draw(s.job.Size())
	number := s.sent[to]
	s.sent[to]++
	s.total++
	return s.job.Send(s.ctx, to, stormHandler, [2]uint64{number}, content(s.job.Rank(), to, number))
}
