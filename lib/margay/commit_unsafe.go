package margay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
	"margay/lib/commit"
)

// Operations on the windows of a group
//
// XferAndSignal and CompareAndWrite, with EventTest and EventWait, are the three primitives of
// STORM. An operation changes the windows of all ranks of a group, or of none. The calling rank is
// one of them. Operations of a group are carried out one after the other, in one order at all of
// its ranks; nothing orders them with operations of other groups, puts, and stores of the windows'
// own ranks.
//
// A rank takes part in calls of this package that poll or wait, so its window changes nowhere else:
// a goroutine that is the only one of its rank to use this package sees all of a block or nothing
// of it. Other goroutines, and gets of other ranks, may see a part; wait for the event. For some
// time, some ranks have the new value and others do not. When the operation is complete, all have
// it. So the operations are linearisable, and loads are sequentially consistent with them: no rank
// sees writes in another order.
//
// If a rank refuses the operation, since it has no such window or the place is not all in it, or
// the caller gives up before all ranks have agreed, no window changes. If a rank or a node dies in
// the middle, the job ends. Until it has ended, the other ranks see the change at all of them or at
// none, unless the caller dies, or a node, while the decision is being sent.

// NoEvent and NoWord are the offsets of no event and no word.
const (
	NoEvent = -1
	NoWord  = -1
)

// Comparison is how CompareAndWrite compares words, as unsigned numbers.
type Comparison uint8

// The comparisons.
const (
	Equal        = Comparison(wire.Equal)
	NotEqual     = Comparison(wire.NotEqual)
	Less         = Comparison(wire.Less)
	LessEqual    = Comparison(wire.LessEqual)
	Greater      = Comparison(wire.Greater)
	GreaterEqual = Comparison(wire.GreaterEqual)
)

// XferAndSignal starts to copy data to the same place in a window of all ranks of on, this one
// among them. When the data are there, it adds 1 to the event at the offset remote of each of these
// windows, and when they are there at all ranks, to the event at the offset local of this rank's;
// NoEvent: none. If it fails, no data are copied and no event counts; the request's error says why.
// A request that is abandoned may take effect, at all ranks, or not.
func XferAndSignal(on Ranks, window, offset int, data []byte, remote, local int) (*Request, error) {
	j, team := on.team()
	op := wire.CommitOp{Value: uint64(len(data)), Second: offsetOf(remote)}
	r := &Request{job: j, group: team, place: place{j.Rank(), window, offset}}
	if local != NoEvent {
		if _, err := j.nearWord(place{j.Rank(), window, local}); err != nil {
			return nil, fmt.Errorf("margay: xfer and signal: the local event: %w", err)
		}
	}
	if err := j.admit(r); err != nil {
		return nil, err
	}
	c, err := j.commit(team, r.place, remote, op, data, offsetOf(local))
	if err != nil {
		r.Abandon()
		return nil, fmt.Errorf("margay: xfer and signal: %w", err)
	}
	r.xfer = c
	return r, nil
}

// CompareAndWrite compares the uint64 at an offset of a window, a multiple of 8, of all ranks of on
// with value: word <comparison> value. If that is true at all of them, it stores word at the offset
// write of all of these windows, NoWord: nowhere, and reports true. If ctx ends before all ranks
// have agreed, nothing is stored.
func CompareAndWrite(ctx context.Context, on Ranks, window, offset int, c Comparison, value uint64, write int, word uint64) (bool, error) {
	j, team := on.team()
	if c < Equal || c > GreaterEqual {
		return false, fmt.Errorf("margay: compare and write: there is no comparison %d", c)
	}
	p := place{j.Rank(), window, offset}
	op := wire.CommitOp{Compare: wire.Comparison(c), Value: value, Second: offsetOf(write), Word: word}
	call, err := j.commit(team, p, write, op, nil, wire.NoOffset)
	if err != nil {
		return false, fmt.Errorf("margay: compare and write: %w", err)
	}
	if err := j.awaitCommit(ctx, team, call); err != nil {
		return false, fmt.Errorf("margay: compare and write: %w", err)
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	if status, _ := call.Status(); status == wire.CommitFalse {
		return false, nil
	}
	err = commitError("compare and write", call, p)
	return err == nil, err
}

// offsetOf returns an offset as messages have it.
func offsetOf(offset int) uint64 {
	if offset < 0 {
		return wire.NoOffset
	}
	return uint64(offset)
}

// commit starts an operation at a place of a window of all ranks, whose second offset is second.
func (j *Job) commit(team *collective.Group, p place, second int, op wire.CommitOp, data []byte, local uint64) (*commit.Call, error) {
	if err := j.checkPlace(p); err != nil {
		return nil, err
	}
	if p.offset < 0 || second < -1 {
		return nil, fmt.Errorf("there are no offsets %d and %d", p.offset, second)
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	switch {
	case j.finalized.Load():
		return nil, ErrClosed
	case j.calls.groups[team.ID()] != team:
		return nil, ErrFreed
	}
	op.Window, op.Offset = uint8(p.window), uint64(p.offset)
	c := j.desk.Start(team, op, data, local)
	if j.desk.Advance(clerk{j}) {
		j.announce()
	}
	return c, nil
}

// awaitCommit waits for an operation. If ctx ends before, the operation is abandoned.
func (j *Job) awaitCommit(ctx context.Context, team *collective.Group, c *commit.Call) error {
	j.handling.Lock()
	over := c.Over()
	j.handling.Unlock()
	if over {
		return nil
	}
	err := j.waitCalls(ctx, c.Over)
	if err == nil {
		return nil
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	if c.Over() {
		return nil
	}
	decided := j.desk.Abandon(team, c)
	if j.desk.Advance(clerk{j}) { // a goroutine that sleeps would not send it
		j.announce()
	}
	if decided {
		return fmt.Errorf("%w; it takes effect at all ranks", err)
	}
	return fmt.Errorf("%w; it takes effect at no rank", err)
}

// commitError is the error of an operation that is over. p is its place at this rank.
func commitError(name string, c *commit.Call, p place) error {
	status, rank := c.Status()
	err := c.Err()
	switch {
	case err != nil:
	case status == wire.CommitNoWindow:
		err = fmt.Errorf("window %d of rank %d: %w: %s", p.window, rank, ErrWindow, reasons[wire.RemoteNoWindow])
	case status == wire.CommitBeyond:
		err = fmt.Errorf("window %d of rank %d at %d: %w: %s", p.window, rank, p.offset, ErrWindow, reasons[wire.RemoteOutside])
	case status == wire.CommitNoMemory:
		err = fmt.Errorf("rank %d has no memory for the data", rank)
	case status == wire.CommitFreed:
		err = fmt.Errorf("rank %d: %w", rank, ErrFreed)
	case status == wire.CommitAbandoned:
		err = errors.New("the request was abandoned")
	default:
		return nil
	}
	return fmt.Errorf("margay: %s: %w", name, err)
}

// settleCommits waits until no operation of this rank is under way, so that none of its messages
// comes to a rank that is finalized.
func (j *Job) settleCommits(ctx context.Context) error {
	j.handling.Lock()
	settled := j.finalized.Load() || j.desk.Settled()
	j.handling.Unlock()
	if settled {
		return nil
	}
	return j.waitCalls(ctx, j.desk.Settled)
}

// clerk posts messages of operations on the windows of a group (commit.Sender). Job.handling is
// held.
type clerk struct{ *Job }

func (c clerk) Post(rank int, args [2]uint64, payload []byte) (bool, error) {
	return c.postSoon(rank, wire.HandlerCommit, args, payload)
}

func (c clerk) Probe(rank int) error {
	_, err := c.post(rank, wire.HandlerCollective, wire.Call{Kind: wire.CallProbe}.Args(), nil)
	return err
}

// committed takes a message of wire.HandlerCommit. The caller holds Job.handling.
func (j *Job) committed(r *wire.Record) error {
	m, err := wire.ParseCommit(r.Args, len(r.Payload))
	if err != nil {
		return err
	}
	if int(r.Peer) >= j.Size() {
		return fmt.Errorf("%w: it is from rank %d of %d", wire.ErrCommit, r.Peer, j.Size())
	}
	return j.desk.Arrive(int(r.Peer), m, r.Payload)
}

// ownWindows is the windows of this rank (commit.Memory). Job.handling is held.
type ownWindows struct{ *Job }

func (w ownWindows) memory(number uint8) []byte {
	memory, err := w.mapWindow(window{int(number), w.Rank()}, 0)
	if err != nil {
		return nil
	}
	return memory
}

func (w ownWindows) word(number uint8, offset uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&w.memory(number)[offset]))
}

func (w ownWindows) Prepare(op *wire.CommitOp) wire.CommitStatus {
	memory := w.memory(op.Window)
	if memory == nil {
		return wire.CommitNoWindow
	}
	if status := op.Within(len(memory)); status != wire.CommitOK {
		return status
	}
	if op.Compare != 0 && !op.Compare.Holds(w.word(op.Window, op.Offset).Load(), op.Value) {
		return wire.CommitFalse
	}
	return wire.CommitOK
}

func (w ownWindows) Apply(op *wire.CommitOp, data []byte) {
	copy(w.memory(op.Window)[op.Offset:], data)
	switch {
	case op.Second == wire.NoOffset:
	case op.Compare == 0:
		w.Count(op.Window, op.Second)
	default:
		w.word(op.Window, op.Second).Store(op.Word)
	}
}

func (w ownWindows) Count(number uint8, offset uint64) { w.word(number, offset).Add(1) }
