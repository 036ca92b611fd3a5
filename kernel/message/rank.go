package message

import (
	"fmt"
	"os"
	"sync"

	"margay/internal/rights"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/call"
	"margay/kernel/endpoint"
	"margay/kernel/flow"
)

// rank is a rank of a job on this node: it sends the messages in the rank's send ring.
type rank struct {
	job      *Job
	number   id.Rank
	index    int     // among the job's ranks on this node
	core     id.Core // for the recorder
	endpoint *endpoint.Endpoint
	counts   counts

	// For pump, or for the spinner while the spinner sends.
	batches batches
	costs   map[flow.Channel]uint64 // bytes of the messages in batches
	seen    uint64                  // barriers entered when all earlier messages were sent
	met     map[id.Rank]bool        // ranks of other nodes that meet was called for
	spoken  map[id.Rank]bool        // ranks of other nodes with messages in batches
	leads   bool                    // it has mirrored channels for barriers, if any

	stirred chan struct{} // there may be work; capacity 1
	ending  chan struct{} // closed when the process has ended
	pumped  chan struct{} // closed when all its messages have been sent after that
	endOnce sync.Once
}

func (j *Job) newRank(index int, number id.Rank) *rank {
	r := &rank{
		job: j, number: number, index: index, batches: make(batches, len(j.config.Members)), costs: make(map[flow.Channel]uint64),
		seen: j.barrier.Entered(number), met: make(map[id.Rank]bool), spoken: make(map[id.Rank]bool), stirred: make(chan struct{}, 1), ending: make(chan struct{}), pumped: make(chan struct{}),
	}
	if index < len(j.config.Cores) {
		r.core = j.config.Cores[index]
	}
	return r
}

// endpointConfig describes the rank to its endpoint.
func (r *rank) endpointConfig() endpoint.Config {
	j := r.job
	return endpoint.Config{
		Header: wire.Header{
			Job: uint32(j.config.Job), Rank: uint32(r.number), Size: uint32(len(j.config.Nodes)), Node: uint32(j.engine.config.Self),
			LocalRank: uint32(r.index), LocalSize: uint32(len(j.config.Local)), Nodes: uint32(len(j.config.Members)),
			Meets: j.config.Meets,
		},
		Nodes: j.config.Nodes, Waiting: &j.counters.waiting[r.index], Owner: (*owner)(j), Core: r.core, Recorder: j.recorder(),
	}
}

// calls returns the server of the rank's requests.
func (r *rank) calls() *call.Server {
	return call.New(call.Config{
		Rank: r.number, Socket: r.endpoint.Socket(), Set: r.job.config.Set, Asking: &r.job.counters.asking[r.index], Join: r.join,
		Channel: r.channel, Doorbell: r.job.channels.Doorbell,
	})
}

// join makes the rank take part in the job's messages, and returns the files that it gets.
func (r *rank) join() ([]*os.File, error) {
	files, err := r.endpoint.Openings()
	if err != nil {
		return nil, err
	}
	for _, open := range []func() (*os.File, error){
		r.job.channels.Board, func() (*os.File, error) { return r.job.channels.Doorbell(uint64(r.index)) },
	} {
		f, err := open()
		if err != nil {
			rights.Close(files)
			return nil, err
		}
		files = append(files, f)
	}
	r.job.mu.Lock()
	r.job.counters.joined[r.index] = 1
	r.job.mu.Unlock()
	r.job.join(r.job.self)
	return files, nil
}

// takesPart reports whether the rank uses messages or has ended.
func (r *rank) takesPart() bool {
	if r.isEnding() {
		return true
	}
	r.job.mu.Lock()
	defer r.job.mu.Unlock()
	return r.job.counters.joined[r.index] != 0
}

// pump sends the messages in the send ring until the rank has ended and all are sent. While there
// is a spinner, the spinner sends them.
func (r *rank) pump() {
	defer close(r.pumped)
	r.introduce()
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

// step sends the messages in the send ring. It reports whether there were any, and whether there
// will never be more. It waits for credits only if mayWait is set.
func (r *rank) step(mayWait bool) (did, over bool) {
	j := r.job
	ending := r.isEnding()
	entered := r.endpoint.Entered() // messages sent before that are in the ring
	n, blocked, err := r.drain(mayWait)
	if err != nil {
		j.fault("rank %d on node%d: %v", r.number, j.engine.config.Self, err)
		return false, true
	}
	if entered != r.seen && !blocked {
		r.seen = entered
		r.introduce()
		j.mu.Lock()
		j.barrier.Enter(r.number, entered)
		j.mu.Unlock()
		r.endpoint.EnterBarrier()
		j.gather()
	}
	return n > 0, n == 0 && !blocked && ending || j.context.Err() != nil
}

func (r *rank) isEnding() bool {
	select {
	case <-r.ending:
		return true
	default:
		return false
	}
}

// sleep waits until the rank rings, unless there is work already.
func (r *rank) sleep() {
	sent := r.endpoint.Sent()
	if !sent.Wait() {
		return
	}
	defer sent.Awake()
	if r.endpoint.Entered() != r.seen {
		return
	}
	select {
	case <-r.stirred:
	case <-r.ending:
	case <-r.job.context.Done():
	}
}

// drain sends all messages in the send ring and returns how many there were. If credits are missing
// it waits, or reports blocked if it may not wait: then there are also no more than turn at a time.
func (r *rank) drain(mayWait bool) (n int, blocked bool, err error) {
	defer r.flush()
	sent := r.endpoint.Sent()
	for {
		if !mayWait && n == turn {
			return n, true, nil
		}
		record, ok, err := sent.Next()
		if err != nil || !ok {
			return n, false, err
		}
		if int(record.Peer) >= len(r.job.place) {
			return n, false, fmt.Errorf("%w: message to rank %d of %d", wire.ErrCorrupt, record.Peer, len(r.job.place))
		}
		m := frame.Message{
			Source: r.number, Target: id.Rank(record.Peer), Handler: record.Handler, Args: record.Args,
			After: uint16(record.After), Payload: record.Payload,
		}
		if target := r.job.local[m.Target]; target != nil {
			r.job.channels.Speak(r.index, target.index)
		} else {
			r.speakFar(m.Target)
		}
		channel, cost := flow.Of(&m), m.Cost()
		if !r.job.reserve(channel, cost) {
			// It goes back into the ring, which outlives this node kernel.
			sent.Unread()
			r.flush()
			if !mayWait || !r.job.awaitCredit(channel, cost) {
				return n, true, nil
			}
			continue
		}
		r.costs[channel] += cost
		n++
		b := r.batches.of(r.job, m.Target)
		r.recordSending(b, &m)
		if b.add(&m); b.full() {
			r.flush()
		}
	}
}

// flush sends the batches. It first counts a message, then gives back its room in the ring, and
// then sends it. If the node kernel is killed in between, the counters show a missing or a second
// message.
func (r *rank) flush() {
	j := r.job
	j.sending.Lock()
	defer j.sending.Unlock()
	j.mu.Lock()
	r.batches.count(j)
	for channel, cost := range r.costs {
		j.flow.Spend(channel, cost)
	}
	j.mu.Unlock()
	clear(r.costs)
	if r.endpoint.Sent().Release() {
		r.endpoint.Rouse()
	}
	r.batches.send(j)
	j.channels.Settling(r.index).Passed(r.endpoint.Sent().Position())
	r.passedFar()
}

// rung handles a byte from the rank: there may be room in its rings, or messages in its send ring.
func (r *rank) rung() {
	back := returns{job: r.job}
	r.endpoint.Refill(&back)
	back.send()
	r.stir()
}

// stir makes pump check for work.
func (r *rank) stir() {
	select {
	case r.stirred <- struct{}{}:
	default:
	}
}

// Ended reports that the process of a rank has ended. The messages that it sent before are still
// sent. Ended may be called again.
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
		j.abandonWindows(r)
		select {
		case <-r.pumped:
		case <-j.context.Done():
			return
		}
		r.endpoint.Leave()
		r.farewell()
	})
}

// farewell reports to the job's nodes that the rank has ended.
func (r *rank) farewell() {
	j := r.job
	j.mu.Lock()
	entered := j.barrier.End(r.number, r.endpoint.Entered())
	inUse := j.inUse
	j.mu.Unlock()
	j.channels.Bound(j.bound(r.number))
	j.leaves(r)
	j.gather()
	if inUse { // otherwise the report follows when a rank begins to use messages (Job.join)
		j.sendLast(r, func(id.Rank) bool { return true })
		j.spread(j.self, r.number, entered, j.bound(r.number))
	}
}
