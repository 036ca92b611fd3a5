package margay

import (
	"context"
	"fmt"

	"margay/kernel/abi/wire"
)

// Send sends a message to a rank, which may be this one. While the send ring is full it waits and
// handles messages.
func (j *Job) Send(ctx context.Context, rank, handler int, args [2]uint64, payload []byte) error {
	if err := j.check(rank, handler); err != nil {
		return err
	}
	return j.send(ctx, rank, handler, args, payload)
}

// check returns an error if there is no such rank or the application cannot send to that handler.
func (j *Job) check(rank, handler int) error {
	if rank < 0 || rank >= j.Size() {
		return fmt.Errorf("margay: there is no rank %d, but ranks 0 to %d", rank, j.Size()-1)
	}
	if handler < 0 || handler >= wire.MaxHandlers {
		return fmt.Errorf("margay: there is no handler %d, but handlers 0 to %d", handler, wire.MaxHandlers-1)
	}
	return nil
}

// send is Send with any handler.
func (j *Job) send(ctx context.Context, rank, handler int, args [2]uint64, payload []byte) error {
	for {
		ok, err := j.post(rank, handler, args, payload)
		if ok || err != nil {
			return err
		}
		err = j.wait(ctx, func(int) bool {
			j.sending.Lock()
			defer j.sending.Unlock()
			return !j.out.Wait(uint32(rank), uint16(handler), len(payload))
		})
		if err != nil {
			return err
		}
	}
}

// Post is Send without waiting: it reports whether there was room for the message.
func (j *Job) Post(rank, handler int, args [2]uint64, payload []byte) (bool, error) {
	if err := j.check(rank, handler); err != nil {
		return false, err
	}
	return j.post(rank, handler, args, payload)
}

// post is Post with any handler.
func (j *Job) post(rank, handler int, args [2]uint64, payload []byte) (bool, error) {
	j.sending.Lock()
	defer j.sending.Unlock()
	if j.finalized.Load() {
		return false, ErrClosed
	}
	ok, wake, err := j.out.Push(&wire.Record{Handler: uint16(handler), Peer: uint32(rank), Args: args, Payload: payload})
	if err != nil {
		return false, fmt.Errorf("margay: send: %w", err)
	}
	switch wake {
	case wire.WakeNobody:
	case wire.WakeMirror:
		j.mirrors.transmit(j.mirrors.to[rank], j.mirrors.now())
	default:
		j.wake(wake)
	}
	return ok, nil
}
