package margay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
	"margay/lib/commit"
)

// MaxRequests is how many requests may be outstanding.
const MaxRequests = 256

// errAbandoned is why a collective operation fails behind one that was abandoned.
var errAbandoned = errors.New("a request of a collective operation was abandoned")

// Request is an operation that was started: a collective one (StartBroadcast and so on), one on the
// windows of a group (XferAndSignal), or one on a window, by StartPut, StartPutEvent, StartGet,
// StartFetchAdd or StartCompareSwap. The latter never wait. They fail at once for wrong arguments,
// for a refusal of a window of this node, and with ErrRequests. Operations on one rank take effect
// in the order in which they were started, with or without a request. Every call of this package
// that polls or waits advances them. Barrier sends all that were started before it, so it completes
// started puts as it completes Put.
//
// Until the request is complete, its memory belongs to the library: the source of a put must not
// be changed, and the memory for a get or an old value must not be used. A put with a request is
// complete when it has taken effect at its rank (remote completion), and a refusal is the error
// of its request, not of Quiet or Barrier.
//
// A request is outstanding until Test, Wait, WaitAll or WaitAny has found it complete, or until
// Abandon. A wait that its context ends leaves it outstanding. Wait before Finalize. A Request is
// safe for concurrent use; handlers must not use it.
type Request struct {
	job     *Job
	answers *operation // own, or remote.puts
	own     operation
	queued  bool // in the queue: not all of it is sent
	counted bool // it is outstanding

	// Of a collective operation, or of XferAndSignal.
	group *collective.Group
	xfer  *commit.Call     // nil: the request is of another one
	call  *collective.Call // nil: the request is of another one
	name  wire.CallKind

	// What the next message covers. The goroutine that starts the request owns it, and then
	// Job.handling guards it.
	place  place
	kind   wire.RemoteKind
	rest   []byte    // data to put, room for data to get, or words
	values [2]uint64 // of an atomic access
	old    *uint64   // for the word that was there
	counts bool      // an event is counted when all data are sent
	event  int       // its offset
}

// StartPut starts a Put.
func (j *Job) StartPut(rank, window, offset int, data []byte) (*Request, error) {
	return j.startRequest(&Request{place: place{rank, window, offset}, kind: wire.RemotePut, rest: data})
}

// StartPutEvent starts a PutEvent.
func (j *Job) StartPutEvent(rank, window, offset int, data []byte, event int) (*Request, error) {
	return j.startRequest(&Request{place: place{rank, window, offset}, kind: wire.RemotePut, rest: data, counts: true, event: event})
}

// StartGet starts a Get.
func (j *Job) StartGet(rank, window, offset int, data []byte) (*Request, error) {
	return j.startRequest(&Request{place: place{rank, window, offset}, kind: wire.RemoteGet, rest: data})
}

// StartFetchAdd starts a FetchAdd, which stores what was there before in *old unless that is nil.
func (j *Job) StartFetchAdd(rank, window, offset int, value uint64, old *uint64) (*Request, error) {
	return j.startRequest(&Request{place: place{rank, window, offset}, kind: wire.RemoteAdd, values: [2]uint64{value}, old: old})
}

// StartCompareSwap starts a CompareSwap, which stores what was there before in *old unless that is
// nil.
func (j *Job) StartCompareSwap(rank, window, offset int, expected, value uint64, old *uint64) (*Request, error) {
	return j.startRequest(&Request{place: place{rank, window, offset}, kind: wire.RemoteSwap, values: [2]uint64{expected, value}, old: old})
}

// words returns the payload of an atomic access.
func words(kind wire.RemoteKind, values [2]uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, values[0])
	if kind == wire.RemoteSwap {
		b = binary.LittleEndian.AppendUint64(b, values[1])
	}
	return b
}

// startRequest starts a request of the application.
func (j *Job) startRequest(r *Request) (*Request, error) {
	r.job, r.answers = j, &r.own
	if err := j.admit(r); err != nil {
		return nil, err
	}
	if err := j.start(r); err != nil {
		r.Abandon()
		return nil, err
	}
	return r, nil
}

// admit counts a request, unless there are too many.
func (j *Job) admit(r *Request) error {
	j.handling.Lock()
	defer j.handling.Unlock()
	if j.remote.outstanding >= MaxRequests {
		return fmt.Errorf("margay: %w", ErrRequests)
	}
	j.remote.outstanding++
	r.counted = true
	return nil
}

// start starts a request, or fails. A request on a window of this node is then complete.
func (j *Job) start(r *Request) error {
	if err := j.checkAccess(r); err != nil {
		return err
	}
	if j.isNear(r.place) {
		return j.accessNear(r)
	}
	j.enqueue(r)
	return nil
}

// checkAccess returns an error if the arguments of a request are wrong.
func (j *Job) checkAccess(r *Request) error {
	if err := j.checkPlace(r.place); err != nil {
		return err
	}
	word := r.place
	if r.counts {
		word.offset = r.event
	}
	if (r.counts || r.kind.Atomic()) && word.offset%8 != 0 {
		return word.refused(wire.RemoteOutside)
	}
	return nil
}

// isNear reports whether a place is in a window of this node.
func (j *Job) isNear(p place) bool { return j.NodeOf(p.rank) == j.Node() }

// enqueue starts a request on a window of another node.
func (j *Job) enqueue(r *Request) {
	if r.kind.Atomic() {
		r.rest = words(r.kind, r.values)
	}
	if len(r.rest) == 0 && !r.countEvent() {
		return
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	r.queued = true
	j.remote.queue = append(j.remote.queue, r)
	j.advance()
}

// accessNear carries out a request on a window of this node.
func (j *Job) accessNear(r *Request) error {
	if r.kind.Atomic() {
		old, err := j.accessWord(r.kind, r.place, r.values)
		if err == nil && r.old != nil {
			*r.old = old
		}
		return err
	}
	var word *atomic.Uint64
	if r.counts {
		var err error
		if word, err = j.nearWord(place{r.place.rank, r.place.window, r.event}); err != nil {
			return err
		}
	}
	b, err := j.near(r.place, len(r.rest))
	switch {
	case err != nil:
		return err
	case r.kind == wire.RemoteGet:
		copy(r.rest, b)
	default:
		copy(b, r.rest)
	}
	if word != nil {
		word.Add(1)
		j.wakeRank(r.place.rank)
	}
	return nil
}

// accessWord makes an atomic access to a window of this node.
func (j *Job) accessWord(kind wire.RemoteKind, p place, values [2]uint64) (old uint64, err error) {
	word, err := j.nearWord(p)
	if err != nil {
		return 0, err
	}
	if kind == wire.RemoteAdd {
		old = word.Add(values[0]) - values[0]
	} else {
		for old = values[0]; old == values[0] && !word.CompareAndSwap(values[0], values[1]); {
			old = word.Load()
		}
	}
	j.wakeRank(p.rank)
	return old, nil
}

// countEvent replaces the data, which are sent, by the counting of the event, and reports whether
// there is an event.
func (r *Request) countEvent() bool {
	if !r.counts {
		return false
	}
	r.counts, r.kind, r.place.offset = false, wire.RemoteAdd, r.event
	r.rest = words(r.kind, [2]uint64{1})
	return true
}

// flight returns the flight of a message about a piece of rest, and the message's data. The caller
// holds Job.handling.
func (r *Request) flight(piece []byte) (f flight, data []byte) {
	f = flight{operation: r.answers, place: r.place, length: 8, old: r.old}
	switch r.kind {
	case wire.RemotePut:
		f.length = 0
	case wire.RemoteGet:
		f.length, f.to = len(piece), piece
		return f, nil
	}
	return f, piece
}

// sent notes that a message about a piece of rest is sent. The caller holds Job.handling.
func (r *Request) sent(piece []byte) {
	r.answers.left++
	r.rest = r.rest[len(piece):]
	r.place.offset += len(piece)
}

// post sends the next message in a slot, and reports whether there was room. The caller holds
// Job.handling.
func (r *Request) post(slot int) (bool, error) {
	s := &r.job.remote.slots[slot]
	piece := r.rest[:min(len(r.rest), MaxPayload)]
	f, payload := r.flight(piece)
	f.generation = s.generation + 1
	q := wire.Remote{
		Kind: r.kind, Length: uint16(len(piece)), Token: uint32(slot) | uint32(f.generation)<<16,
		Window: uint8(r.place.window), Offset: uint64(r.place.offset),
	}
	ok, err := r.job.post(r.place.rank, wire.HandlerRemote, q.Args(), payload)
	if !ok || err != nil {
		return false, err
	}
	*s = f
	r.job.remote.passing[r.place.rank]++
	r.sent(piece)
	return true, nil
}

// complete reports whether the request is complete. The caller holds Job.handling.
func (r *Request) complete() bool {
	switch {
	case r.call != nil:
		return r.call.Over()
	case r.xfer != nil:
		return r.xfer.Over()
	}
	return !r.queued && r.own.left == 0
}

// collect ends a complete request and returns its error. The caller holds Job.handling.
func (r *Request) collect() error {
	if r.counted {
		r.counted = false
		r.job.remote.outstanding--
	}
	switch {
	case r.call != nil:
		return callError(r.name, r.call.Err())
	case r.xfer != nil:
		return commitError("xfer and signal", r.xfer, r.place)
	}
	return r.own.failed
}

// Test handles messages and reports whether the request is complete. Only then, err is its error.
func (r *Request) Test() (done bool, err error) {
	r.job.Poll()
	r.job.handling.Lock()
	defer r.job.handling.Unlock()
	if !r.complete() {
		if r.job.finalized.Load() {
			return false, ErrClosed
		}
		return false, nil
	}
	return true, r.collect()
}

// Wait handles messages until the request is complete, or until ctx ends: then the request stays
// outstanding.
func (r *Request) Wait(ctx context.Context) error { return WaitAll(ctx, r) }

// Abandon ends the request without waiting: its memory is the application's again. What was not
// sent is not sent any more; what was sent takes effect. A collective operation that was not
// complete has then failed, and with it those after it of the same ranks. Abandon is allowed for a
// complete request.
func (r *Request) Abandon() {
	j := r.job
	j.handling.Lock()
	j.withdraw(r)
	_ = r.collect()
	j.handling.Unlock()
	j.announce() // to goroutines that wait for it
}

// withdraw ends the use of the request's memory. The caller holds Job.handling.
func (j *Job) withdraw(r *Request) {
	switch {
	case r.xfer != nil:
		j.desk.Abandon(r.group, r.xfer)
		return
	case r.call != nil:
		if !r.call.Over() {
			r.group.Break(errAbandoned)
		}
		return
	}
	r.queued = false
	j.remote.queue = slices.DeleteFunc(j.remote.queue, func(q *Request) bool { return q == r })
	j.abandon(j.remote.slots[:], &r.own)
	for _, f := range j.mirrors.ends {
		if f.direct != nil {
			j.abandon(f.direct.flights[:], &r.own)
		}
	}
	r.own.left = 0
}

// abandon keeps answers away from an operation and its memory. The caller holds Job.handling.
func (j *Job) abandon(flights []flight, o *operation) {
	for i := range flights {
		if f := &flights[i]; f.operation == o {
			f.operation, f.to, f.old = &j.remote.abandoned, nil, nil
			j.remote.abandoned.left++
		}
	}
}

// WaitAll handles messages until all requests, which are of one job, are complete, or until ctx
// ends: then all stay outstanding. It returns the error of the first failed request.
func WaitAll(ctx context.Context, requests ...*Request) (err error) {
	if len(requests) == 0 {
		return nil
	}
	j := requests[0].job
	if err := j.waitRequests(ctx, func() bool { return !slices.ContainsFunc(requests, func(r *Request) bool { return !r.complete() }) }); err != nil {
		return err
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	for _, r := range requests {
		if failed := r.collect(); err == nil {
			err = failed
		}
	}
	return err
}

// WaitAny handles messages until one of the requests, which are of one job, is complete, and
// returns its index and its error. If ctx ends before, or there are no requests, the index is -1
// and all stay outstanding. Remove a complete request from requests before the next call.
func WaitAny(ctx context.Context, requests ...*Request) (index int, err error) {
	if len(requests) == 0 {
		return -1, nil
	}
	j := requests[0].job
	if err := j.waitRequests(ctx, func() bool {
		index = slices.IndexFunc(requests, (*Request).complete)
		return index >= 0
	}); err != nil {
		return -1, err
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	return index, requests[index].collect()
}

// waitRequests is waitRemote for a condition of requests of the application.
func (j *Job) waitRequests(ctx context.Context, done func() bool) error {
	j.handling.Lock()
	over, calls := done(), len(j.calls.busy) > 0 || j.desk.Busy()
	j.handling.Unlock()
	switch {
	case over:
		return nil
	case calls:
		return j.waitCalls(ctx, done)
	}
	return j.waitRemote(ctx, done)
}

// waitRemote is await for a condition that is called with Job.handling held.
func (j *Job) waitRemote(ctx context.Context, done func() bool) error {
	return j.await(ctx, j.locked(done))
}

// access makes an access and waits until it is sent, for a put, or complete. If ctx ends before,
// the access is abandoned.
func (j *Job) access(ctx context.Context, what Request) error {
	if err := j.checkAccess(&what); err != nil {
		return err
	}
	if j.isNear(what.place) {
		return j.accessNear(&what)
	}
	return j.accessFar(ctx, what)
}

// accessFar is access for a checked request on a window of another node.
func (j *Job) accessFar(ctx context.Context, what Request) error {
	r := new(Request) // only this one leaves the stack
	*r = what
	r.job, r.answers = j, &r.own
	done := r.complete
	if r.kind == wire.RemotePut {
		r.answers = &j.remote.puts
		done = func() bool { return !r.queued }
	}
	j.enqueue(r)
	if err := j.waitRemote(ctx, done); err != nil {
		r.Abandon()
		return err
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	return r.own.failed
}

// atomic makes an atomic access.
func (j *Job) atomic(ctx context.Context, kind wire.RemoteKind, p place, values [2]uint64) (uint64, error) {
	r := Request{place: p, kind: kind, values: values}
	if err := j.checkAccess(&r); err != nil {
		return 0, err
	}
	if j.isNear(p) {
		return j.accessWord(kind, p, values)
	}
	old := new(uint64)
	r.old = old
	if err := j.accessFar(ctx, r); err != nil {
		return 0, err
	}
	return *old, nil
}
