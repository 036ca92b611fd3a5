package message

import (
	"context"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/border"
	"margay/kernel/call"
	"margay/kernel/channel"
)

// channelConfig describes the ranks of this node, all of whose messages so far are settled or lost.
func (j *Job) channelConfig() channel.Config {
	c := channel.Config{Remote: j.config.Remote, Leaders: j.leaders, Keeper: j.config.Keeper, Log: func(format string, args ...any) {
		j.engine.log.Printf("job %d: "+format, append([]any{j.config.Job}, args...)...)
	}}
	if j.engine.config.Border != nil {
		c.Seals = seals{j}
	}
	for _, number := range j.config.Local {
		r := j.local[number]
		c.Ranks = append(c.Ranks, channel.Rank{Number: number, Area: r.endpoint.Area(), Passed: r.endpoint.Sent().Position()})
	}
	return c
}

// findLeaders returns the lowest rank of each node.
func (j *Job) findLeaders() (leaders []id.Rank) {
	for _, rank := range wire.Leaders(len(j.place), func(rank uint32) uint32 { return uint32(j.place[rank]) }) {
		leaders = append(leaders, id.Rank(rank))
	}
	return leaders
}

// Repath determines again which messages must pass this node kernel. It must be called after the
// extensions in the slots message and packet have changed, recording has begun or ended, or
// JobConfig.Scheduled has changed. While there is an extension, Repath returns once the other nodes
// obey the change, so that the extension sees all messages sent from then on.
func (e *Engine) Repath() {
	var waits []*Job
	for _, j := range e.all() {
		if !j.enter() {
			continue
		}
		defer j.running.Done()
		j.setPath()
		j.rouseAll() // room that a rank waits for may be on the other path
		if !j.config.Set.Empty(slot.Message) || j.inspects() {
			waits = append(waits, j)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), awaitPath)
	defer cancel()
	for _, j := range waits {
		j.awaitSeen(ctx)
	}
}

// setPath publishes which messages must pass this node kernel, and how ranks may wait.
func (j *Job) setPath() {
	j.pathing.Lock() // keeps a stale state from overwriting a newer one
	defer j.pathing.Unlock()
	var bits uint32
	records, handles, inspects := j.recorder().On(), !j.config.Set.Empty(slot.Message), j.inspects()
	if !records && !handles && !inspects {
		bits |= wire.PathMeet
	}
	judged := j.judged()
	if j.climbs() {
		bits |= wire.PathStrewn
	}
	if !j.scheduled() {
		switch j.config.Crowd {
		case Apart:
			bits |= wire.PathSpin | wire.PathYield
		case Together:
			bits |= wire.PathYield
		}
		if !records && !handles {
			bits |= wire.PathDirect
		}
		if !records && (!handles || judged) {
			bits |= wire.PathFar
		}
	}
	j.channels.SetPath(bits)
	j.publish(bits&wire.PathFar != 0 && (!inspects || judged))
}

// judged has the messages that pass no node kernel judged on the interface, if all extensions that
// want to see them run there, and reports whether they are. The caller holds Job.pathing.
func (j *Job) judged() bool {
	border := j.engine.config.Border
	if border == nil {
		return false
	}
	on := border.Judges(j.config.Set.Judges())
	if err := j.channels.Seal(on); err != nil {
		j.engine.config.Log("job %d: %v", j.config.Job, err)
		return false
	}
	return on
}

// seals is the job as its channels see the border.
type seals struct{ *Job }

// Admit implements channel.Seals.
func (s seals) Admit(p channel.Peering, seal, position uint64) (bool, error) {
	return s.engine.config.Border.Admit(s.pair(p), seal, position)
}

// Advance implements channel.Seals.
func (s seals) Advance(p channel.Peering, position uint64) error {
	return s.engine.config.Border.Advance(s.pair(p), position)
}

// Leave implements channel.Seals.
func (s seals) Leave(p channel.Peering) { s.engine.config.Border.Leave(s.pair(p)) }

// pair describes mirrored channels to the border.
func (s seals) pair(p channel.Peering) border.Pair {
	return border.Pair{
		Number: p.Own.Number, Key: p.Own.Key, Port: p.Own.Port, From: p.Address,
		Job: s.config.Job, Node: s.config.Nodes[p.Rank], Source: p.Rank, Target: s.config.Local[p.Local],
	}
}

// climbs reports whether the leader of this node wants barriers to climb the tree: on shared CPUs
// it matters how often ranks are woken. For two nodes, an exchange has as few notes as the tree,
// and they need not wait for each other.
func (j *Job) climbs() bool { return j.config.Crowd == Strewn && len(j.config.Members) > 2 }

// inspects reports whether extensions in slot packet want to see the messages from other nodes.
func (j *Job) inspects() bool {
	return len(j.config.Members) > 1 && !j.config.Set.Empty(slot.Packet)
}

// scheduled reports whether a scheduler wants to be notified of each message and each rank that is
// woken.
func (j *Job) scheduled() bool {
	if j.config.Scheduled != nil {
		return j.config.Scheduled()
	}
	return j.config.Arrived != nil || j.config.Woken != nil
}

// held notes that a message of a rank waits for room or is being forwarded. placed notes that it no
// longer does.
func (j *Job) held(source id.Rank) {
	if r := j.local[source]; r != nil {
		j.channels.Settling(r.index).Held()
	}
}

func (j *Job) placed(source id.Rank) {
	if r := j.local[source]; r != nil {
		j.channels.Settling(r.index).Placed()
	}
}

// leaves notes that a rank has ended, and wakes the ranks that may wait for it.
func (j *Job) leaves(r *rank) {
	j.channels.Ended(r.index)
	j.rouseAll()
}

// rouseAll rings the bells of all sleeping ranks.
func (j *Job) rouseAll() {
	for _, r := range j.local {
		r.endpoint.RouseSleeper()
	}
}

// channel returns one of the rank's channels.
func (r *rank) channel(index uint64) (call.Channel, error) {
	f, err := r.job.channels.Fetch(r.index, index)
	c := call.Channel{Local: f.Local, Sends: f.Producer, Mirror: f.Mirror, File: f.Memory, Doorbell: f.Bell}
	if err == nil && f.Mirror == nil {
		c.Peer = r.job.config.Local[f.Local]
	}
	return c, err
}
