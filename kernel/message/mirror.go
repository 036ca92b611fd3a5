package message

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"margay/internal/cond"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/channel"
)

// awaitPath bounds how long a new extension waits for other nodes to send all messages through this
// node kernel.
const awaitPath = time.Second

// askEach is the number of calls of Tend after which an unanswered question is repeated.
const askEach = 10

// mirroring is the state of the node kernels for a job's mirrored channels.
type mirroring struct {
	path  uint64       // number of the last path that was published: odd if mirrored channels to this node's ranks are allowed
	seen  []uint64     // by member: the number of the path that it obeys
	open  []bool       // by member: it allows them to its ranks
	asked []bool       // by member: it was asked which messages are settled, and has not answered
	about []uint64     // by member: messages sent to it before it was asked last
	owed  []bool       // by member: it has asked that, and was not answered
	owing atomic.Int32 // how many of these; changed with Job.mu held
	tends bool         // there is a goroutine that tends them
	unmet map[channel.Pair]unmet
}

// unmet describes the other end of mirrored channels that could not be completed.
type unmet struct {
	frame.Meeting
	member int
	since  time.Time // the first attempt
}

func (j *Job) newMirroring() mirroring {
	n := len(j.config.Members)
	return mirroring{
		seen: make([]uint64, n), open: make([]bool, n), asked: make([]bool, n), about: make([]uint64, n), owed: make([]bool, n),
		unmet: make(map[channel.Pair]unmet),
	}
}

// on returns whether a rank is on a member.
func (j *Job) on(member int) func(id.Rank) bool {
	return func(r id.Rank) bool { return j.place[r] == member }
}

// remotes returns the members with which there are mirrored channels.
func (j *Job) remotes() map[int]bool {
	members := make(map[int]bool)
	for _, p := range j.channels.Far(false) {
		members[j.place[p.Rank]] = true
	}
	return members
}

// publish notifies the members with which there are mirrored channels whether such channels to
// ranks of this node are allowed. The caller holds Job.pathing.
func (j *Job) publish(allowed bool) {
	if j.config.Remote == nil {
		return
	}
	number := uint64(time.Now().UnixNano()) &^ 1 // differs from the numbers of earlier node kernels
	if allowed {
		number++
	}
	j.mu.Lock()
	if (j.mirroring.path^number)&1 == 0 && j.mirroring.path != 0 {
		j.mu.Unlock()
		return
	}
	begins := j.mirroring.path == 0
	j.mirroring.path = max(number, j.mirroring.path+1)
	j.mu.Unlock()
	if begins {
		return // there are none, or resume sends it
	}
	for member := range j.remotes() {
		j.sendPath(member)
	}
}

// sendPath sends a member the path. The last path that is sent is the last one that was published.
func (j *Job) sendPath(member int) {
	j.announcing.Lock()
	defer j.announcing.Unlock()
	j.mu.Lock()
	number := j.mirroring.path
	j.mu.Unlock()
	j.send(member, j.newFrame(frame.Path, number))
}

// awaitSeen waits until all members obey the path, or ctx or the job ends.
func (j *Job) awaitSeen(ctx context.Context) {
	members := j.remotes()
	if len(members) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(j.context, cancel)()
	j.mu.Lock()
	defer j.mu.Unlock()
	err := cond.Wait(ctx, &j.changed, func() bool {
		for member := range members {
			if j.mirroring.seen[member] < j.mirroring.path {
				return false
			}
		}
		return true
	})
	if err != nil && j.context.Err() == nil {
		j.engine.config.Log("job %d: a node does not confirm that it sends all messages through the node kernels", j.config.Job)
	}
}

// pathChanged handles a member's path.
func (j *Job) pathChanged(member int, number uint64) {
	open := number&1 == 1
	j.obey(member, func() { j.mirroring.open[member] = open })
	if open {
		// Messages of the time between may not be settled, and this node kernel has not asked.
		j.mu.Lock()
		if !j.closed {
			j.running.Go(j.remind)
		}
		j.mu.Unlock()
	}
	j.rouseAll() // room that a rank waits for may be on the other path
	j.send(member, j.newFrame(frame.PathSeen, number))
}

// obey has messages take mirrored channels to a member only if it allows that, after change has
// changed that.
func (j *Job) obey(member int, change func()) {
	j.announcing.Lock()
	defer j.announcing.Unlock()
	j.mu.Lock()
	change()
	open := j.mirroring.open[member]
	j.mu.Unlock()
	j.channels.Pause(j.on(member), !open)
}

func (j *Job) pathSeen(member int, number uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mirroring.seen[member] = number
	j.changed.Broadcast()
}

// speakFar notes that a rank sends a message to a rank of another node through the node kernels,
// and makes mirrored channels between them if there are none.
func (r *rank) speakFar(target id.Rank) {
	j := r.job
	if j.config.Remote == nil {
		return
	}
	if !r.met[target] {
		r.met[target] = true
		j.meet(r.index, target)
	}
	r.spoken[target] = true
}

// introduce makes the mirrored channels through which a leader completes barriers (package wire,
// "The board"), in the last barrier that does not use them: from then on the leader's messages
// about barriers need no node kernel, and a killed one loses none.
func (r *rank) introduce() {
	j := r.job
	if r.leads || r.seen < wire.Untried || r.index != 0 || !j.config.Meets || j.config.Remote == nil {
		return
	}
	r.leads = true
	leaders := j.leaders()
	own := slices.Index(leaders, r.number)
	for place, leader := range leaders {
		meets := wire.Exchange(own, place, len(leaders)) || j.climbs() && wire.Climb(own, place)
		if meets && !r.met[leader] {
			r.met[leader] = true
			j.meet(r.index, leader)
		}
	}
}

// passedFar notes that the messages of speakFar have been sent, and asks whether they are settled.
// The caller holds Job.sending.
func (r *rank) passedFar() {
	j := r.job
	if len(r.spoken) == 0 {
		return
	}
	position := r.endpoint.Sent().Position()
	for target := range r.spoken {
		member := j.place[target]
		if j.channels.SpokeFar(r.index, target, position, j.counters.flow.Sent[member]) {
			j.askSettled(member, false)
		}
	}
	clear(r.spoken)
}

// askSettled asks a member which messages are settled, unless it was already asked and again is not
// set. The caller holds Job.sending.
func (j *Job) askSettled(member int, again bool) {
	j.mu.Lock()
	ask := again || !j.mirroring.asked[member]
	j.mirroring.asked[member] = true
	if ask {
		j.mirroring.about[member] = j.counters.flow.Sent[member]
	}
	j.mu.Unlock()
	if ask {
		j.sendMessages(member, j.newFrame(frame.Settle, 0))
	}
}

// settle answers a member that asks which of its messages are settled, as soon as no messages wait
// for room in a ring.
func (j *Job) settle(member int) {
	j.mu.Lock()
	j.owe(member, true)
	j.mu.Unlock()
	j.settleOwed()
}

// owe notes whether an answer to a member is owed. The caller holds Job.mu.
func (j *Job) owe(member int, owed bool) {
	if m := &j.mirroring; m.owed[member] != owed {
		m.owed[member] = owed
		if owed {
			m.owing.Add(1)
		} else {
			m.owing.Add(-1)
		}
	}
}

// settleOwed answers the members that have asked which of their messages are settled, unless
// messages wait for room in a ring. A message is in its ring, or waits there, before it is counted.
// It is called whenever messages have been handled, and mostly nothing is owed.
func (j *Job) settleOwed() {
	if j.mirroring.owing.Load() == 0 {
		return
	}
	numbers := make(map[int]uint64) // by member
	j.mu.Lock()
	for member, owed := range j.mirroring.owed {
		if owed {
			numbers[member] = j.flow.Settled(member)
		}
	}
	j.mu.Unlock()
	for _, r := range j.local {
		if n, _ := r.endpoint.Overflow(); n > 0 {
			return
		}
	}
	for member, number := range numbers {
		j.mu.Lock()
		j.owe(member, false)
		j.mu.Unlock()
		j.send(member, j.newFrame(frame.Settled, number))
	}
}

// settled handles a member's answer. If messages have been sent since the question, it asks again.
// It does not if there are others that are not settled: these may be held for long.
func (j *Job) settled(member int, number uint64) {
	j.mu.Lock()
	j.mirroring.asked[member] = false // first: for a message that is sent from now on, it is asked again
	j.mu.Unlock()
	unsettled := j.channels.SettledFar(j.on(member), number)
	j.mu.Lock()
	if unsettled && number >= j.mirroring.about[member] && !j.closed {
		j.mirroring.about[member] = j.counters.flow.Sent[member] // a repeated answer does not ask once more
		j.running.Go(func() {
			j.sending.Lock()
			defer j.sending.Unlock()
			j.askSettled(member, false)
		})
	}
	j.mu.Unlock()
	j.rouseAll() // a rank may wait for that
}

// meet describes a local rank's end of mirrored channels to the node of the other rank. It makes
// the channels if there are none.
func (j *Job) meet(local int, target id.Rank) {
	own, complete, ok := j.channels.Meet(local, target)
	if !ok {
		return
	}
	member := j.place[target]
	j.sendPath(member)
	m := frame.Meeting{Source: j.config.Local[local], Target: target, Number: own.Number, Key: own.Key, Port: own.Port, Windows: j.windowPort(), Lacks: !complete}
	j.send(member, frame.AppendMeeting(j.newFrame(frame.Meet), m))
	j.tended()
}

// tended starts the goroutine that tends mirrored channels, if there is none.
func (j *Job) tended() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.mirroring.tends && !j.closed {
		j.mirroring.tends = true
		j.running.Go(j.tend)
	}
}

// meetFor bounds how long a rank's end of mirrored channels may be missing to which the other rank
// may send.
const meetFor = time.Minute

// meeting handles a member's description of its rank's end of mirrored channels. That rank may send
// to them from now on, so if they cannot be completed, meetAgain tries it again.
func (j *Job) meeting(member int, m frame.Meeting) {
	r := j.local[m.Target]
	if j.config.Remote == nil || r == nil || int(m.Source) >= len(j.place) || j.place[m.Source] != member {
		j.engine.log.Printf("job %d: node%d describes mirrored channels of ranks %d and %d", j.config.Job, j.config.Members[member], m.Source, m.Target)
		return
	}
	if _, _, ok := j.channels.Meet(r.index, m.Source); !ok {
		return
	}
	if err := j.channels.Met(r.index, m.Source, channel.Meeting{Number: m.Number, Key: m.Key, Port: m.Port, Windows: m.Windows}); err != nil {
		j.missed(channel.Pair{Local: r.index, Rank: m.Source}, unmet{m, member, time.Now()}, err)
		return
	}
	j.windowPort()
	j.admitClients()
	j.obey(member, func() { delete(j.mirroring.unmet, channel.Pair{Local: r.index, Rank: m.Source}) })
	j.rouseAll() // so that the rank fetches them
	if m.Lacks {
		j.meet(r.index, m.Source)
	}
}

// missed notes that mirrored channels could not be completed.
func (j *Job) missed(p channel.Pair, u unmet, err error) {
	j.engine.log.Printf("job %d: mirrored channels of ranks %d and %d: %v", j.config.Job, u.Target, u.Source, err)
	j.mu.Lock()
	if before, ok := j.mirroring.unmet[p]; ok {
		u.since = before.since
	}
	j.mirroring.unmet[p] = u
	j.mu.Unlock()
	if !u.Lacks && time.Since(u.since) > meetFor {
		j.fault("rank %d cannot receive what rank %d sends past the node kernels: %w", u.Target, u.Source, err)
	}
	j.tended()
}

// meetAgain tries again to complete mirrored channels.
func (j *Job) meetAgain() {
	j.mu.Lock()
	all := slices.Collect(maps.Values(j.mirroring.unmet))
	j.mu.Unlock()
	for _, u := range all {
		j.meeting(u.member, u.Meeting)
	}
}

// tend tends mirrored channels until the job ends.
func (j *Job) tend() {
	tick := time.NewTicker(channel.TendEach)
	defer tick.Stop()
	begin := time.Now()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-j.context.Done():
			return
		}
		for _, lost := range j.channels.Tend(time.Since(begin)) {
			j.fault("rank %d has sent a message to %w", lost.Source, &id.EndedError{Rank: lost.Target, Node: j.config.Nodes[lost.Target]})
		}
		if s := j.windowServer(); s != nil {
			j.channels.Peek(s.Take)
		}
		if n%askEach == 0 {
			j.meetAgain()
			j.remind()
		}
	}
}

// remind asks again which messages are settled, where mirrored channels wait for that: a member
// does not answer while messages wait for room.
func (j *Job) remind() {
	members := make(map[int]bool)
	for _, rank := range j.channels.UnsettledFar() {
		members[j.place[rank]] = true
	}
	j.sending.Lock()
	defer j.sending.Unlock()
	for member := range members {
		j.askSettled(member, true)
	}
}

// sendLast sends how many bytes a local rank that has ended had received from each rank that to
// selects, to that rank's node.
func (j *Job) sendLast(r *rank, to func(id.Rank) bool) {
	for _, last := range j.channels.LastOf(r.index) {
		if to(last.Rank) {
			j.send(j.place[last.Rank], j.newFrame(frame.Last, uint64(r.number)|uint64(last.Rank)<<32, last.Bytes))
		}
	}
}

// last handles a member's report of the bytes that its rank had received when it ended.
func (j *Job) last(member int, f *frame.Frame) {
	if r := j.local[f.Other]; r != nil && int(f.Rank) < len(j.place) && j.place[f.Rank] == member {
		j.channels.LastFar(r.index, channel.Last{Rank: f.Rank, Bytes: f.Number})
	}
}

// resumeFar continues with the mirrored channels to a member after frames may have been lost.
func (j *Job) resumeFar(member int) {
	if j.remotes()[member] {
		j.sendPath(member)
		for _, r := range j.local {
			j.sendLast(r, j.on(member))
		}
	}
	for _, p := range j.channels.Far(true) {
		if j.place[p.Rank] == member {
			j.meet(p.Local, p.Rank)
		}
	}
}

// adoptFar continues with the mirrored channels of an earlier node kernel.
func (j *Job) adoptFar() {
	if len(j.channels.Far(false)) == 0 {
		return
	}
	j.channels.Resume(func(r id.Rank) uint64 { return j.counters.flow.Sent[j.place[r]] })
	j.mirroring.tends = true
	j.running.Go(j.tend)
}
