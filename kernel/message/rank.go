package message

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/kernel/record"
	"margay/kernel/wire"
	"margay/nimble/memory"
)

// rank is a rank of a job on this node.
type rank struct {
	job    *Job
	number int
	index  int // among the job's ranks on this node
	core   int // for the recorder

	socket *net.UnixConn   // this end of the socket for requests
	bell   *os.File        // this end of the bell
	raw    syscall.RawConn // of bell
	far    *os.File        // the rank's end of the bell, to be handed over
	memory *memory.Memory
	area   *wire.Area

	// Of pump alone.
	sent    *wire.Consumer
	batches []*batch          // by member; nil when there is nothing for it
	costs   map[uint32]uint64 // by target: bytes of the messages in batches

	counts    counts
	inBarrier atomic.Int64 // since when it has been in a barrier, for the recorder; 0: it is in none

	seen uint64 // barriers entered when pump last took all messages; pump writes it holding Job.mu

	rung   chan struct{} // something may have to be done; capacity 1
	ending chan struct{} // closed when the process has ended
	pumped chan struct{} // closed when all its messages have been sent after that

	mu       sync.Mutex
	received *wire.Producer
	overflow []waiting // what the receive ring has no room for
	unread   uint32    // messages put into the ring since it was last seen empty
	gone     bool      // it takes no more messages
	endOnce  sync.Once
}

// waiting is a message that waits for room in a rank's receive ring, or the release from a barrier behind such messages.
type waiting struct {
	release uint64 // the barrier; 0 for a message
	record  wire.Record
	member  int // where it came from
	since   record.Time
	cost    uint64
}

// takesPart reports whether the rank uses messages, or has ended, which is another matter.
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

// pump sends what the rank puts into its send ring, until the rank has ended and all is sent.
func (r *rank) pump() {
	defer close(r.pumped)
	for {
		ending := false
		select {
		case <-r.ending:
			ending = true
		default:
		}
		entered := r.area.Entered().Load() // what was sent before that is in the ring
		n, err := r.drain()
		if err != nil {
			r.job.fault("rank %d on node%d: %v", r.number, r.job.engine.config.Self, err)
			return
		}
		if entered != r.seen {
			r.job.mu.Lock()
			r.seen = entered
			r.job.mu.Unlock()
			r.inBarrier.Store(int64(r.job.recorder().Begin()))
			r.job.settle()
		}
		if n > 0 {
			continue
		}
		if ending || r.job.context.Err() != nil {
			return
		}
		r.sleep()
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

// drain sends all messages that are in the send ring and returns how many there were.
func (r *rank) drain() (n int, err error) {
	defer r.flush()
	for {
		record, ok, err := r.sent.Next()
		if err != nil || !ok {
			return n, err
		}
		if int(record.Peer) >= len(r.job.place) {
			return n, fmt.Errorf("%w: message to rank %d of %d", wire.ErrCorrupt, record.Peer, len(r.job.place))
		}
		p := packet{
			source: uint32(r.number), target: record.Peer, handler: record.Handler, args: record.Args, payload: record.Payload,
		}
		cost := p.cost()
		if !r.job.reserve(p.target, cost) {
			// It goes back into the ring, where it outlives this node kernel.
			r.sent.Unread()
			r.flush()
			if !r.job.awaitRoom(p.target, cost) {
				return n, nil
			}
			continue
		}
		r.costs[p.target] += cost
		n++
		member := r.job.place[p.target]
		if r.batches[member] == nil {
			r.batches[member] = newBatch(r.job.config.Job, r.job.key)
		}
		b := r.batches[member]
		r.note(b, &p)
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
	for member, b := range r.batches {
		if b != nil {
			b.number(j.ledger.sent[member])
			j.recordSent(b, j.ledger.sent[member])
			j.ledger.sent[member] += b.count
		}
	}
	j.spend(r.costs)
	if r.sent.Release() {
		r.ring()
	}
	for member, b := range r.batches {
		if b == nil {
			continue
		}
		r.batches[member] = nil
		if member == j.self {
			j.receiveOwn(b.frame)
		} else {
			j.sendMessages(member, b.frame)
		}
	}
}

// listen waits for the rank to ring.
func (r *rank) listen() {
	var rung [256]byte
	for {
		if _, err := r.bell.Read(rung[:]); err != nil {
			return
		}
		r.refill()
		select {
		case r.rung <- struct{}{}:
		default:
		}
	}
}

// deliver gives the rank a message.
func (r *rank) deliver(member int, p *packet, grants []byte) []byte {
	grants, waiting := r.put(member, p, grants)
	if r.job.config.Arrived != nil && waiting > 0 {
		r.job.config.Arrived(r.number, waiting)
	}
	return grants
}

// put puts a message into the receive ring, or behind those that already wait for room there. It returns how many wait now at
// most, 0 when the rank has ended.
func (r *rank) put(member int, p *packet, grants []byte) (_ []byte, waits uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		r.undeliverable(p.source)
		return grants, 0
	}
	record := wire.Record{
		Handler: p.handler, Peer: p.source, Node: uint32(r.job.config.Nodes[p.source]), Args: p.args, Payload: p.payload,
	}
	if len(r.overflow) == 0 && r.push(record) {
		return r.job.taken(r, member, p.cost(), grants), r.unread
	}
	record.Payload = append([]byte(nil), p.payload...)
	r.overflow = append(r.overflow, waiting{record: record, member: member, cost: p.cost(), since: r.job.recorder().Begin()})
	r.job.ledger.waiting[r.index]++
	// The rank rings when it has made room, which it may have done just now.
	if !r.received.Wait(len(p.payload)) {
		r.refillLocked()
	}
	return grants, r.unread + uint32(len(r.overflow))
}

// undeliverable reports a message to a rank that has ended.
func (r *rank) undeliverable(source uint32) {
	r.job.fault("rank %d has sent a message to rank %d on node%d, which has ended", source, r.number, r.job.engine.config.Self)
}

// push puts a record into the receive ring and wakes the rank. The caller holds the lock.
func (r *rank) push(record wire.Record) bool {
	if r.received.Empty() {
		r.unread = 0
	}
	ok, wake, err := r.received.Push(record)
	if err != nil {
		r.job.fault("rank %d on node%d: %v", r.number, r.job.engine.config.Self, err)
		return false
	}
	if ok {
		r.unread++
	}
	if wake {
		r.ring()
	}
	return ok
}

// refill moves what waits into the receive ring.
func (r *rank) refill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refillLocked()
}

func (r *rank) refillLocked() {
	grants := make(map[int][]byte)
	for len(r.overflow) > 0 {
		w := r.overflow[0]
		if w.release != 0 {
			r.letOut(w.release)
			r.overflow = r.overflow[1:]
			continue
		}
		if !r.push(w.record) {
			if r.received.Wait(len(w.record.Payload)) {
				break
			}
			continue
		}
		r.delivered(&w)
		r.overflow = r.overflow[1:]
		r.job.ledger.waiting[r.index]--
		if g := r.job.taken(r, w.member, w.cost, grants[w.member]); g != nil {
			grants[w.member] = g
		}
	}
	if len(r.overflow) == 0 {
		r.overflow = nil
		r.received.Awake()
	}
	for member, frame := range grants {
		r.job.send(member, frame)
	}
}

// entered returns how many barriers the rank has entered. The rank can enter only one at a time. The caller holds Job.mu.
func (r *rank) entered(released uint64) (uint64, error) {
	if had, ended := r.job.ended[uint32(r.number)]; ended {
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
	if len(r.overflow) > 0 {
		r.overflow = append(r.overflow, waiting{release: number})
		return
	}
	r.letOut(number)
}

func (r *rank) letOut(number uint64) {
	r.left(number)
	r.area.Released().Store(number)
	if r.area.ReceiveWaiting().Load() != 0 {
		r.ring()
	}
}

// Ended tells that the process of a rank has ended. What it had sent before is still sent.
func (j *Job) Ended(number int) {
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
		if len(r.overflow) > 0 {
			r.undeliverable(r.overflow[0].record.Peer)
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
	j.ended[uint32(r.number)] = entered
	inUse := j.inUse
	j.mu.Unlock()
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

// closeFiles ends everything that waits for the rank.
func (r *rank) closeFiles() {
	r.bell.Close()
	if r.socket != nil {
		r.socket.Close()
	}
}

// ring wakes the rank. A bell that can take no more has been rung often enough, and one that nobody holds needs no ringing.
// One that is being closed is not rung either: its number may be another descriptor's soon.
func (r *rank) ring() {
	_ = r.raw.Control(func(fd uintptr) {
		_ = unix.Send(int(fd), []byte{1}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}
