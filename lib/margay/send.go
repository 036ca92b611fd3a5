package margay

import (
	"context"
	"fmt"
	"time"

	"margay/kernel/abi/wire"
)

// Send sends a message of at most MaxMessage bytes to a rank, which may be this one. While there is
// no room for it, Send waits and handles messages. A message of more than MaxPayload bytes is sent
// in pieces: if ctx ends while Send waits, it is not delivered, and messages that handlers send
// while it is being sent may arrive first.
func (j *Job) Send(ctx context.Context, rank, handler int, args [2]uint64, payload []byte) error {
	if err := j.check(rank, handler); err != nil {
		return err
	}
	switch {
	case len(payload) <= MaxPayload:
		return j.send(ctx, rank, handler, args, payload)
	case len(payload) > MaxMessage:
		return fmt.Errorf("margay: a message carries at most %d bytes", MaxMessage)
	}
	return j.sendLong(ctx, &wire.Long{Peer: uint32(rank), Handler: uint16(handler), Args: args, Payload: payload})
}

// sendLong sends a message in pieces.
func (j *Job) sendLong(ctx context.Context, l *wire.Long) error {
	defer j.announce() // another goroutine may wait for its turn
	j.calmDown(ctx, int(l.Peer))
	for {
		full, err := j.pushLong(l)
		if err != nil || l.Done() {
			return err
		}
		if full {
			err = j.wait(ctx, func(int) bool {
				j.sending.Lock()
				defer j.sending.Unlock()
				return j.hasRoom(!j.out.WaitLong(l))
			})
		}
		if err != nil {
			j.sending.Lock()
			defer j.sending.Unlock()
			j.out.GiveUp(l)
			return err
		}
	}
}

// calmTime is how long a message waits at most until it can take a mirrored channel.
const calmTime = 100 * time.Millisecond

// calmDown waits a moment until the messages to a rank of another node that passed the node kernels
// are settled, so that those behind them can take a mirrored channel.
func (j *Job) calmDown(ctx context.Context, rank int) {
	j.sending.Lock()
	wait := j.out.Calm(uint32(rank))
	j.sending.Unlock()
	if !wait {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, calmTime)
	defer cancel()
	err := j.wait(ctx, func(int) bool {
		j.sending.Lock()
		defer j.sending.Unlock()
		return !j.out.Unsettled(uint32(rank))
	})
	if err != nil {
		j.sending.Lock()
		defer j.sending.Unlock()
		j.out.Haste(uint32(rank))
	}
}

// pushLong sends pieces of a message, and reports whether there was no room for more.
func (j *Job) pushLong(l *wire.Long) (full bool, err error) {
	j.sending.Lock()
	defer j.sending.Unlock()
	if j.finalized.Load() {
		j.out.GiveUp(l)
		return false, ErrClosed
	}
	full, wake, err := j.out.PushLong(l)
	j.rouse(wake, int(l.Peer))
	if err != nil {
		j.out.GiveUp(l)
		return false, fmt.Errorf("margay: send: %w", err)
	}
	return full, nil
}

// check returns an error if there is no such rank or the application cannot send to that handler.
func (j *Job) check(rank, handler int) error {
	if rank < 0 || rank >= j.Size() {
		return fmt.Errorf("margay: there is no rank %d, but ranks 0 to %d", rank, j.Size()-1)
	}
	return checkHandler(handler)
}

// checkHandler returns an error if the application has no such handler.
func checkHandler(handler int) error {
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
		j.calmDown(ctx, rank)
		if err = j.wait(ctx, func(int) bool { return !j.awaitsRoom(rank, uint16(handler), len(payload)) }); err != nil {
			return err
		}
	}
}

// awaitsRoom reports whether there is no room for a message to a handler of a rank, and awaits it.
func (j *Job) awaitsRoom(rank int, handler uint16, payload int) bool {
	j.sending.Lock()
	defer j.sending.Unlock()
	return !j.hasRoom(!j.out.Wait(uint32(rank), handler, payload))
}

// hasRoom is what an announcement that this side waits for room has found. If there is room, it was
// taken back, also for goroutines that sleep until there is more: they look again.
func (j *Job) hasRoom(room bool) bool {
	if room {
		j.announce()
	}
	return room
}

// Post is Send without waiting, for a message of at most MaxPayload bytes: it reports whether there
// was room for the message.
func (j *Job) Post(rank, handler int, args [2]uint64, payload []byte) (bool, error) {
	if err := j.check(rank, handler); err != nil {
		return false, err
	}
	if len(payload) > MaxPayload {
		return false, fmt.Errorf("margay: %w", wire.ErrTooLong)
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
	if wake == wire.WakeMirror && handler < wire.HandlerCollective && j.mirrors.to[rank].Gathers() {
		return ok, nil // ranks wait for what the library itself sends
	}
	j.rouse(wake, rank)
	return ok, nil
}

// rouse wakes the process that takes a message to a rank, or sends the message. The caller holds
// Job.sending.
func (j *Job) rouse(wake, rank int) {
	switch wake {
	case wire.WakeNobody:
	case wire.WakeMirror:
		j.mirrors.transmit(j.mirrors.to[rank], j.mirrors.now())
	default:
		j.wake(wake)
	}
}
