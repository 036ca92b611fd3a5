// Package record records events on a node while a client reads them: which process has a core, how
// messages are handled, which extensions run.
//
// Each core of the node has a ring of events; ring 0, for the system core, also has the events that
// concern no core. The code that causes an event adds it. Events have ascending numbers, so that
// several readers can follow at their own pace, and each knows how many events were overwritten
// before it read them. Rings exist only while recording is on; while it is off, an event costs one
// atomic load.
//
// Recording is on while clients read: each read extends it by Lease. So it ends when its readers
// are gone, however they ended.
//
// Locks: Recorder.mu guards the readers; each ring has a lock of its own, ring.mu, which is held
// while one event is added or a few are copied. The two are not held together.
package record

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"margay/kernel/abi/id"
)

// Lease is the time that recording continues after a read.
const Lease = 5 * time.Second

// memory bounds what all rings of a node take together, in bytes, unless that were less than
// minRing events for a core.
const (
	memory  = 16 << 20
	minRing = 1 << 10
)

// copied is the number of events that a reader copies at a time; writers wait for that long.
const copied = 128

// MaxReaders is how many can follow at a time.
const MaxReaders = 16

// Recorder records the events of a node. It is safe for concurrent use; a nil one records nothing.
type Recorder struct {
	cores int
	made  id.Time
	lease time.Duration
	rings atomic.Pointer[rings] // nil: off

	mu      sync.Mutex
	readers map[uint64]time.Time // until when each has recording on
	expiry  *time.Timer
	last    uint64 // generation of rings
	watch   func(on bool)
}

// rings are the rings of one period of recording.
type rings struct {
	generation uint64
	begun      id.Time
	rings      []ring
}

type ring struct {
	mu     sync.Mutex
	next   uint64 // how many have been added; they are in events by their number
	events []Event
	last   Event    // the last Switch
	_      [64]byte // cores do not slow each other down
}

// New makes a recorder for a node with the given number of cores, including the system core.
func New(cores int) *Recorder {
	now := Now()
	return &Recorder{cores: cores, made: now, lease: Lease, readers: make(map[uint64]time.Time), last: uint64(now)}
}

// Watch has f called when recording begins, which may have been before, and when it ends. It may
// add events, and do nothing else with the recorder.
func (r *Recorder) Watch(f func(on bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = f
	if r.On() {
		f(true)
	}
}

// turn turns recording on, into these rings, or off. The caller holds the lock.
func (r *Recorder) turn(to *rings) {
	r.rings.Store(to)
	if r.watch != nil {
		r.watch(to != nil)
	}
}

// On reports whether events are recorded.
func (r *Recorder) On() bool { return r != nil && r.rings.Load() != nil }

// Begin returns the start time of an interval that End records; 0 while recording is off.
func (r *Recorder) Begin() id.Time {
	if !r.On() {
		return 0
	}
	return Now()
}

// End records what Begin has begun: e gets its time and how long it took. A begin of 0 was not
// recorded, and its end is not either.
func (r *Recorder) End(begin id.Time, e Event) {
	if begin != 0 {
		e.Time, e.Took = begin, Now().Sub(begin)
		r.Add(e)
	}
}

// Add records an event; one without a time happens now.
func (r *Recorder) Add(e Event) {
	if r.On() {
		r.add(&e)
	}
}

// Switch records that a core goes to a rank, or becomes idle if job is 0, and why; at 0 means now.
func (r *Recorder) Switch(at id.Time, core id.Core, job id.Job, rank id.Rank, why string) {
	if r.On() {
		r.add(&Event{Kind: Switch, Time: at, Core: uint16(core), Job: job, Rank: rank, Text: why})
	}
}

func (r *Recorder) add(e *Event) {
	rings := r.rings.Load()
	if rings == nil {
		return
	}
	if e.Time == 0 {
		e.Time = Now()
	}
	if int(e.Core) >= len(rings.rings) {
		e.Core = 0
	}
	ring := &rings.rings[e.Core]
	ring.mu.Lock()
	defer ring.mu.Unlock()
	if e.Kind == Switch {
		ring.last = *e
	}
	ring.put(e)
}

// put adds an event. The caller holds the lock.
func (r *ring) put(e *Event) {
	r.events[r.next&uint64(len(r.events)-1)] = *e
	r.next++
}

// again repeats the current rank of each core, for a reader that missed the earlier events.
func (r *rings) again() {
	for i := range r.rings {
		ring := &r.rings[i]
		ring.mu.Lock()
		if ring.last.Job != 0 {
			ring.put(&ring.last)
		}
		ring.mu.Unlock()
	}
}

// Cursor is the position of a reader. The zero Cursor is the beginning.
type Cursor struct {
	Generation uint64   // of the rings that the positions are in; it changes whenever recording was off
	Positions  []uint64 // by core: number of the next event
}

// ErrReaders reports that MaxReaders others are recording.
var ErrReaders = fmt.Errorf("%d others are recording", MaxReaders)

// Follow has recording on for reader, a number of its own choosing, until Lease from now. It
// reports whether the reader is new.
func (r *Recorder) Follow(reader uint64) (begins bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, had := r.readers[reader]
	if !had && len(r.readers) >= MaxReaders {
		return false, ErrReaders
	}
	r.readers[reader] = time.Now().Add(r.lease)
	if rings := r.rings.Load(); rings == nil {
		r.last++
		r.turn(newRings(r.last, r.cores))
	} else if !had {
		rings.again()
	}
	if r.expiry == nil {
		r.expiry = time.AfterFunc(r.lease, r.expire)
	}
	return !had, nil
}

// expire ends recording when the leases of all readers have ended.
func (r *Recorder) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var latest time.Time
	for reader, until := range r.readers {
		if !until.After(now) {
			delete(r.readers, reader)
		} else if until.After(latest) {
			latest = until
		}
	}
	if latest.IsZero() {
		r.turn(nil)
		r.expiry = nil
		return
	}
	r.expiry.Reset(latest.Sub(now))
}

// Leave ends the lease of a reader.
func (r *Recorder) Leave(reader uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readers, reader)
	if len(r.readers) == 0 && r.expiry != nil {
		r.turn(nil)
		r.expiry.Stop()
		r.expiry = nil
	}
}

func newRings(generation uint64, cores int) *rings {
	size := minRing
	for 2*size*cores*eventSize <= memory {
		size *= 2
	}
	all := &rings{generation: generation, begun: Now(), rings: make([]ring, cores)}
	for i := range all.rings {
		all.rings[i].events = make([]Event, size)
	}
	return all
}

// Batch is what a reader gets.
type Batch struct {
	Cursor Cursor  // for the next read
	Made   id.Time // when the recorder was made: it has no other before that
	Begun  id.Time // when this generation began
	Events []byte  // see Parse
	Lost   uint64  // events that were overwritten before they were read
	More   bool    // there are more already
}

// Read returns about size bytes of the events behind a cursor, those that want accepts. A cursor of
// another generation begins with the oldest event that there is. Nothing is returned while
// recording is off.
func (r *Recorder) Read(c Cursor, size int, want func(*Event) bool) Batch {
	rings := r.rings.Load()
	if rings == nil {
		return Batch{}
	}
	b := Batch{Made: r.made, Begun: rings.begun, Cursor: Cursor{Generation: rings.generation, Positions: slices.Clone(c.Positions)}}
	if c.Generation != rings.generation || len(c.Positions) != len(rings.rings) {
		b.Cursor.Positions = rings.oldest()
	}
	var events [copied]Event
	for core := range rings.rings {
		position := &b.Cursor.Positions[core]
		// What a core may take of the batch, so that a busy one leaves room for the others.
		for room := len(b.Events) + (size-len(b.Events))/(len(rings.rings)-core); ; {
			n, lost := rings.rings[core].read(position, events[:])
			b.Lost += lost
			for i := range events[:n] {
				if want(&events[i]) {
					b.Events = events[i].Append(b.Events)
				}
			}
			if n < len(events) {
				break
			}
			if len(b.Events) >= room {
				b.More = true
				break
			}
		}
	}
	return b
}

// oldest are the positions of the oldest events.
func (r *rings) oldest() []uint64 {
	positions := make([]uint64, len(r.rings))
	for i := range r.rings {
		ring := &r.rings[i]
		ring.mu.Lock()
		positions[i] = ring.oldest()
		ring.mu.Unlock()
	}
	return positions
}

// oldest is the position of the oldest event. The caller holds the lock.
func (r *ring) oldest() uint64 { return r.next - min(r.next, uint64(len(r.events))) }

// read copies events from a position on and advances it. A position that is none is taken for the
// oldest event.
func (r *ring) read(position *uint64, to []Event) (n int, lost uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := r.oldest()
	if *position > r.next {
		*position = oldest
	}
	if *position < oldest {
		lost, *position = oldest-*position, oldest
	}
	for n < len(to) && *position < r.next {
		to[n] = r.events[*position&uint64(len(r.events)-1)]
		*position++
		n++
	}
	return n, lost
}
