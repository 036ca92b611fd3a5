package message

// window is how many bytes of messages from one node to one rank may be on their way or wait for room at its node, besides those
// that were forwarded. A rank's node grants anew when a quarter has been taken.
const window = 256 << 10

// windowOf is how wide a lane is, in bytes.
func windowOf(lane int) uint64 {
	if lane%lanes == 0 {
		return window
	}
	return window / 4
}

// intake is what has come from a member through a lane of a rank of this node. The ledger need not hold it: messages that had come
// and were not taken are lost with the node kernel, so the next one begins with what was taken.
type intake struct {
	came  uint64 // bytes
	limit uint64 // of came, as far as is known: what has been taken, and a window more
}

// admit counts a message that has come. It reports false when the sender had no room for it. A sender knows of no more that was
// taken than this node does, so none that counts right is refused. The caller holds Job.receiving.
func (j *Job) admit(o origin) bool {
	in := &j.intake[o.rank.index*lanes+int(o.hops)][o.member]
	if in.came+o.cost > in.limit {
		j.mu.Lock()
		in.limit = j.ledger.takenOf(o.rank.index, o.hops)[o.member] + windowOf(o.lane())
		j.mu.Unlock()
	}
	if in.came+o.cost > in.limit {
		return false
	}
	in.came += o.cost
	return true
}

// reserve takes room in a lane. It reports whether there was enough.
func (j *Job) reserve(lane int, cost uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.room(lane, cost) {
		return false
	}
	j.reserved[lane] += cost
	return true
}

// spend notes that messages for which room was taken are sent now. Until then a node kernel that is killed has sent nothing,
// and its successor finds the room free.
func (j *Job) spend(costs map[int]uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for lane, cost := range costs {
		j.reserved[lane] -= cost
		j.ledger.spent[lane] += cost
	}
	clear(costs)
}

// room reports whether there is room in a lane. The caller holds Job.mu.
func (j *Job) room(lane int, cost uint64) bool {
	return j.ledger.spent[lane]+j.reserved[lane]+cost <= j.granted[lane]+windowOf(lane)
}

// awaitRoom waits until there is room in a lane. It reports false when the job ends.
func (j *Job) awaitRoom(lane int, cost uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for !j.closed && !j.room(lane, cost) {
		j.changed.Wait()
	}
	return !j.closed
}
