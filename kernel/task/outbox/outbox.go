// Package outbox sends messages to a process that may not receive them: a job init that is stopped,
// starved or stuck must not hold up the node kernel.
//
// A message that the socket has room for is sent at once, by the caller. Otherwise it joins a
// queue, and a goroutine sends the queue in order while there is one. Put never waits; what it
// queues is bounded, and lost when this process ends. Send waits until its message is in the
// socket, so it suits messages that must outlive this process, and bulk data, which then flows as
// fast as it is read.
//
// If the other end takes no message for too long, the outbox is broken for good.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"margay/internal/rights"
	"margay/kernel/link"
)

// Errors of messages that are not sent.
var (
	ErrFull   = errors.New("too many messages wait to be taken")
	ErrBroken = errors.New("no message was taken for too long")
	ErrOver   = errors.New("the last message has been sent")
)

// Limits bound what an outbox holds, and how long it waits.
type Limits struct {
	Bytes int // of the messages that Put has queued; the first of them may be larger

	// The other end is given up after Looks looks at the socket, one each Pause, that find no
	// message taken. Time in which this process stands still, and perhaps the other one with it,
	// counts as one look.
	Pause time.Duration
	Looks int
}

// Default gives the other end a minute.
var Default = Limits{Bytes: 4 << 20, Pause: time.Second, Looks: 60}

// Outbox is the sending side of a link. All messages to the other end must pass it. It is safe for
// concurrent use.
type Outbox struct {
	conn   *link.Conn // its write deadline is the outbox's
	limits Limits
	broken func(error)

	mu      sync.Mutex
	queue   []*entry
	bytes   int   // of the queue's entries from Put
	looks   int   // that found nothing taken, since the last message
	err     error // why nothing more is sent
	over    bool  // Last was called
	pumping bool
	idle    sync.Cond // pumping has become false
}

// entry is a message that waits.
type entry struct {
	link.Message
	bytes int           // from Put: what it counts; the files are the outbox's own
	sent  chan struct{} // from Send: closed when err is valid
	err   error
	over  bool // the caller of Send no longer waits for the other end
}

// New makes the outbox of conn. broken is called once, if the other end is given up, from a
// goroutine of its own.
func New(conn *link.Conn, l Limits, broken func(error)) *Outbox {
	o := &Outbox{conn: conn, limits: l, broken: broken}
	o.idle.L = &o.mu
	return o
}

// Put sends m, or queues it. It never waits, and returns ErrFull if there is no room. The files
// stay the caller's.
func (o *Outbox) Put(m link.Message) error { return o.put(m, o.limits.Bytes) }

// Offer is Put for a message that may be lost. It leaves most of the room to others.
func (o *Outbox) Offer(m link.Message) error { return o.put(m, o.limits.Bytes/4) }

// PutNewest is Put for a message without payload and files that says all that earlier ones of its
// kind say. It takes the place of one that waits last in the queue.
func (o *Outbox) PutNewest(m link.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.queue); n > 1 && !o.over { // the pump has the first one
		if last := o.queue[n-1]; last.sent == nil && last.Kind == m.Kind {
			o.bytes += size(m) - last.bytes
			last.Message, last.bytes = m, size(m)
			return nil
		}
	}
	return o.place(m, o.limits.Bytes)
}

// put is Put, with room for so many bytes.
func (o *Outbox) put(m link.Message, room int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.place(m, room)
}

// Last is Put of the last message, however much waits: later ones are refused with ErrOver.
func (o *Outbox) Last(m link.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.place(m, math.MaxInt)
	o.over = true
	return err
}

// Leave waits until the queue is sent, and leaves the link to its owner: the other end has answered
// the last message.
func (o *Outbox) Leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.pumping {
		o.idle.Wait()
	}
}

// place is put. The caller holds o.mu.
func (o *Outbox) place(m link.Message, room int) error {
	if sent, err := o.direct(m); sent || err != nil {
		return err
	}
	e := &entry{Message: m, bytes: size(m)}
	if o.bytes > 0 && o.bytes+e.bytes > room {
		return fmt.Errorf("send %q: %w", m.Kind, ErrFull)
	}
	var err error
	if e.Files, err = duplicate(m.Files); err != nil {
		return fmt.Errorf("send %q: %w", m.Kind, err)
	}
	e.Payload = slices.Clone(m.Payload)
	o.bytes += e.bytes
	o.add(e)
	return nil
}

// Send sends m, and waits until it is in the socket or ctx ends. The files stay the caller's.
func (o *Outbox) Send(ctx context.Context, m link.Message) error {
	o.mu.Lock()
	sent, err := o.direct(m)
	if sent || err != nil {
		o.mu.Unlock()
		return err
	}
	e := &entry{Message: m, sent: make(chan struct{})}
	o.add(e)
	o.mu.Unlock()
	select {
	case <-e.sent:
	case <-ctx.Done():
		o.abandon(e, context.Cause(ctx))
		<-e.sent // until then, the message and its files are in use
	}
	return e.err
}

// direct sends m if nothing waits and the socket has room. The caller holds o.mu.
func (o *Outbox) direct(m link.Message) (sent bool, err error) {
	if o.err != nil {
		return false, o.err
	}
	if o.over {
		return false, ErrOver
	}
	if len(o.queue) > 0 {
		return false, nil
	}
	sent, err = o.conn.TrySend(m)
	if sent {
		o.looks = 0
	}
	return sent, err
}

// add queues an entry. The caller holds o.mu.
func (o *Outbox) add(e *entry) {
	o.queue = append(o.queue, e)
	if !o.pumping {
		o.pumping = true
		go o.pump()
	}
}

// abandon gives up an entry of Send, unless it has been sent by now.
func (o *Outbox) abandon(e *entry, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.Index(o.queue, e)
	switch {
	case at > 0:
		o.queue = slices.Delete(o.queue, at, at+1)
		e.finish(fmt.Errorf("send %q: %w", e.Kind, err))
	case at == 0: // the pump has it
		e.over, e.err = true, fmt.Errorf("send %q: %w", e.Kind, err)
		_ = o.conn.SetWriteDeadline(time.Unix(1, 0))
	}
}

// pump sends the queue, until it is empty.
func (o *Outbox) pump() {
	for {
		e := o.next()
		if e == nil {
			return
		}
		err := o.conn.Send(e.Message)
		if err := o.sent(e, err); err != nil {
			o.broken(err)
		}
	}
}

// next returns the first entry of the queue and sets the time for it; nil: the pump ends.
func (o *Outbox) next() *entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) > 0 && o.queue[0].over {
		o.take(o.queue[0].err)
	}
	if len(o.queue) == 0 {
		o.queue, o.pumping = nil, false
		_ = o.conn.SetWriteDeadline(time.Time{})
		o.idle.Broadcast()
		return nil
	}
	_ = o.conn.SetWriteDeadline(time.Now().Add(o.limits.Pause))
	return o.queue[0]
}

// sent notes how a try to send the queue's first entry ended. It returns an error if the other end
// is given up.
func (o *Outbox) sent(e *entry, err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		o.looks = 0
		o.take(err)
		return nil
	}
	if e.over {
		return nil
	}
	if o.looks++; o.looks < o.limits.Looks {
		return nil
	}
	o.err = ErrBroken
	for len(o.queue) > 0 {
		o.take(ErrBroken)
	}
	return ErrBroken
}

// take removes the queue's first entry, with err as its result. The caller holds o.mu.
func (o *Outbox) take(err error) {
	e := o.queue[0]
	o.queue = o.queue[1:]
	o.bytes -= e.bytes
	e.finish(err)
}

// finish ends an entry.
func (e *entry) finish(err error) {
	if e.sent == nil {
		rights.Close(e.Files)
		return
	}
	e.err = err
	close(e.sent)
}

// size is what a message counts: its bytes, and something for its descriptors and the queue.
func size(m link.Message) int {
	return len(m.Kind) + len(m.Body) + len(m.Payload) + 256*(1+len(m.Files))
}

// duplicate returns descriptors of the same files.
func duplicate(files []*os.File) (dup []*os.File, err error) {
	for _, f := range files {
		other, err := rights.Duplicate(f, f.Name())
		if err != nil {
			rights.Close(dup)
			return nil, err
		}
		dup = append(dup, other)
	}
	return dup, nil
}
