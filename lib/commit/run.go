package commit

import (
	"bytes"

	"margay/kernel/abi/wire"
)

// run is a rank's part in the operation under way.
type run struct {
	part     *part
	number   uint64
	root     int // a place
	parent   int // nowhere: this rank is the root
	children []child
	op       wire.CommitOp
	call     *Call  // of the root; nil: it is abandoned
	data     []byte // of a transfer
	got      uint64 // bytes of data that are there

	status  wire.CommitStatus // of this rank, and of those below it that have voted
	place   int               // where it is not possible
	voted   bool              // this rank has
	decided bool
	commits bool // it is carried out
	told    int  // places before this one know that
	applied bool // it is, or never will be
}

// child is a rank below.
type child struct {
	place int
	begun bool   // it knows the operation
	sent  uint64 // bytes of data
	voted bool
	told  bool // it knows that nothing happens
	done  bool
}

// newRun prepares the operation at this rank.
func (p *part) newRun(number uint64, root int, op wire.CommitOp) *run {
	size := p.team.Size()
	own := (p.team.Place() - root + size) % size // places are counted from the root
	r := &run{part: p, number: number, root: root, parent: nowhere, op: op, place: p.team.Place()}
	if own != 0 {
		r.parent = (own&(own-1) + root) % size
	}
	if r.status = p.desk.memory.Prepare(&r.op); r.status != wire.CommitOK {
		return r
	}
	for bit := 1; own&bit == 0 && own+bit < size; bit *= 2 {
		r.children = append(r.children, child{place: (own + bit + root) % size})
	}
	return r
}

func (r *run) message(kind wire.CommitKind) wire.Commit {
	return wire.Commit{Number: r.number, Kind: kind}
}

// arrive takes a message of the operation.
func (r *run) arrive(place int, m wire.Commit, payload []byte) error {
	if m.Kind == wire.CommitVote || m.Kind == wire.CommitDone {
		for i := range r.children {
			if c := &r.children[i]; c.place == place && c.begun {
				return r.fromChild(c, m)
			}
		}
		return nonsense("place %d is not asked", place)
	}
	switch {
	case m.Kind == wire.CommitDecide:
		return r.takeDecision(place, m.Status == wire.CommitOK)
	case place != r.parent || r.decided:
		return nonsense("place %d sends data", place)
	case uint64(len(payload)) > r.op.Length()-r.got:
		return nonsense("there are more data than %d bytes", r.op.Length())
	default:
		if r.data != nil {
			copy(r.data[r.got:], payload)
		}
		r.got += uint64(len(payload))
	}
	return nil
}

// takeDecision takes the decision: from the root, or that nothing happens from the rank above.
func (r *run) takeDecision(place int, commits bool) error {
	source := r.parent
	if commits {
		source = r.root
	}
	if place != source || r.parent == nowhere || r.decided || r.op.ReadsOnly() || commits && (!r.voted || r.status != wire.CommitOK) {
		return nonsense("place %d decides", place)
	}
	r.decided, r.commits = true, commits
	return nil
}

// fromChild takes a message of a child, which may have the decision before this rank.
func (r *run) fromChild(c *child, m wire.Commit) error {
	if m.Kind == wire.CommitDone {
		if c.done || !c.told && (!c.voted || !r.voted || r.op.ReadsOnly()) {
			return nonsense("place %d has nothing to do", c.place)
		}
		c.done = true
		return nil
	}
	if m.Place == wire.NoPlace {
		m.Place = uint32(c.place)
	}
	if c.voted || int(m.Place) >= r.part.team.Size() || m.Status == wire.CommitAbandoned || m.Status == wire.CommitFalse && r.op.Compare == 0 {
		return nonsense("place %d votes", c.place)
	}
	c.voted = true
	if r.status == wire.CommitOK && m.Status != wire.CommitOK && !r.decided {
		r.status, r.place = m.Status, int(m.Place)
	}
	return nil
}

// all reports whether something is true of all children that know the operation.
func (r *run) all(is func(*child) bool) bool {
	for i := range r.children {
		if c := &r.children[i]; c.begun && !is(c) {
			return false
		}
	}
	return true
}

// step makes the next steps.
func (r *run) step(s Sender) (some bool, err error) {
	if r.status == wire.CommitOK && !r.decided {
		if some, err = r.spread(s); err != nil {
			return some, err
		}
	}
	if !r.voted && r.isKnown() {
		ok, err := r.vote(s)
		if !ok || err != nil {
			return some, err
		}
		some = true
	}
	if !r.decided || r.part.running != r {
		return some, nil
	}
	moved, err := r.close(s)
	return some || moved, err
}

// spread sends the operation and its data to the children, the largest subtree first.
func (r *run) spread(s Sender) (some bool, err error) {
	for i := len(r.children) - 1; i >= 0; i-- {
		c := &r.children[i]
		for !c.begun || c.sent < r.got {
			m, payload := r.message(wire.CommitBegin), []byte(nil)
			if m.Place = uint32(r.root); c.begun {
				m.Kind, m.Place = wire.CommitData, 0
				payload = r.data[c.sent:min(r.got, c.sent+wire.MaxPayload)]
			} else {
				payload = r.op.Encode()
			}
			ok, err := r.part.post(s, c.place, m, payload)
			if err != nil {
				return some, err
			}
			if !ok {
				break
			}
			if c.begun {
				c.sent += uint64(len(payload))
			}
			c.begun, some = true, true
		}
	}
	return some, nil
}

// isKnown reports whether the vote of this rank and those below it is known.
func (r *run) isKnown() bool {
	voted := r.all(func(c *child) bool { return c.voted })
	if r.status != wire.CommitOK {
		return voted || !r.op.ReadsOnly() // the decision reaches the others
	}
	for i := range r.children {
		voted = voted && r.children[i].begun
	}
	return voted && r.got == r.op.Length()
}

// vote votes, or decides at the root, and reports whether there was room for that. Where nothing is
// changed, the vote is the end.
func (r *run) vote(s Sender) (ok bool, err error) {
	if r.parent == nowhere {
		r.voted, r.decided, r.commits, r.applied = true, true, r.status == wire.CommitOK, r.op.ReadsOnly()
		return true, nil
	}
	m := r.message(wire.CommitVote)
	m.Status, m.Place = r.status, uint32(r.place)
	r.voted, err = r.part.post(s, r.parent, m, nil)
	if r.voted && r.op.ReadsOnly() {
		r.part.running = nil
	}
	return r.voted, err
}

// close passes the decision on, then carries it out, and ends the operation when all below have.
func (r *run) close(s Sender) (some bool, err error) {
	if !r.applied {
		all, some, err := r.pass(s)
		if !all || err != nil {
			return some, err
		}
		r.apply()
	}
	if !r.op.ReadsOnly() && !r.all(func(c *child) bool { return c.done }) {
		return false, nil
	}
	if r.parent == nowhere {
		return r.finish(s)
	}
	ok, err := r.part.post(s, r.parent, r.message(wire.CommitDone), nil)
	if ok {
		r.part.running = nil
	}
	return ok, err
}

// pass sends the decision, and reports whether all have it that this rank sends it to.
func (r *run) pass(s Sender) (all, some bool, err error) {
	switch {
	case !r.commits:
		return r.cancel(s)
	case r.parent != nowhere:
		return true, false, nil
	}
	for team := r.part.team; r.told < team.Size(); r.told++ {
		if r.told == team.Place() {
			continue
		}
		ok, err := r.part.post(s, r.told, r.message(wire.CommitDecide), nil)
		if !ok || err != nil {
			return false, some, err
		}
		some = true
	}
	return true, some, nil
}

// cancel is pass for the decision that nothing happens.
func (r *run) cancel(s Sender) (all, some bool, err error) {
	m := r.message(wire.CommitDecide)
	m.Status, all = wire.CommitAbandoned, true
	for i := range r.children {
		c := &r.children[i]
		if !c.begun || c.told {
			continue
		}
		if c.told, err = r.part.post(s, c.place, m, nil); err != nil {
			return false, some, err
		}
		all, some = all && c.told, some || c.told
	}
	return all, some, nil
}

func (r *run) apply() {
	if r.commits {
		r.part.desk.memory.Apply(&r.op, r.data)
	}
	r.applied, r.data = true, nil
}

// finish gives the turn back and ends the call. No message of it is left then, so the rank may end.
func (r *run) finish(s Sender) (some bool, err error) {
	p := r.part
	if ok, err := p.release(s, r.number); !ok || err != nil {
		return false, err
	}
	p.running = nil
	c := r.call
	if c == nil {
		return true, nil
	}
	p.calls = p.calls[1:]
	c.over, c.status, c.rank, c.data = true, r.status, p.team.Rank(r.place), nil
	if r.commits && c.local != wire.NoOffset {
		p.desk.memory.Count(c.op.Window, c.local)
	}
	return true, nil
}

// abandon takes the operation from its caller, and reports whether it takes effect.
func (r *run) abandon() (decided bool) {
	if r.decided {
		if !r.applied {
			r.data = bytes.Clone(r.data)
		}
		return r.commits
	}
	r.status, r.data = wire.CommitAbandoned, nil
	return false
}

// awaited returns a place below that this rank awaits.
func (r *run) awaited() []int {
	for i := range r.children {
		c := &r.children[i]
		if c.begun && (!c.voted && !r.voted || r.decided && !r.op.ReadsOnly() && !c.done) {
			return []int{c.place}
		}
	}
	return nil
}
