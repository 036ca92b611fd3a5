package message

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/nimble/memory"
)

// rank is a rank of a job on this node.
type rank struct {
	job    *Job
	number id.Rank
	index  int     // among the job's ranks on this node
	core   id.Core // for the recorder

	socket *net.UnixConn // this end of the socket for requests
	bell   socketEnds
	alarm  socketEnds
	memory *memory.Memory
	area   *wire.Area

	// Of pump alone.
	sent    *wire.Consumer
	batches []*batch       // by member; nil when there is nothing for it
	costs   map[int]uint64 // by lane: bytes of the messages in batches

	counts    counts
	inBarrier atomic.Uint64 // since when it has been in a barrier, for the recorder; 0: it is in none

	seen uint64 // barriers entered when pump last took all messages; pump writes it holding Job.mu

	rung   chan struct{} // something may have to be done; capacity 1
	ending chan struct{} // closed when the process has ended
	pumped chan struct{} // closed when all its messages have been sent after that

	mu       sync.Mutex
	ordinary inbox
	upcalls  inbox
	gone     bool // it takes no more messages
	endOnce  sync.Once
}

// socketEnds are a socket by which this side wakes the rank.
type socketEnds struct {
	near *os.File
	raw  syscall.RawConn // of near
	far  *os.File        // the rank's end, to be handed over
}

// inbox is one of the two ways by which a rank gets messages. What waits for room in the upcall ring goes first, so that nothing
// that was sent later is handled before it.
type inbox struct {
	ring     *wire.Producer
	overflow []waiting // what the ring has no room for
	unread   uint32    // messages put into the ring since it was last seen empty
}

// look notes when the ring is empty. The caller holds the lock.
func (in *inbox) look() {
	if in.ring.Empty() {
		in.unread = 0
	}
}

// waiting is a message that waits for room in a rank's receive ring, or the release from a barrier behind such messages.
type waiting struct {
	release uint64 // the barrier; 0 for a message
	record  wire.Record
	origin  origin
	since   id.Time
}

// takesPart reports whether the rank uses messages or has ended.
func (r *rank) takesPart() bool {
	select {
	case <-r.ending:
		return true
	default:
		r.job.mu.Lock()
		defer r.job.mu.Unlock()
		return r.job.ledger.joined[r.index] != 0
	}
}

// pump sends what the rank puts into its send ring, until the rank has ended and all is sent. While there is a spinner, that does
// it.
func (r *rank) pump() {
	defer close(r.pumped)
	for {
		if s := r.job.engine.spinner.Load(); s != nil && s.attend(r) {
			return
		}
		did, over := r.step(true)
		if over {
			return
		}
		if !did && r.job.engine.spinner.Load() == nil {
			r.sleep()
		}
	}
}

// step sends what is in the send ring. It reports whether there was anything, and whether there will never be any more. It waits
// for room in the windows only if it may.
func (r *rank) step(mayWait bool) (did, over bool) {
	ending := r.isEnding()
	entered := r.area.Entered().Load() // what was sent before that is in the ring
	n, blocked, err := r.drain(mayWait)
	if err != nil {
		r.job.fault("rank %d on node%d: %v", r.number, r.job.engine.config.Self, err)
		return false, true
	}
	if entered != r.seen && !blocked {
		r.job.mu.Lock()
		r.seen = entered
		r.job.mu.Unlock()
		r.inBarrier.Store(uint64(r.job.recorder().Begin()))
		r.job.settle()
	}
	return n > 0, n == 0 && !blocked && ending || r.job.context.Err() != nil
}

func (r *rank) isEnding() bool {
	select {
	case <-r.ending:
		return true
	default:
		return false
	}
}

// sleep waits until the rank rings, unless there is something to do already.
func (r *rank) sleep() {
	if !r.sent.Wait() {
		return
	}
	defer r.sent.Awake()
	if r.area.Entered().Load() != r.seen {
		return
	}
	select {
	case <-r.rung:
	case <-r.ending:
	case <-r.job.context.Done():
	}
}

// drain sends all messages that are in the send ring and returns how many there were. Where a window is closed it waits, or is
// blocked if it may not.
func (r *rank) drain(mayWait bool) (n int, blocked bool, err error) {
	defer r.flush()
	for {
		record, ok, err := r.sent.Next()
		if err != nil || !ok {
			return n, false, err
		}
		if int(record.Peer) >= len(r.job.place) {
			return n, false, fmt.Errorf("%w: message to rank %d of %d", wire.ErrCorrupt, record.Peer, len(r.job.place))
		}
		p := packet{
			source: r.number, target: id.Rank(record.Peer), handler: record.Handler, args: record.Args, after: uint16(record.After),
			payload: record.Payload,
		}
		if target := r.job.local[p.target]; target != nil {
			r.job.channels.Speak(r.index, target.index)
		}
		to, cost := lane(p.target, 0), p.cost()
		if !r.job.reserve(to, cost) {
			// It goes back into the ring, where it outlives this node kernel.
			r.sent.Unread()
			r.flush()
			if !mayWait || !r.job.awaitRoom(to, cost) {
				return n, true, nil
			}
			continue
		}
		r.costs[to] += cost
		n++
		b := batchFor(r.batches, r.job, p.target)
		r.sends(b, &p)
		if b.add(p); len(b.frame) >= maxBatch {
			r.flush()
		}
	}
}

// flush sends the batches. A message is counted first, then its room in the ring is given back, and then it is sent: whenever
// the node kernel is killed in between, the numbers show that a message is missing or there twice.
func (r *rank) flush() {
	j := r.job
	j.sending.Lock()
	defer j.sending.Unlock()
	j.countBatches(r.batches)
	j.spend(r.costs)
	if r.sent.Release() {
		r.rouse(&r.bell)
	}
	j.sendBatches(r.batches)
	j.channels.Settling(r.index).Passed(r.sent.Position())
}

// listen waits for the rank to ring.
func (r *rank) listen() {
	data, control := make([]byte, 256), make([]byte, rights.Space(rights.Most))
	for {
		files, err := takeForeign(r.bell.raw, data, control)
		if err != nil {
			return
		}
		closeForeign(files)
		r.refill()
		r.stir()
	}
}

// deliver gives the rank a message, by one of its inboxes.
func (r *rank) deliver(in *inbox, o origin, p *packet, back *refunds) {
	waits := r.put(in, o, p, back)
	if r.job.config.Arrived != nil && waits > 0 {
		r.job.config.Arrived(r.number, waits)
	}
}

// put puts a message into a ring, or behind those that already wait for room there. It returns how many wait now at most, 0 when
// the rank has ended.
func (r *rank) put(in *inbox, o origin, p *packet, back *refunds) (waits uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		r.undeliverable(p.source)
		return 0
	}
	record := wire.Record{
		Handler: p.handler, Peer: uint32(p.source), Node: uint32(r.job.config.Nodes[p.source]), Args: p.args, Payload: p.payload,
	}
	if o.member == r.job.self && o.hops == 0 {
		record.After = uint32(p.after)
	}
	if len(in.overflow) == 0 && len(r.upcalls.overflow) == 0 && r.push(in, record) {
		r.job.taken(o, back)
		return r.waits()
	}
	record.Payload = append([]byte(nil), p.payload...)
	in.overflow = append(in.overflow, waiting{record: record, origin: o, since: r.job.recorder().Begin()})
	r.job.ledger.waiting[r.index]++
	r.job.retain(p.source)
	// The rank rings when it has made room, which it may have done just now.
	if !in.ring.Wait(len(p.payload)) {
		r.refillLocked(back)
	}
	return r.waits()
}

// waits returns how many messages wait for the rank at most. The caller holds the lock.
func (r *rank) waits() uint32 {
	return r.ordinary.unread + r.upcalls.unread + uint32(len(r.ordinary.overflow)+len(r.upcalls.overflow))
}

// undeliverable reports a message to a rank that has ended.
func (r *rank) undeliverable(source id.Rank) {
	r.job.fault("rank %d has sent a message to rank %d on node%d, which has ended", source, r.number, r.job.engine.config.Self)
}

// push puts a record into a ring and wakes the rank. The caller holds the lock.
func (r *rank) push(in *inbox, record wire.Record) bool {
	in.look()
	ok, wake, err := in.ring.Push(record)
	if err != nil {
		r.job.fault("rank %d on node%d: %v", r.number, r.job.engine.config.Self, err)
		return false
	}
	if !ok {
		return false
	}
	in.unread++
	switch {
	case in == &r.upcalls && wake && in.ring.Claim():
		r.alarm.ring()
	case in == &r.upcalls && r.sleeps() || in != &r.upcalls && wake:
		r.bell.ring()
	}
	return true
}

// sleeps reports whether the rank sleeps in its library, or is about to.
func (r *rank) sleeps() bool { return r.area.ReceiveWaiting().Load() != 0 }

// rouse rings the rank where no message may have come.
func (r *rank) rouse(s *socketEnds) {
	s.ring()
	r.woken()
}

func (r *rank) woken() {
	if r.job.config.Woken != nil {
		r.job.config.Woken(r.number)
	}
}

// refill moves what waits into the rings.
func (r *rank) refill() {
	var back refunds
	r.mu.Lock()
	r.refillLocked(&back)
	r.mu.Unlock()
	back.send(r.job)
}

func (r *rank) refillLocked(back *refunds) {
	if r.refillInbox(&r.upcalls, back) {
		r.refillInbox(&r.ordinary, back)
	}
}

// refillInbox reports whether nothing waits any more. The caller holds the lock.
func (r *rank) refillInbox(in *inbox, back *refunds) bool {
	for len(in.overflow) > 0 {
		w := in.overflow[0]
		if w.release != 0 {
			r.letOut(w.release)
			in.overflow = in.overflow[1:]
			continue
		}
		if !r.push(in, w.record) {
			if in.ring.Wait(len(w.record.Payload)) {
				return false
			}
			continue
		}
		r.woken()
		r.delivered(&w)
		in.overflow = in.overflow[1:]
		r.job.ledger.waiting[r.index]--
		r.job.placed(id.Rank(w.record.Peer))
		r.job.taken(w.origin, back)
	}
	in.overflow = nil
	in.ring.Awake()
	return true
}

// entered returns how many barriers the rank has entered. The rank can enter only one at a time. The caller holds Job.mu.
func (r *rank) entered(released uint64) (uint64, error) {
	if had, ended := r.job.ended[r.number]; ended {
		return had, nil
	}
	if r.seen < released || r.seen > released+1 {
		return 0, fmt.Errorf("%w: it claims to have entered %d barriers, %d are complete", wire.ErrCorrupt, r.seen, released)
	}
	return r.seen, nil
}

// release lets the rank out of the barriers up to number, as soon as the messages that have come for it are in its ring.
func (r *rank) release(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ordinary.overflow) > 0 || len(r.upcalls.overflow) > 0 {
		r.ordinary.overflow = append(r.ordinary.overflow, waiting{release: number})
		return
	}
	r.letOut(number)
}

func (r *rank) letOut(number uint64) {
	r.left(number)
	r.area.Released().Swap(number) // before it is looked whether the rank sleeps
	if r.sleeps() {
		r.rouse(&r.bell)
	}
}

// Ended tells that the process of a rank has ended. What it had sent before is still sent.
func (j *Job) Ended(number id.Rank) {
	r := j.local[number]
	if r == nil {
		return
	}
	r.endOnce.Do(func() { close(r.ending) })
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	j.running.Go(func() {
		select {
		case <-r.pumped:
		case <-j.context.Done():
			return
		}
		r.mu.Lock()
		r.gone = true
		for _, in := range []*inbox{&r.upcalls, &r.ordinary} {
			if len(in.overflow) > 0 {
				r.undeliverable(id.Rank(in.overflow[0].record.Peer))
			}
		}
		r.mu.Unlock()
		r.farewell()
	})
}

// farewell tells the job's nodes that the rank has ended.
func (r *rank) farewell() {
	j := r.job
	j.mu.Lock()
	entered := min(r.area.Entered().Load(), *j.ledger.released+1)
	j.ended[r.number] = entered
	inUse := j.inUse
	j.mu.Unlock()
	j.leaves(r)
	j.settle()
	if !inUse {
		return // those who begin to use messages later are told then
	}
	for member := range j.config.Members {
		if member != j.self {
			j.send(member, j.newFrame(kindEnded, uint64(r.number), entered))
		}
	}
}

// holdFiles has the sockets stay that the rank may have sent something through.
func (r *rank) holdFiles() (held []*os.File) {
	sockets := []syscall.RawConn{r.bell.raw, r.alarm.raw}
	if r.socket != nil {
		if raw, err := r.socket.SyscallConn(); err == nil {
			sockets = append(sockets, raw)
		}
	}
	for _, s := range sockets {
		if f, err := holdSocket(s); err == nil { // or it is closed already
			held = append(held, f)
		}
	}
	return held
}

// closeFiles ends everything that waits for the rank.
func (r *rank) closeFiles() {
	r.bell.near.Close()
	r.alarm.near.Close()
	if r.socket != nil {
		r.socket.Close()
	}
}

// ring sends the rank a byte. A socket that can take no more has been rung often enough, and one that nobody holds needs no ringing.
// One that is being closed is not rung either: its number may be another descriptor's soon.
func (s *socketEnds) ring() {
	_ = s.raw.Control(func(fd uintptr) {
		_ = unix.Send(int(fd), []byte{1}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}
