package message

import (
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/flow"
	"margay/kernel/record"
)

// maxBatch is the size at which a batch is sent, in bytes.
const maxBatch = 32 << 10

// batch collects the messages for one node until they are sent: in a frame, or for this node itself
// as they are.
type batch struct {
	frame    []byte          // without its number, which is set when it is sent
	own      []frame.Message // for this node, instead of frame
	payloads []byte          // of the messages in own
	size     int             // bytes of the messages
	first    uint64          // number of the first message, once it is counted
	count    uint64
	events   []record.Event // of its messages, in which their numbers count from the first
}

// add appends a message. Its payload is copied.
func (b *batch) add(m *frame.Message) {
	if b.frame != nil {
		b.frame = frame.AppendMessage(b.frame, m)
	} else {
		at := len(b.payloads)
		b.payloads = append(b.payloads, m.Payload...)
		b.own = append(b.own, *m)
		b.own[b.count].Payload = b.payloads[at:len(b.payloads):len(b.payloads)]
	}
	b.size += int(m.Cost())
	b.count++
}

// full reports whether the batch must be sent before another message is added.
func (b *batch) full() bool { return b.size >= maxBatch }

// batches has the messages for each member of a job; nil for a member without messages so far.
type batches []*batch

// of returns the batch for the node of a rank.
func (bs batches) of(j *Job, target id.Rank) *batch {
	member := j.place[target]
	switch {
	case bs[member] != nil:
	case member == j.self:
		bs[member] = &batch{payloads: make([]byte, 0, maxBatch+frame.MaxMessage)}
	default:
		b := frame.New(frame.Messages, j.config.Job, j.key, 0)
		bs[member] = &batch{frame: append(make([]byte, 0, len(b)+maxBatch+frame.MaxMessage), b...)}
	}
	return bs[member]
}

// count numbers the messages of batches and counts them as sent. The caller holds Job.sending and
// Job.mu.
func (bs batches) count(j *Job) {
	for member, b := range bs {
		if b != nil && b.count > 0 {
			b.first = j.flow.Send(member, b.count)
		}
	}
}

// send sends batches that have been counted, and empties them. The caller holds Job.sending.
func (bs batches) send(j *Job) {
	for member, b := range bs {
		if b == nil || b.count == 0 {
			continue
		}
		j.recordSent(b)
		if member == j.self {
			j.receive(member, b.first, b.own)
			*b = batch{own: b.own[:0], payloads: b.payloads[:0], events: b.events[:0]}
			continue
		}
		bs[member] = nil // the frame is the transport's
		frame.Number(b.frame, b.first)
		j.sendMessages(member, b.frame)
	}
}

// sendMessages sends a frame of messages, and waits while the queue for that node is long. The
// caller holds Job.sending.
func (j *Job) sendMessages(member int, b []byte) {
	if err := j.engine.send(j.context, j.config.Members[member], j.engine.class(), b); err != nil && j.context.Err() == nil {
		j.fault("messages from node%d to node%d: %v", j.engine.config.Self, j.config.Members[member], err)
	}
}

// question returns a frame without messages, which asks its receiver for an acknowledgement. The
// caller holds Job.sending.
func (j *Job) question(member int) []byte {
	return j.newFrame(frame.Messages, j.counters.flow.Sent[member])
}

// reserve reserves credits, and reports whether there were enough.
func (j *Job) reserve(c flow.Channel, cost uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.flow.Reserve(c, cost)
}

// awaitCredit waits until there are credits in a channel. It reports false when the job ends.
func (j *Job) awaitCredit(c flow.Channel, cost uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for !j.closed && !j.flow.HasRoom(c, cost) {
		j.changed.Wait()
	}
	return !j.closed
}

// passOn sends forwarded messages when there are credits. It has a goroutine of its own because it
// may wait, which a receiver must not.
func (j *Job) passOn() {
	bs := make(batches, len(j.config.Members))
	for {
		next := j.awaitForwards()
		if next == nil {
			return
		}
		for i := range next {
			m := &next[i].Message
			b := bs.of(j, m.Target)
			j.local[next[i].From()].note(record.Forwarded, b, m)
			b.add(m)
		}
		j.sending.Lock()
		j.mu.Lock()
		bs.count(j)
		for _, f := range next {
			j.flow.SendOn(f)
		}
		j.mu.Unlock()
		bs.send(j)
		j.sending.Unlock()
	}
}

// awaitForwards waits for messages that can be forwarded. It returns nil when the job ends.
func (j *Job) awaitForwards() []flow.Forward {
	j.mu.Lock()
	defer j.mu.Unlock()
	for !j.closed {
		if next := j.flow.Next(maxBatch); next != nil {
			return next
		}
		j.changed.Wait()
	}
	return nil
}
