package message

import (
	"sync/atomic"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/flow"
	"margay/kernel/record"
)

// counts counts the messages of a rank.
type counts struct{ sent, arrived atomic.Uint64 }

// Counts returns how many messages a rank of this node has sent, and how many have arrived for it.
// It counts messages through this node kernel since the kernel has the job, and through channels
// since the job began.
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

// wholeSize returns the bytes of the message that m is, or that m begins. The other pieces of a
// long message are neither counted nor recorded.
func wholeSize(m *frame.Message) (size uint32, first bool) {
	return wire.WholeSize(m.Handler, m.Args, len(m.Payload))
}

func (j *Job) recorder() *record.Recorder { return j.engine.config.Recorder }

// event returns an event of the rank.
func (r *rank) event(kind record.Kind) record.Event {
	return record.Event{Kind: kind, Core: uint16(r.core), Job: r.job.config.Job, Rank: r.number}
}

// recordSending counts a message of the rank that goes into a batch, and notes it for the recorder.
func (r *rank) recordSending(b *batch, m *frame.Message) {
	if _, first := wholeSize(m); first {
		r.counts.sent.Add(1)
		r.note(record.Sent, b, m)
	}
}

// note remembers the event of a message that goes into a batch until the batch is numbered, if
// events are recorded.
func (r *rank) note(kind record.Kind, b *batch, m *frame.Message) {
	size, first := wholeSize(m)
	if !first || !r.job.recorder().On() {
		return
	}
	e := r.event(kind)
	e.Time = record.Now()
	e.Peer, e.Node, e.Size, e.Number = uint32(m.Target), r.job.config.Nodes[m.Target], size, b.count
	b.events = append(b.events, e)
}

// recordSent records the messages of a batch that was numbered.
func (j *Job) recordSent(b *batch) {
	for _, e := range b.events {
		e.Number += b.first
		j.recorder().Add(e)
	}
}

// recordArrived counts a message for the rank, and records the verdict about it.
func (r *rank) recordArrived(begin id.Time, o flow.Origin, m *frame.Message, v slot.Verdict) {
	size, first := wholeSize(m)
	if !first {
		return
	}
	r.counts.arrived.Add(1)
	if begin == 0 {
		return
	}
	e := r.event(record.Arrived)
	e.Peer, e.Node, e.Size = uint32(m.Source), r.job.config.Members[o.Member], size
	e.Number, e.What = o.Number, uint64(v)
	r.job.recorder().End(begin, e)
}
