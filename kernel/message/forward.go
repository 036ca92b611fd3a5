package message

import (
	"encoding/binary"
	"fmt"
	"slices"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/record"
)

// lanes is how many windows a rank has at a node: for messages that have been forwarded 0 to slot.MaxHops times. A message that is
// to be forwarded keeps its room in one and waits for room in the next, so that messages cannot wait for each other in a circle.
const lanes = slot.MaxHops + 1

// lane is the index of such a window among those of all ranks.
func lane(rank id.Rank, hops uint8) int { return int(rank)*lanes + int(hops) }

// origin says where a message came from, and what room it took.
type origin struct {
	flow
	number uint64 // of the message among all from that member
	cost   uint64
}

// flow is what shares a window of a rank of this node.
type flow struct {
	rank   *rank
	member int // the node that sent it here
	hops   uint8
}

// lane is the lane that the flow's messages take room in.
func (f flow) lane() int { return lane(f.rank.number, f.hops) }

// held is a message whose room has not been given back: it is being forwarded, or one before it in its flow is. Room is given
// back in order, so that a total says which messages it is for.
type held struct {
	origin
	source id.Rank // of the message, if it is being forwarded
	done   bool
}

// forward is a message that waits for room in the window to its new target.
type forward struct {
	packet packet
	held   *held
}

// onward is a message that has been forwarded. It has come to where it went when so many bytes of its lane have been taken.
type onward struct {
	position uint64
	held     *held
}

// allow is an error when an extension may not answer so about the message in the context.
func (j *Job) allow(v slot.Verdict) error {
	if v != slot.Forward {
		return nil
	}
	switch target := j.namedTarget(); {
	case int(target) >= len(j.place):
		return fmt.Errorf("it forwards a message to rank %d of %d", target, len(j.place))
	case target == j.judged.target:
		return fmt.Errorf("it forwards a message to rank %d, which it has come to", target)
	case j.judged.hops >= slot.MaxHops:
		return fmt.Errorf("it forwards a message to rank %d that has been forwarded %d times", target, j.judged.hops)
	}
	return nil
}

// namedTarget is the rank that the context of the message slot names.
func (j *Job) namedTarget() id.Rank { return id.Rank(binary.LittleEndian.Uint32(j.event.Bytes()[12:])) }

// forward has a message go on to another rank. It does not wait.
func (j *Job) forward(o origin, p packet, target id.Rank) {
	p.payload = slices.Clone(p.payload)
	p.target = target
	p.hops++
	h := &held{origin: o, source: p.source}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.retain(p.source)
	*j.ledger.forwarding++
	j.held[o.flow] = append(j.held[o.flow], h)
	l := lane(p.target, p.hops)
	j.forwards[l] = append(j.forwards[l], forward{p, h})
	if !j.isForwarding {
		j.isForwarding = true
		j.running.Go(j.passOn)
	}
	j.changed.Broadcast()
}

// passOn sends what is to be forwarded, when there is room for it. It is on a goroutine of its own since it may wait, which those
// that receive may not.
func (j *Job) passOn() {
	batches := make([]*batch, len(j.config.Members))
	for {
		on := j.awaitForwards(batches)
		if on == nil {
			return
		}
		j.sendForwards(batches, on)
	}
}

// awaitForwards waits for messages that can be forwarded, takes room for them and puts them into batches. It returns nil when the
// job ends.
func (j *Job) awaitForwards(batches []*batch) (on []forward) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for !j.closed {
		for l, queue := range j.forwards {
			for len(queue) > 0 && j.room(l, queue[0].packet.cost()) {
				b := batchFor(batches, j, queue[0].packet.target)
				if len(b.frame) >= maxBatch {
					break
				}
				j.reserved[l] += queue[0].packet.cost()
				queue[0].held.rank.note(record.Forwarded, b, &queue[0].packet)
				b.add(queue[0].packet)
				on = append(on, queue[0])
				queue = queue[1:]
			}
			if j.forwards[l] = queue; len(queue) == 0 {
				delete(j.forwards, l)
			}
		}
		if on != nil {
			return on
		}
		j.changed.Wait()
	}
	return nil
}

// batchFor returns the batch for the node of a rank, a new one if there is none.
func batchFor(batches []*batch, j *Job, target id.Rank) *batch {
	member := j.place[target]
	if batches[member] == nil {
		batches[member] = newBatch(j.config.Job, j.key)
	}
	return batches[member]
}

// sendForwards sends batches of messages that are forwarded.
func (j *Job) sendForwards(batches []*batch, on []forward) {
	j.sending.Lock()
	defer j.sending.Unlock()
	j.countBatches(batches)
	j.mu.Lock()
	for _, f := range on {
		l, cost := lane(f.packet.target, f.packet.hops), f.packet.cost()
		j.reserved[l] -= cost
		j.ledger.spent[l] += cost
		j.onward[l] = append(j.onward[l], onward{j.ledger.spent[l], f.held})
	}
	j.mu.Unlock()
	j.sendBatches(batches)
}

// taken notes that a message is done with here, so that the room that it took can be given back.
func (j *Job) taken(o origin, back *refunds) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if list := j.held[o.flow]; len(list) > 0 {
		j.held[o.flow] = append(list, &held{origin: o, done: true})
		return
	}
	j.giveBack(o, back)
}

// giveBack gives back the room that a message took. The caller holds Job.mu.
func (j *Job) giveBack(o origin, back *refunds) {
	total := &j.ledger.takenOf(o.rank.index, o.hops)[o.member]
	*total += o.cost
	if o.member == j.self {
		j.grant(o.lane(), *total, back)
		return
	}
	told := &j.granting[o.rank.index*lanes+int(o.hops)][o.member]
	// Who forwards waits to hear of each message.
	if o.hops == 0 && *total-*told < window/4 {
		return
	}
	*told = *total
	back.grant(j, o.member, grant{o.rank.number, o.hops, *total})
}

// grant notes how much of a lane has been taken, and what has come to where it was forwarded. The caller holds Job.mu.
func (j *Job) grant(l int, total uint64, back *refunds) {
	j.granted[l] = max(j.granted[l], total)
	j.changed.Broadcast()
	for len(j.onward[l]) > 0 && j.onward[l][0].position <= total {
		h := j.onward[l][0].held
		j.onward[l] = j.onward[l][1:]
		h.done = true
		j.placed(h.source)
		j.giveBackHeld(h.flow, back)
		*j.ledger.forwarding--
	}
	if len(j.onward[l]) == 0 {
		delete(j.onward, l)
	}
}

// giveBackHeld gives back the room of the messages of a flow up to the first that is still being forwarded. The caller holds
// Job.mu.
func (j *Job) giveBackHeld(f flow, back *refunds) {
	list := j.held[f]
	for len(list) > 0 && list[0].done {
		j.giveBack(list[0].origin, back)
		list = list[1:]
	}
	if j.held[f] = list; len(list) == 0 {
		delete(j.held, f)
	}
	if f.hops > 0 {
		return
	}
	if f.member == j.self {
		back.barrier = true
	} else if asked := j.asked[f.member]; asked > 0 && j.settled(f.member) >= asked {
		j.asked[f.member] = 0
		back.came = append(back.came, came{f.member, asked})
	}
}

// settled returns how many of the messages of a member's ranks have come to a rank or are done with. The caller holds Job.mu.
func (j *Job) settled(member int) uint64 {
	n := j.ledger.received[member]
	for _, r := range j.local {
		if list := j.held[flow{rank: r, member: member}]; len(list) > 0 {
			n = min(n, list[0].number)
		}
	}
	return n
}

// came says how many messages of a member's ranks are settled.
type came struct {
	member int
	number uint64
}

// refunds are what other nodes are to be told when locks are free.
type refunds struct {
	grants  map[int][]byte // by member: a frame
	came    []came
	barrier bool // this node may be through with one
}

func (b *refunds) grant(j *Job, member int, g grant) {
	if b.grants == nil {
		b.grants = make(map[int][]byte)
	}
	if b.grants[member] == nil {
		b.grants[member] = j.newFrame(kindWindow)
	}
	b.grants[member] = appendGrant(b.grants[member], g)
}

// send tells what is to be told.
func (b *refunds) send(j *Job) {
	for member, frame := range b.grants {
		j.send(member, frame)
	}
	for _, c := range b.came {
		j.send(c.member, j.newFrame(kindCame, c.number))
	}
	if b.barrier {
		j.barrier()
	}
}
