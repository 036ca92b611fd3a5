package message

import (
	"slices"
	"sync"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/endpoint"
	"margay/kernel/extension"
	"margay/kernel/flow"
	"margay/nimble/memory"
)

// receiver passes the messages for ranks of this node to extensions and ranks, one after the other.
type receiver struct {
	mu       sync.Mutex     // held while messages are handled
	event    *memory.Memory // a slot.PacketContext, which begins with a slot.MessageContext
	handled  handling       // of the message in it
	pieces   map[stream]decision
	burst    extension.Burst
	arrivals []arrival // of the messages that are being handled
	returns  returns
}

// arrival is the target and the origin of a message that has arrived.
type arrival struct {
	rank   *rank // nil: the message is for no rank here
	origin flow.Origin
}

// returns collects the actions that the flow of a job asks for, until they can be carried out
// without locks. It is an endpoint.Taker.
type returns struct {
	job     *Job
	actions flow.Actions
}

// Take notes that a message is finished at this node.
func (b *returns) Take(o flow.Origin) {
	b.job.mu.Lock()
	defer b.job.mu.Unlock()
	b.job.flow.Take(o, &b.actions)
	b.wake()
}

// wake wakes goroutines that wait for credits. The caller holds Job.mu.
func (b *returns) wake() {
	if b.actions.Room {
		b.actions.Room = false
		b.job.changed.Broadcast()
	}
}

// send carries out the collected actions.
func (b *returns) send() {
	j, a := b.job, b.actions
	b.actions = flow.Actions{}
	for _, source := range a.Placed {
		j.placed(source)
	}
	var frames map[int][]byte // by member
	for _, c := range a.Credits {
		if frames == nil {
			frames = make(map[int][]byte)
		}
		if frames[c.Member] == nil {
			frames[c.Member] = j.newFrame(frame.Credits)
		}
		frames[c.Member] = frame.AppendCredit(frames[c.Member], c.Credit)
	}
	for member, b := range frames {
		j.send(member, b)
	}
	for _, answer := range a.Answers {
		j.send(answer.Member, j.newFrame(frame.Acknowledged, answer.Number))
	}
	if a.Quiesced {
		j.advance()
	}
	j.settleOwed()
}

// credits handles credits from a member.
func (j *Job) credits(member int, credits []frame.Credit) {
	back := returns{job: j}
	j.mu.Lock()
	for _, c := range credits {
		j.flow.Credit(member, c, &back.actions)
	}
	back.wake()
	j.mu.Unlock()
	back.send()
}

// receive handles messages from a member, in the order of sending. number is the number of the
// first one. Without messages, the member asks for an acknowledgement.
func (j *Job) receive(member int, number uint64, messages []frame.Message) {
	in := &j.receiver
	in.mu.Lock()
	defer in.mu.Unlock()
	admitted, ok := j.admit(member, number, messages)
	if !ok {
		return
	}
	for i, a := range in.arrivals[:admitted] {
		if a.rank != nil {
			j.handle(a, &messages[i])
		}
	}
	in.burst.End()
	j.mu.Lock()
	j.flow.Receive(member, uint64(admitted))
	if len(messages) == 0 {
		j.flow.Ask(member, &in.returns.actions)
	}
	j.mu.Unlock()
	in.returns.send()
}

// admit counts messages that have arrived, up to the first that exceeds the sender's credits, and
// returns their number. It describes them in receiver.arrivals. It drops the messages behind, and
// with them all later frames of that member, because their numbers do not continue. It reports
// false if the numbers do not continue here. The caller holds receiver.mu.
func (j *Job) admit(member int, number uint64, messages []frame.Message) (n int, ok bool) {
	in := &j.receiver
	in.arrivals = in.arrivals[:0]
	for i := range messages {
		m := &messages[i]
		in.arrivals = append(in.arrivals, arrival{j.target(member, m), flow.Origin{
			Stream: flow.Stream{Channel: flow.Of(m), Member: member}, Number: number + uint64(i), Cost: m.Cost(),
		}})
	}
	j.mu.Lock()
	expected := j.flow.Expected(member)
	if number == expected {
		for n < len(in.arrivals) && (in.arrivals[n].rank == nil || j.flow.Admit(in.arrivals[n].origin)) {
			n++
		}
	}
	j.mu.Unlock()
	if number != expected {
		j.lost(member, number, expected)
		return 0, false
	}
	if n < len(in.arrivals) {
		a := in.arrivals[n]
		j.fault("node%d has sent rank %d on node%d more than its window of %d bytes has room for",
			j.config.Members[member], a.rank.number, j.engine.config.Self, a.origin.Channel.Window())
	}
	return n, true
}

// lost reports that the numbers of the messages from a member do not continue.
func (j *Job) lost(member int, sent, came uint64) {
	j.fault("messages between node%d and node%d were lost when a connection broke or a node kernel was started again (%d were sent, %d came)",
		j.config.Members[member], j.engine.config.Self, sent, came)
}

// target checks the source of a message and returns the rank that the message is for; nil if it
// must be ignored.
func (j *Job) target(member int, m *frame.Message) *rank {
	if int(m.Source) >= len(j.place) || j.place[m.Source] != member && m.Hops == 0 {
		j.engine.log.Printf("job %d: node%d sends a message of rank %d, which it does not have", j.config.Job, j.config.Members[member], m.Source)
		return nil
	}
	r := j.local[m.Target]
	if r == nil {
		j.engine.log.Printf("job %d: node%d sends a message to rank %d, which is not here", j.config.Job, j.config.Members[member], m.Target)
	}
	return r
}

// handle lets the extensions decide about a message, and carries out their verdict. The caller
// holds receiver.mu.
func (j *Job) handle(a arrival, m *frame.Message) {
	in := &j.receiver
	begin := j.recorder().Begin()
	var verdict slot.Verdict
	var target id.Rank
	if m.Handler == wire.HandlerPiece {
		d, err := j.judgePiece(a.origin, m)
		if err != nil {
			j.fault("rank %d has sent rank %d a message: %w", m.Source, m.Target, err)
			in.returns.Take(a.origin)
			return
		}
		verdict, target = d.verdict, d.target
	} else {
		verdict, target = j.judge(a.origin, m, len(m.Payload), slot.MaxHops)
	}
	if m.Handler == wire.HandlerRemote && j.serve(begin, a, m) {
		return
	}
	a.rank.recordArrived(begin, a.origin, m, verdict)
	switch verdict {
	case slot.Deliver:
		a.rank.deliver(endpoint.Ordinary, m, a.origin)
	case slot.Upcall:
		a.rank.deliver(endpoint.Upcalls, m, a.origin)
	case slot.Forward:
		j.forward(a.origin, *m, target)
	default:
		in.returns.Take(a.origin)
	}
}

// judge returns the verdict of the extensions about a message, and the target that they name. m is
// the message or its beginning, total is the number of bytes of its payload, and hops the most
// times that it may have been forwarded. judge sends the messages that the extensions send for it,
// and applies their changes. The caller holds receiver.mu.
func (j *Job) judge(o flow.Origin, m *frame.Message, total int, hops uint8) (slot.Verdict, id.Rank) {
	inspect := o.Member != j.self && !j.config.Set.Empty(slot.Packet)
	ask := m.Handler < wire.MaxHandlers && !j.config.Set.Empty(slot.Message) // higher ones are the libraries'
	if !inspect && !ask {
		return slot.Deliver, m.Target
	}
	h, verdict, target := &j.receiver.handled, slot.Deliver, m.Target
	h.begin(j.config.Members[o.Member], m, total, hops)
	if inspect {
		verdict = h.ask(slot.Packet)
	}
	if ask && verdict == slot.Pass {
		verdict = h.ask(slot.Message)
		target = h.namedTarget()
	}
	h.share(verdict == slot.Forward)
	j.cause(o, m.Source, h.sent)
	return verdict, target
}

// deliver gives the rank a message. The caller holds receiver.mu.
func (r *rank) deliver(to endpoint.Inbox, m *frame.Message, o flow.Origin) {
	waits := r.endpoint.Deliver(to, m, o, &r.job.receiver.returns)
	if r.job.config.Arrived != nil && waits > 0 {
		r.job.config.Arrived(r.number, waits)
	}
}

// forward queues a message for another rank. It does not wait.
func (j *Job) forward(o flow.Origin, m frame.Message, target id.Rank) {
	m.Payload = slices.Clone(m.Payload)
	m.Target, m.After = target, 0
	m.Hops++
	j.held(m.Source)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.flow.Forward(o, m)
	j.passOnSoon()
}

// passOnSoon wakes passOn, and starts it first if it does not run. The caller holds Job.mu.
func (j *Job) passOnSoon() {
	if !j.forwarding {
		j.forwarding = true
		j.running.Go(j.passOn)
	}
	j.changed.Broadcast()
}
