package margay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// firstProbe is how long a rank waits for another in a collective operation before it probes
// whether that has ended. It doubles the time with each probe.
const firstProbe = 250 * time.Millisecond

// call makes a collective call. Its number and root are added.
func (j *Job) call(ctx context.Context, root int, c wire.Call, run func(collective.Carrier, collective.Place) error) error {
	j.calling.Lock()
	defer j.calling.Unlock()
	switch {
	case j.finalized.Load():
		return ErrClosed
	case root < 0 || root >= j.Size():
		return fmt.Errorf("margay: %s: there is no rank %d, but ranks 0 to %d", c.Kind, root, j.Size()-1)
	case c.Length > wire.MaxCallLength:
		return fmt.Errorf("margay: %s: %d bytes, at most %d are allowed", c.Kind, c.Length, uint64(wire.MaxCallLength))
	case j.broken != nil:
		return fmt.Errorf("margay: %s: a collective operation has failed before: %w", c.Kind, j.broken)
	}
	j.calls++
	c.Number, c.Root = j.calls, uint32(root)
	if err := run(&carrier{job: j, ctx: ctx, call: c}, collective.Place{Rank: j.Rank(), Size: j.Size(), Root: root}); err != nil {
		j.broken = err
		return fmt.Errorf("margay: %s: %w", c.Kind, err)
	}
	return nil
}

// carrier carries the chunks of a call (collective.Carrier).
type carrier struct {
	job  *Job
	ctx  context.Context
	call wire.Call
}

func (c *carrier) Send(to int, chunk []byte) error {
	j := c.job
	if err := c.await(to, func() bool { return j.streams.HasCredit(to) }); err != nil {
		return err
	}
	j.handling.Lock()
	j.streams.Spend(to)
	j.handling.Unlock()
	return j.send(c.ctx, to, wire.HandlerCollective, c.call.Args(), chunk)
}

func (c *carrier) Receive(from int, buf []byte) error {
	j := c.job
	for len(buf) > 0 {
		if err := c.await(from, func() bool { return j.streams.HasData(from) }); err != nil {
			return err
		}
		j.handling.Lock()
		n, credit, err := j.streams.Take(from, c.call, buf)
		j.handling.Unlock()
		if err != nil {
			return err
		}
		buf = buf[n:]
		if credit > 0 {
			args := wire.Call{Kind: wire.CallCredit, Length: uint64(credit)}.Args()
			if err := j.send(c.ctx, from, wire.HandlerCollective, args, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// await handles messages until done, which is called with Job.handling held, or until ctx ends. In
// between it sends messages that end the job if the other rank has ended.
func (c *carrier) await(rank int, done func() bool) error {
	j, handled := c.job, 0
	locked := func(int) bool {
		j.handling.Lock()
		defer j.handling.Unlock()
		return done()
	}
	if j.awake(c.ctx, locked, &handled) {
		return nil
	}
	for patience := firstProbe; ; patience *= 2 {
		ctx, cancel := context.WithTimeout(c.ctx, patience)
		err := j.wait(ctx, locked)
		cancel()
		switch {
		case err == nil || errors.Is(err, ErrGone) || errors.Is(err, ErrClosed):
			return err
		case c.ctx.Err() != nil:
			return fmt.Errorf("waiting for rank %d: %w", rank, context.Cause(c.ctx))
		}
		if _, err := j.post(rank, wire.HandlerCollective, wire.Call{Kind: wire.CallProbe}.Args(), nil); err != nil {
			return err
		}
	}
}
