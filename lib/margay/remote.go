package margay

import (
	"context"
	"errors"
	"fmt"

	"margay/kernel/abi/wire"
)

// ErrWindow reports that an access was refused: the rank has no such window, or the bytes are not
// all in it, or a word is not aligned.
var ErrWindow = errors.New("no such memory")

var reasons = map[wire.RemoteStatus]string{wire.RemoteNoWindow: "there is no such window", wire.RemoteOutside: "that is outside the window, or not aligned"}

// slots is how many requests of a rank about windows of other nodes are in flight at most.
const slots = 64

// remote is the requests in flight.
type remote struct {
	slots [slots]flight
	puts  operation // all of them since Quiet
}

// operation is what a call waits for.
type operation struct {
	left   int   // answers
	failed error // the first failure
}

// flight is a request in flight.
type flight struct {
	operation  *operation // nil: the slot is free
	generation uint16     // of the slot's use
	place      place
	length     int    // bytes of the answer
	to         []byte // for them; nil: they are not needed
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
	case a.Status == wire.RemoteOK:
		copy(f.to, r.Payload)
	case f.operation.failed == nil:
		f.operation.failed = f.place.refused(a.Status)
	}
	f.operation.left--
	*f = flight{generation: f.generation}
	return nil
}

// locked returns done as a condition of wait, with Job.handling held.
func (j *Job) locked(done func() bool) func(int) bool {
	return func(int) bool {
		j.handling.Lock()
		defer j.handling.Unlock()
		return done()
	}
}

// take takes a free slot for a request, and returns its token.
func (j *Job) take(ctx context.Context, f flight) (token uint32, err error) {
	taken := false
	err = j.wait(ctx, j.locked(func() bool {
		for i := range j.remote.slots {
			if s := &j.remote.slots[i]; !taken && s.operation == nil {
				f.generation = s.generation + 1
				*s, taken = f, true
				token = uint32(i) | uint32(f.generation)<<16
				f.operation.left++
			}
		}
		return taken // it may be called again
	}))
	if err != nil && taken {
		j.release(token)
	}
	return token, err
}

// release frees the slot of a request that was not sent.
func (j *Job) release(token uint32) {
	j.handling.Lock()
	defer j.handling.Unlock()
	f := &j.remote.slots[token%slots]
	f.operation.left--
	f.operation = nil
}

// request sends a request. q has its kind and length. The answer's data go to f.to.
func (j *Job) request(ctx context.Context, f flight, q wire.Remote, payload []byte) error {
	token, err := j.take(ctx, f)
	if err != nil {
		return err
	}
	q.Token, q.Window, q.Offset = token, uint8(f.place.window), uint64(f.place.offset)
	if err := j.send(ctx, f.place.rank, wire.HandlerRemote, q.Args(), payload); err != nil {
		j.release(token)
		return err
	}
	return nil
}

// finish waits for all answers.
func (j *Job) finish(ctx context.Context, o *operation) error {
	err := j.wait(ctx, j.locked(func() bool { return o.left == 0 }))
	j.handling.Lock()
	defer j.handling.Unlock()
	if err == nil {
		err, o.failed = o.failed, nil
	}
	if o != &j.remote.puts && o.left > 0 { // the caller does not expect that its memory changes later
		for i := range j.remote.slots {
			if f := &j.remote.slots[i]; f.operation == o {
				f.to = nil
			}
		}
	}
	return err
}
