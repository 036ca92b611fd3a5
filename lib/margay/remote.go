package margay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"margay/kernel/abi/wire"
)

// ErrWindow reports that an access was refused: the rank has no such window, or the bytes are not
// all in it, or a word is not aligned.
var ErrWindow = errors.New("no such memory")

// ErrRequests reports that MaxRequests requests are outstanding.
var ErrRequests = fmt.Errorf("%d requests are outstanding: test or wait for one first", MaxRequests)

var reasons = map[wire.RemoteStatus]string{wire.RemoteNoWindow: "there is no such window", wire.RemoteOutside: "that is outside the window, or not aligned"}

// slots is how many messages of a rank about windows of other nodes are in flight at most.
const slots = 64

// remote is the started accesses to windows of other nodes. Job.handling guards it.
type remote struct {
	slots       [slots]flight
	passing     []int      // by rank: messages in flight through the node kernels
	asked       int        // requests by datagrams in flight
	news        bool       // some of them were not sent
	queue       []*Request // accesses that are not all sent, in the order of starting
	puts        operation  // of puts without a request; its failure was not reported
	abandoned   operation  // what no request awaits any more
	outstanding int        // requests of the application
}

// operation is the answers that a request awaits.
type operation struct {
	left   int   // answers
	failed error // the first failure
}

// flight is a message in flight.
type flight struct {
	operation  *operation // nil: the slot is free
	generation uint16     // of the slot's use
	place      place
	length     int     // bytes of the answer
	to         []byte  // for them; nil: they are not needed
	old        *uint64 // the same, for a word
}

// place is a place in a window.
type place struct{ rank, window, offset int }

func (p place) refused(status wire.RemoteStatus) error {
	return fmt.Errorf("margay: window %d of rank %d at %d: %w: %s", p.window, p.rank, p.offset, ErrWindow, reasons[status])
}

// answered takes an answer. The caller holds Job.handling. The sender may have written anything;
// the error wraps wire.ErrRemote.
func (j *Job) answered(r *wire.Record) error {
	a, err := wire.ParseRemote(r.Args, len(r.Payload))
	if err != nil {
		return err
	}
	f := &j.remote.slots[a.Token%slots]
	switch {
	case a.Kind != wire.RemoteReply || int(r.Peer) != j.Rank() || f.operation == nil || uint32(f.generation) != a.Token>>16,
		a.Status == wire.RemoteOK && int(a.Length) != f.length:
		return fmt.Errorf("%w: an answer to no question", wire.ErrRemote)
	}
	j.remote.passing[f.place.rank]--
	f.land(a.Status, r.Payload)
	return nil
}

// land takes the answer of a message in flight. The caller holds Job.handling.
func (f *flight) land(status wire.RemoteStatus, data []byte) {
	switch {
	case status == wire.RemoteOK:
		copy(f.to, data)
		if f.old != nil {
			*f.old = binary.LittleEndian.Uint64(data)
		}
	case f.operation.failed == nil:
		f.operation.failed = f.place.refused(status)
	}
	f.operation.left--
	*f = flight{generation: f.generation}
}

// locked returns done as a condition of wait, with Job.handling held.
func (j *Job) locked(done func() bool) func(int) bool {
	return func(int) bool {
		j.handling.Lock()
		defer j.handling.Unlock()
		return done()
	}
}

// advance sends messages of started accesses while there are slots and room for them, and reports
// whether it has sent any. Without room, this rank is woken when there is. The caller holds
// Job.handling.
func (j *Job) advance() (some bool) {
	for len(j.remote.queue) > 0 {
		r := j.remote.queue[0]
		ok, err := j.advanceOne(r)
		if !ok && err == nil {
			break
		}
		if some = true; err != nil {
			r.own.failed = err
		}
		if err != nil || len(r.rest) == 0 && !r.countEvent() {
			j.remote.queue = slices.Delete(j.remote.queue, 0, 1)
			r.queued = false
		}
	}
	if j.remote.news {
		j.sendAsked()
	}
	return some
}

// advanceOne sends some of an access, and reports false if it has to wait.
func (j *Job) advanceOne(r *Request) (bool, error) {
	d, wait := j.way(r.place.rank)
	switch {
	case wait:
		return false, nil
	case d != nil:
		return r.ask(d)
	}
	slot := slices.IndexFunc(j.remote.slots[:], func(f flight) bool { return f.operation == nil })
	if slot < 0 {
		return false, nil
	}
	for {
		if ok, err := r.post(slot); ok || err != nil || j.awaitsRoom(r.place.rank, wire.HandlerRemote, MaxPayload) {
			return ok, err
		}
	}
}

// drain waits until all accesses that were started before are sent. It does not wait for those that
// other goroutines start while it waits.
func (j *Job) drain(ctx context.Context) error {
	j.handling.Lock()
	queue := slices.Clone(j.remote.queue)
	j.handling.Unlock()
	if len(queue) == 0 {
		return nil
	}
	return j.waitRemote(ctx, func() bool { return !slices.ContainsFunc(queue, func(r *Request) bool { return r.queued }) })
}

// quiet reports whether no message is queued or in flight. The caller holds Job.handling.
func (j *Job) quiet() bool {
	return len(j.remote.queue) == 0 && j.remote.asked == 0 && !slices.ContainsFunc(j.remote.slots[:], func(f flight) bool { return f.operation != nil })
}

// unanswered returns a condition, to be called with Job.handling held, that holds when the puts
// without a request that were sent through the node kernels so far are answered; nil if they are.
func (j *Job) unanswered() func() bool {
	j.handling.Lock()
	defer j.handling.Unlock()
	if j.remote.puts.left == 0 {
		return nil
	}
	sent := make(map[int]uint16) // generations by slot
	for i, f := range j.remote.slots {
		if f.operation == &j.remote.puts {
			sent[i] = f.generation
		}
	}
	return func() bool {
		maps.DeleteFunc(sent, func(i int, generation uint16) bool {
			f := j.remote.slots[i]
			return f.operation == nil || f.generation != generation
		})
		return len(sent) == 0
	}
}

// refused returns, once, the error of a put without a request that was refused.
func (j *Job) refused() error {
	j.handling.Lock()
	defer j.handling.Unlock()
	err := j.remote.puts.failed
	j.remote.puts.failed = nil
	return err
}
