package endpoint

import (
	"fmt"
	"slices"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/flow"
	"margay/kernel/record"
)

// Inbox names one of the two ways by which a rank gets messages.
type Inbox int

// The inboxes.
const (
	Ordinary Inbox = iota // the receive ring
	Upcalls               // the upcall ring
)

// Taker is notified of each message that has come into a ring, so that its credit can return.
type Taker interface {
	Take(flow.Origin)
}

// inbox is a ring and the messages that it has no room for.
type inbox struct {
	ring     *wire.Producer
	overflow []waiting
	unread   uint32 // messages put into the ring since it was last seen empty
}

// waiting is a message that waits for room in a ring, or the release from a barrier behind such
// messages.
type waiting struct {
	release uint64 // the barrier; 0 for a message
	record  wire.Record
	origin  flow.Origin
	since   id.Time
}

// look notes whether the ring is empty. The caller holds the lock.
func (in *inbox) look() {
	if in.ring.Empty() {
		in.unread = 0
	}
}

// Deliver gives the rank a message. It returns how many messages wait for the rank at most, 0 if it
// has ended, which is a fault of the job. It does not need notes about barriers any more: they are
// taken.
func (e *Endpoint) Deliver(to Inbox, m *frame.Message, o flow.Origin, t Taker) (waits uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := wire.Record{
		Handler: m.Handler, Peer: uint32(m.Source), Node: uint32(e.config.Nodes[m.Source]), After: uint32(m.After),
		Args: m.Args, Payload: m.Payload,
	}
	if m.Extension {
		r.Node |= wire.NodeExtension
	}
	if e.gone {
		if m.Handler == wire.HandlerBarrier {
			t.Take(o)
		} else {
			e.undeliverable(r)
		}
		return 0
	}
	in := &e.ordinary
	if to == Upcalls {
		in = &e.upcalls
	}
	if len(in.overflow) == 0 && len(e.upcalls.overflow) == 0 && e.push(in, r) {
		t.Take(o)
		return e.waits()
	}
	r.Payload = slices.Clone(r.Payload)
	in.overflow = append(in.overflow, waiting{record: r, origin: o, since: e.config.Recorder.Begin()})
	*e.config.Waiting++
	e.config.Owner.Held(m.Source)
	// The rank rings when it has made room, which it may have done just now.
	if !in.ring.Wait(len(r.Payload)) {
		e.refill(t)
	}
	return e.waits()
}

// Waiting returns how many messages wait for the rank at most.
func (e *Endpoint) Waiting() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ordinary.look()
	e.upcalls.look()
	return e.waits()
}

// waits returns how many messages wait for the rank at most. The caller holds the lock.
func (e *Endpoint) waits() uint32 {
	return e.ordinary.unread + e.upcalls.unread + uint32(len(e.ordinary.overflow)+len(e.upcalls.overflow))
}

// Overflow returns how many messages and releases wait for room in the rings, and the bytes that
// the messages count against their credits.
func (e *Endpoint) Overflow() (n int, bytes uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, in := range []*inbox{&e.upcalls, &e.ordinary} {
		n += len(in.overflow)
		for i := range in.overflow {
			bytes += in.overflow[i].origin.Cost
		}
	}
	return n, bytes
}

// undeliverable reports a message to a rank that has ended.
func (e *Endpoint) undeliverable(r wire.Record) {
	by := fmt.Sprintf("rank %d", r.Peer)
	if r.Node&wire.NodeExtension != 0 {
		by = fmt.Sprintf("an extension on node%d, for a message to rank %d,", r.Node&^wire.NodeExtension, r.Peer)
	}
	e.config.Owner.Fault(fmt.Errorf("%s has sent a message to %w", by, &id.EndedError{Rank: e.rank, Node: id.Node(e.config.Header.Node)}))
}

// push puts a record into a ring and wakes the rank. The caller holds the lock.
func (e *Endpoint) push(in *inbox, r wire.Record) bool {
	in.look()
	ok, wake, err := in.ring.Push(r)
	if err != nil {
		e.config.Owner.Fault(fmt.Errorf("rank %d on node%d: %w", e.rank, e.config.Header.Node, err))
		return false
	}
	if !ok {
		return false
	}
	in.unread++
	switch {
	case in == &e.upcalls && wake && in.ring.Claim():
		e.upcallBell.ring()
	case in == &e.upcalls && e.sleeps() || in != &e.upcalls && wake:
		e.doorbell.ring()
	}
	return true
}

// sleeps reports whether the rank sleeps in its library, or is about to.
func (e *Endpoint) sleeps() bool { return e.area.ReceiveWaiting().Load() != 0 }

// Refill moves waiting messages into the rings.
func (e *Endpoint) Refill(t Taker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refill(t)
}

func (e *Endpoint) refill(t Taker) {
	if e.refillInbox(&e.upcalls, t) {
		e.refillInbox(&e.ordinary, t)
	}
}

// refillInbox reports whether no message waits any more. The caller holds the lock.
func (e *Endpoint) refillInbox(in *inbox, t Taker) bool {
	for len(in.overflow) > 0 {
		w := in.overflow[0]
		if w.release != 0 {
			e.letOut(w.release)
			in.overflow = in.overflow[1:]
			continue
		}
		if !e.push(in, w.record) {
			if in.ring.Wait(len(w.record.Payload)) {
				return false
			}
			continue
		}
		e.config.Owner.Woken(e.rank)
		e.recordDelivered(&w)
		in.overflow = in.overflow[1:]
		*e.config.Waiting--
		e.config.Owner.Placed(id.Rank(w.record.Peer))
		t.Take(w.origin)
	}
	in.overflow = nil
	in.ring.Awake()
	return true
}

// EnterBarrier notes for the recorder that the rank has entered a barrier.
func (e *Endpoint) EnterBarrier() { e.inBarrier.Store(uint64(e.config.Recorder.Begin())) }

// Release lets the rank out of the barriers up to number, as soon as the messages that have come
// for it are in its rings.
func (e *Endpoint) Release(number uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ordinary.overflow) > 0 || len(e.upcalls.overflow) > 0 {
		e.ordinary.overflow = append(e.ordinary.overflow, waiting{release: number})
		return
	}
	e.letOut(number)
}

func (e *Endpoint) letOut(number uint64) {
	e.recordReleased(number)
	e.area.Released().Swap(number) // before it is looked whether the rank sleeps
	if e.sleeps() {
		e.rouse(&e.doorbell)
	}
}

// Leave notes that the rank has ended. From then on messages for it are a fault of the job, and so
// are messages that wait for room.
func (e *Endpoint) Leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
	for _, in := range []*inbox{&e.upcalls, &e.ordinary} {
		if len(in.overflow) > 0 {
			e.undeliverable(in.overflow[0].record)
		}
	}
}

// Left reports whether Leave was called.
func (e *Endpoint) Left() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}

// event is an event of the rank.
func (e *Endpoint) event(kind record.Kind) record.Event {
	return record.Event{Kind: kind, Core: uint16(e.config.Core), Job: id.Job(e.config.Header.Job), Rank: e.rank}
}

// recordDelivered records that a message which had to wait for room is in its ring.
func (e *Endpoint) recordDelivered(w *waiting) {
	if _, first := wire.WholeSize(w.record.Handler, w.record.Args, 0); !first {
		return
	}
	event := e.event(record.Delivered)
	event.Peer, event.Node = w.record.Peer, id.Node(w.record.Node&^wire.NodeExtension)
	e.config.Recorder.End(w.since, event)
}

// recordReleased records that the rank has been let out of a barrier that it had entered.
func (e *Endpoint) recordReleased(number uint64) {
	event := e.event(record.Barrier)
	event.Number = number
	e.config.Recorder.End(id.Time(e.inBarrier.Swap(0)), event)
}
