package message

import (
	"sync/atomic"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/record"
)

// counts are what a rank has had of messages.
type counts struct{ sent, arrived atomic.Uint64 }

// Counts returns how many messages a rank of this node has sent, and how many have come for it, since this node kernel has the
// job; those that took a channel, since the job began.
func (j *Job) Counts(rank id.Rank) (sent, arrived uint64) {
	r := j.local[rank]
	if r == nil {
		return 0, 0
	}
	if !j.enter() {
		return 0, 0
	}
	defer j.running.Done()
	sent, arrived = j.channels.Counts(r.index)
	return sent + r.counts.sent.Load(), arrived + r.counts.arrived.Load()
}

func (j *Job) recorder() *record.Recorder { return j.engine.config.Recorder }

// event is an event of the rank.
func (r *rank) event(kind record.Kind) record.Event {
	return record.Event{Kind: kind, Core: uint16(r.core), Job: r.job.config.Job, Rank: r.number}
}

// sends counts a message of the rank that goes into a batch, and has it recorded.
func (r *rank) sends(b *batch, p *packet) {
	r.counts.sent.Add(1)
	r.note(record.Sent, b, p)
}

// note remembers a message that goes into a batch until the batch is numbered, if events are recorded.
func (r *rank) note(kind record.Kind, b *batch, p *packet) {
	if !r.job.recorder().On() {
		return
	}
	e := r.event(kind)
	e.Time = record.Now()
	e.Peer, e.Node, e.Size, e.Number = uint32(p.target), r.job.config.Nodes[p.target], uint32(len(p.payload)), b.count
	b.events = append(b.events, e)
}

// recordSent records the messages of a batch whose first has that number.
func (j *Job) recordSent(b *batch, first uint64) {
	for _, e := range b.events {
		e.Number += first
		j.recorder().Add(e)
	}
}

// judged counts a message from a member that has come with that number, and records what was decided about it.
func (r *rank) judged(begin id.Time, member int, number uint64, p *packet, v slot.Verdict) {
	r.counts.arrived.Add(1)
	if begin == 0 {
		return
	}
	e := r.event(record.Arrived)
	e.Peer, e.Node, e.Size = uint32(p.source), r.job.config.Members[member], uint32(len(p.payload))
	e.Number, e.What = number, uint64(v)
	r.job.recorder().End(begin, e)
}

// delivered records that a message which had to wait for room is in the ring.
func (r *rank) delivered(w *waiting) {
	e := r.event(record.Delivered)
	e.Peer, e.Node = w.record.Peer, id.Node(w.record.Node)
	r.job.recorder().End(w.since, e)
}

// left records that the rank has been let out of a barrier that it had entered.
func (r *rank) left(number uint64) {
	e := r.event(record.Barrier)
	e.Number = number
	r.job.recorder().End(id.Time(r.inBarrier.Swap(0)), e)
}
