package margay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// calls is the collective operations of a rank. Job.handling guards it.
type calls struct {
	groups map[wire.GroupID]*collective.Group // in which this rank is
	busy   []*collective.Group                // those with calls under way
	vain   uint                               // looks at them, one after the other, that have advanced none
	drawn  uint16                             // number that was drawn last for a new group
	probed bool                               // another rank waits for this one
	asked  bool                               // one wants to know where this one is
}

// looks is the number of vain looks at calls after which time is taken, to probe ranks that have
// been awaited for long.
const looks = 256

// courier posts messages of collective operations (collective.Sender). Job.handling is held.
type courier struct{ *Job }

func (c courier) Post(rank int, args [2]uint64, payload []byte) (bool, error) {
	return c.postSoon(rank, wire.HandlerCollective, args, payload)
}

// postSoon is post, but if there is no room, this rank is woken when there is.
func (j *Job) postSoon(rank, handler int, args [2]uint64, payload []byte) (bool, error) {
	for {
		ok, err := j.post(rank, handler, args, payload)
		if ok || err != nil || j.awaitsRoom(rank, uint16(handler), len(payload)) {
			return ok, err
		}
	}
}

// collected takes a message of wire.HandlerCollective. A group that this rank does not have, it has
// freed. The caller holds Job.handling.
func (j *Job) collected(r *wire.Record) error {
	if int(r.Peer) >= j.Size() {
		return fmt.Errorf("%w: it is from rank %d of %d", wire.ErrChunk, r.Peer, j.Size())
	}
	c, err := wire.ParseCall(r.Args, len(r.Payload), j.Size())
	if err != nil {
		return err
	}
	j.calls.probed = j.calls.probed || c.Kind == wire.CallProbe
	j.calls.asked = j.calls.asked || c.Kind == wire.CallProbe || c.Kind == wire.CallWhere
	if g := j.calls.groups[c.Group]; g != nil {
		return g.Arrive(int(r.Peer), c, r.Payload)
	}
	return nil
}

// advanceCalls advances operations of groups, and reports whether it has advanced any. The caller
// holds Job.handling.
func (j *Job) advanceCalls() (some bool) {
	if j.calls.asked {
		j.answerAll()
	}
	if len(j.calls.busy) == 0 && !j.desk.Busy() {
		return false
	}
	for _, g := range j.calls.busy {
		some = g.Advance(courier{j}) || some
	}
	some = j.desk.Advance(clerk{j}) || some
	j.calls.busy = slices.DeleteFunc(j.calls.busy, func(g *collective.Group) bool { return !g.Busy() })
	if some {
		j.calls.vain = 0
	} else if j.calls.vain++; j.calls.vain%looks == 0 || j.calls.probed {
		j.calls.probed = false
		j.probe() // the rank that this one waits for
	}
	return some
}

// answerAll reports where this rank is to those that have asked. The caller holds Job.handling.
func (j *Job) answerAll() {
	j.calls.asked = false
	for _, g := range j.calls.groups {
		j.calls.asked = g.Answer(courier{j}, j.meets.Load()) || j.calls.asked
	}
}

// early describes a rank that is in a collective operation that this one has not started, "" if
// none is known.
func (j *Job) early() string {
	j.handling.Lock()
	defer j.handling.Unlock()
	for _, g := range j.calls.groups {
		if w, ok := g.Early(); ok {
			return w.String()
		}
	}
	return ""
}

// probe probes the ranks that operations of groups have awaited for long, and returns the time
// until it must be called again, 0 if none is under way. The caller holds Job.handling.
func (j *Job) probe() (after time.Duration) {
	now := j.mirrors.now()
	if due := j.desk.Due(now, clerk{j}); due != 0 {
		after = due - now
	}
	for _, g := range j.calls.busy {
		if !g.Busy() {
			continue
		}
		due, err := g.Due(now, courier{j})
		if err != nil {
			g.Break(err)
		}
		if left := due - now; after == 0 || left < after {
			after = left
		}
	}
	return after
}

// waitCalls is wait for a condition of operations of groups, which is called with Job.handling
// held. In between it probes the ranks that they await.
func (j *Job) waitCalls(ctx context.Context, done func() bool) error {
	locked, handled := j.locked(done), 0
	if j.awake(ctx, locked, &handled) {
		return nil
	}
	for {
		j.handling.Lock()
		after := j.probe()
		j.handling.Unlock()
		if after == 0 {
			return j.wait(ctx, locked)
		}
		limited, cancel := context.WithTimeout(ctx, after)
		err := j.wait(limited, locked)
		cancel()
		switch {
		case err == nil || errors.Is(err, ErrGone) || errors.Is(err, ErrClosed):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

// begin starts a call of a group, and reports whether it is over.
func (j *Job) begin(g *collective.Group, s collective.Spec) (c *collective.Call, over bool, err error) {
	switch {
	case s.Root < 0 || s.Root >= g.Size():
		return nil, false, fmt.Errorf("margay: %s: there is no rank %d, but ranks 0 to %d", s.Kind, s.Root, g.Size()-1)
	case len(s.In) > wire.MaxCallLength || len(s.Out) > wire.MaxCallLength:
		return nil, false, fmt.Errorf("margay: %s: %d bytes, at most %d are allowed", s.Kind, max(len(s.In), len(s.Out)), uint64(wire.MaxCallLength))
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	switch {
	case j.finalized.Load():
		return nil, false, ErrClosed
	case j.calls.groups[g.ID()] != g:
		return nil, false, fmt.Errorf("margay: %s: %w", s.Kind, ErrFreed)
	}
	c = g.Start(s)
	g.Advance(courier{j})
	if g.Busy() && !slices.Contains(j.calls.busy, g) {
		j.calls.busy = append(j.calls.busy, g)
	}
	return c, c.Over(), nil
}

// callError is the error of a call.
func callError(kind wire.CallKind, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("margay: %s: %w", kind, err)
}

// call makes a call.
func call(ctx context.Context, on Ranks, s collective.Spec) error {
	j, g := on.team()
	c, over, err := j.begin(g, s)
	switch {
	case err != nil:
		return err
	case over:
		return callError(s.Kind, c.Err())
	}
	err = j.waitCalls(ctx, c.Over)
	j.handling.Lock()
	defer j.handling.Unlock()
	if err != nil && !c.Over() {
		if ctx.Err() != nil {
			err = fmt.Errorf("waiting for rank %d%s: %w", g.Awaited(), g.Apart(), err)
		}
		g.Break(err)
	}
	return callError(s.Kind, c.Err())
}

// start starts a call and returns its request.
func start(on Ranks, s collective.Spec) (*Request, error) {
	j, g := on.team()
	r := &Request{job: j, group: g}
	if err := j.admit(r); err != nil {
		return nil, err
	}
	c, _, err := j.begin(g, s)
	if err != nil {
		r.Abandon()
		return nil, err
	}
	r.call, r.name = c, s.Kind
	return r, nil
}
