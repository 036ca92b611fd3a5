package margay

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// barriers is this rank's part in the job's barriers (package wire, "The board").
type barriers struct {
	number   uint64               // of the last barrier that was tried on the board; guarded by Job.meeting
	turns    wire.Turns           // the same
	exchange *collective.Exchange // with other nodes, nil: this rank is not its node's leader; guarded by Job.handling
}

// initBarriers prepares the rank for barriers.
func (j *Job) initBarriers() {
	j.barriers.turns = wire.NewTurns(j.Nodes())
	if j.header.Meets && j.Nodes() > 1 && j.LocalRank() == 0 {
		j.barriers.exchange = collective.NewExchange(wire.Leaders(j.Size(), j.area.NodeOf), j.header.Rank)
	}
}

// Barrier handles messages until every rank of the job has called it as often as this one. When it
// returns, all messages that any rank sent to this one before entering the barrier have been
// handled, unless ctx has ended. The job can then no longer use barriers: other ranks may get
// ErrAbandoned from the same barrier. Goroutines that call Barrier at a time enter one after the
// other.
//
// Barrier also returns an error, once, if a put of this rank was refused: then it was carried out,
// and the job can use barriers as before.
func (j *Job) Barrier(ctx context.Context) error {
	if err := j.synchronise(ctx); err != nil {
		return err
	}
	return j.refused()
}

// synchronise carries out a barrier. Afterwards it is known which puts before it were refused.
func (j *Job) synchronise(ctx context.Context) error {
	j.meeting.Lock()
	defer j.meeting.Unlock()
	if j.finalized.Load() {
		return ErrClosed
	}
	if j.abandoned.Load() {
		return ErrAbandoned
	}
	if err := j.drain(ctx); err != nil {
		return err
	}
	if err := j.settle(ctx); err != nil {
		return err
	}
	answered := j.unanswered()
	err := j.pass(ctx)
	if err == nil {
		err = j.catchUp(ctx)
	}
	if err == nil && answered != nil {
		err = j.waitRemote(ctx, answered)
	}
	if err != nil {
		j.abandoned.Store(true)
	}
	return err
}

// pass enters a barrier, on the boards if it can be completed there, and leaves it. The caller
// holds Job.meeting.
func (j *Job) pass(ctx context.Context) error {
	j.meets.Store(true)
	defer j.meets.Store(false)
	if (j.Nodes() == 1 || j.header.Meets) && j.barriers.turns.Try() {
		v, err := j.meet(ctx)
		switch {
		case err != nil:
			return err
		case v == wire.OutcomeAbandoned:
			return &refusal{ErrAbandoned, "margay: another rank has abandoned this barrier: the job has no barriers any more"}
		}
		j.barriers.turns.Judge(v == wire.OutcomeQuiet)
		if v == wire.OutcomeQuiet {
			return nil
		}
	}
	return j.passKernels(ctx)
}

// passKernels is pass in a barrier of the node kernels.
func (j *Job) passKernels(ctx context.Context) error {
	j.sending.Lock()
	passed := j.out.Passed()
	j.sending.Unlock()
	number := j.area.Entered().Add(1)
	// The node kernel polls for it when awake, and must be woken when asleep.
	if j.area.SendWaiting().Load() != 0 {
		j.ring()
	}
	if err := j.wait(ctx, func(int) bool { return j.area.Released().Load() >= number }); err != nil {
		return j.overdue(ctx, err, "a rank has")
	}
	j.sending.Lock()
	defer j.sending.Unlock()
	j.out.Clear(passed)
	return nil
}

// catchUp handles the messages that have come. While one waits for others that were sent before it
// and have not arrived, those behind it wait, too.
func (j *Job) catchUp(ctx context.Context) error {
	for j.progress(1); j.stalled.Load(); {
		if err := j.wait(ctx, func(int) bool { return !j.stalled.Load() }); err != nil {
			return err
		}
	}
	return nil
}

// meet enters a barrier on the board and waits for the outcome about it: OutcomeLoud if all ranks
// must enter one of the node kernels. The caller holds Job.meeting.
func (j *Job) meet(ctx context.Context) (v wire.Outcome, err error) {
	j.barriers.number++
	number := j.barriers.number
	j.enter(number)
	decide := j.look(number)
	err = j.wait(ctx, func(int) bool {
		v = decide()
		return v != 0
	})
	if err == nil {
		return v, nil
	}
	missing := j.missing(number)
	if j.barriers.exchange != nil {
		j.abandonBarrier(number)
	}
	return v, j.overdue(ctx, err, missing)
}

// overdue says which ranks are missing in a barrier that ctx has ended, and which one is in a
// collective operation instead.
func (j *Job) overdue(ctx context.Context, err error, missing string) error {
	if ctx.Err() == nil {
		return err
	}
	if early := j.early(); early != "" {
		return fmt.Errorf("margay: the barrier is not complete: %s not entered it, and %s: %w", missing, early, err)
	}
	return fmt.Errorf("margay: the barrier is not complete: %s not entered it: %w", missing, err)
}

// namedMissing is how many ranks an error names.
const namedMissing = 8

// missing names the ranks of this node that have not entered a barrier on the board.
func (j *Job) missing(number uint64) string {
	var ranks []string
	local := 0
	for rank := range j.Size() {
		if j.NodeOf(rank) != j.Node() {
			continue
		}
		if j.board.Arrived(local, number) == local {
			ranks = append(ranks, strconv.Itoa(rank))
		}
		local++
	}
	switch n := len(ranks); {
	case n == 0 && j.Nodes() == 1: // the last one has just come
		return "a rank has"
	case n == 0:
		return "a rank of another node has"
	case n == 1:
		return "rank " + ranks[0] + " of this node has"
	case n > namedMissing:
		return fmt.Sprintf("ranks %s and %d more of this node have", strings.Join(ranks[:namedMissing], ", "), n-namedMissing)
	}
	return "ranks " + strings.Join(ranks, ", ") + " of this node have"
}

// look returns a function that returns the outcome about a barrier that this rank has entered, 0
// while there is none.
func (j *Job) look(number uint64) func() wire.Outcome {
	arrived := 0
	met := func() bool {
		arrived = j.board.Arrived(arrived, number)
		return arrived == j.LocalSize()
	}
	switch {
	case j.Nodes() == 1:
		return func() wire.Outcome {
			if !met() {
				return 0
			}
			return j.inside(number)
		}
	case j.barriers.exchange == nil:
		return func() wire.Outcome { return j.within(number, j.board.Outcome(number)) }
	}
	return func() wire.Outcome { return j.within(number, j.lead(number, met)) }
}

// bounded reports whether a leader has ended whose part in a barrier is missing.
func (j *Job) bounded(number uint64) bool {
	bound := j.area.Bound().Load()
	return bound != 0 && number >= bound
}

// inside returns the outcome about a barrier that all ranks of this node have entered, as far as
// they know.
func (j *Job) inside(number uint64) wire.Outcome {
	if j.board.Quiet(number) {
		return wire.OutcomeQuiet
	}
	return wire.OutcomeLoud
}

// within returns the outcome v about a barrier, but OutcomeLoud instead of none if a leader has
// ended whose part in it is missing.
func (j *Job) within(number uint64, v wire.Outcome) wire.Outcome {
	if v == 0 && j.bounded(number) {
		return wire.OutcomeLoud
	}
	return v
}

// lead advances the exchange about a barrier when met reports that all ranks of this node have
// entered it, and returns the outcome, 0 while there is none.
func (j *Job) lead(number uint64, met func() bool) wire.Outcome {
	j.handling.Lock()
	defer j.handling.Unlock()
	e := j.barriers.exchange
	if e.Begun() < number {
		if !met() || j.bounded(number) {
			return 0
		}
		e.Begin(number, j.inside(number), j.area.Path().Load()&wire.PathStrewn != 0)
	}
	return j.decide()
}

// abandonBarrier sends what the other leaders await of this one, so that they do not wait for it.
func (j *Job) abandonBarrier(number uint64) {
	j.handling.Lock()
	defer j.handling.Unlock()
	j.barriers.exchange.Abandon(number)
	j.decide()
}

// decide sends the notes that are due, and publishes and returns the outcome, 0 while there is
// none. The caller holds Job.handling.
func (j *Job) decide() wire.Outcome {
	e := j.barriers.exchange
	for {
		to, note, ok := e.Next()
		if !ok {
			break
		}
		sent, err := j.note(int(to), note)
		switch {
		case err != nil || !sent && j.awaitsRoom(int(to), wire.HandlerBarrier, 0):
			return 0
		case sent:
			e.Sent()
		}
	}
	v, ok := e.Decided()
	if !ok {
		return 0
	}
	j.sending.Lock()
	defer j.sending.Unlock()
	j.board.Decide(e.Begun(), v)
	j.wakeNode()
	return v
}

// note sends a note if there is room. A leader that has ended needs none.
func (j *Job) note(to int, n wire.Note) (sent bool, err error) {
	j.sending.Lock()
	ended := j.out.Ended(to)
	j.sending.Unlock()
	if ended {
		return true, nil
	}
	return j.post(to, wire.HandlerBarrier, n.Args(), nil)
}

// enter enters a barrier on the board. The last rank to enter wakes those that wait for that.
func (j *Job) enter(number uint64) {
	j.sending.Lock()
	defer j.sending.Unlock()
	j.board.Enter(j.LocalRank(), number, j.out.Quiet())
	switch {
	case j.board.Arrived(0, number) < j.LocalSize():
	case j.Nodes() == 1:
		j.wakeNode()
	case j.LocalRank() != 0 && j.board.Claim(0):
		j.wake(0)
	}
}

// wakeNode wakes the ranks of this node that sleep. The caller holds Job.sending.
func (j *Job) wakeNode() {
	for local := range j.LocalSize() {
		if local != j.LocalRank() && j.board.Claim(local) {
			j.wake(local)
		}
	}
}
