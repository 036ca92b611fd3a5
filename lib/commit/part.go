package commit

import (
	"fmt"
	"slices"
	"time"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// nowhere is not a place.
const nowhere = -1

// part is a rank's part in the operations of a group.
type part struct {
	desk   *Desk
	team   *collective.Group
	broken error // why no operation is possible any more

	// Of the leader, place 0.
	holder  int    // has the turn
	waiting []int  // want it, in the order of asking
	granted uint64 // number of the last turn

	calls   []*Call // of this rank that are not over, in the order of starting
	asked   bool    // this rank has asked for a turn, and has not given it back
	vain    uint64  // a turn that came after its call was abandoned; 0: none
	running *run    // the operation under way; nil: none that this rank knows
	last    uint64  // number of the last one

	patience time.Duration // 0: something has happened since Desk.Due looked
	due      time.Duration // when the ranks that this one awaits are probed
}

func (p *part) isBusy() bool {
	return p.running != nil || p.asked || len(p.calls) > 0 || p.holder != nowhere || len(p.waiting) > 0
}

// post sends a message to a place.
func (p *part) post(s Sender, place int, m wire.Commit, payload []byte) (bool, error) {
	m.Group = p.team.ID()
	return s.Post(p.team.Rank(place), m.Args(), payload)
}

func nonsense(format string, args ...any) error {
	return fmt.Errorf("%w: %s", wire.ErrCommit, fmt.Sprintf(format, args...))
}

// arrive takes a message of a place.
func (p *part) arrive(place int, m wire.Commit, payload []byte) error {
	switch m.Kind {
	case wire.CommitAsk:
		if p.team.Place() != 0 || place == p.holder || slices.Contains(p.waiting, place) {
			return nonsense("place %d asks for a turn", place)
		}
		p.waiting = append(p.waiting, place)
		return nil
	case wire.CommitRelease:
		if place != p.holder || m.Number != p.granted {
			return nonsense("place %d does not have the turn", place)
		}
		p.holder = nowhere
		return nil
	case wire.CommitGrant:
		return p.grant(place, m)
	case wire.CommitBegin:
		return p.begin(place, m, payload)
	}
	if p.running == nil || p.running.number != m.Number {
		return nonsense("no such operation is under way")
	}
	return p.running.arrive(place, m, payload)
}

// grant takes the turn.
func (p *part) grant(place int, m wire.Commit) error {
	switch {
	case place != 0 || !p.asked || p.running != nil || p.vain != 0:
		return nonsense("place %d grants a turn", place)
	case m.Status == wire.CommitFreed:
		for _, c := range p.calls {
			c.over, c.status, c.rank = true, wire.CommitFreed, p.team.Rank(0)
		}
		p.calls, p.asked = nil, false
		return nil
	case m.Number <= p.last:
		return nonsense("a turn comes again")
	}
	p.take(m.Number)
	return nil
}

// take begins the first call with a turn.
func (p *part) take(number uint64) {
	p.last = number
	if len(p.calls) == 0 {
		p.vain = number
		return
	}
	c := p.calls[0]
	c.turn = number
	p.running = p.newRun(number, p.team.Place(), c.op)
	p.running.call, p.running.data, p.running.got = c, c.data, uint64(len(c.data))
}

// release gives the turn back, and reports whether there was room for that.
func (p *part) release(s Sender, number uint64) (ok bool, err error) {
	if p.team.Place() == 0 {
		p.holder, ok = nowhere, true
	} else {
		ok, err = p.post(s, 0, wire.Commit{Number: number, Kind: wire.CommitRelease}, nil)
	}
	if ok {
		p.asked, p.vain = false, 0
	}
	return ok, err
}

// begin takes an operation of another rank.
func (p *part) begin(place int, m wire.Commit, payload []byte) error {
	op, err := wire.ParseCommitOp(payload)
	switch {
	case err != nil:
		return err
	case p.running != nil || m.Number <= p.last:
		return nonsense("another operation is under way")
	case int(m.Place) >= p.team.Size() || int(m.Place) == p.team.Place():
		return nonsense("its root is place %d", m.Place)
	}
	r := p.newRun(m.Number, int(m.Place), op)
	if r.parent != place {
		return nonsense("place %d is not above this one", place)
	}
	p.running, p.last = r, m.Number
	if r.status == wire.CommitOK {
		r.data = make([]byte, op.Length()) // it is within the window
	}
	return nil
}

// advance makes all possible steps, and reports whether there were any.
func (p *part) advance(s Sender) (some bool) {
	for {
		moved, err := p.step(s)
		if err != nil {
			p.fail(err)
			return true
		}
		if !moved {
			return some
		}
		p.patience, some = 0, true
	}
}

func (p *part) step(s Sender) (some bool, err error) {
	for _, f := range []func(Sender) (bool, error){p.giveBack, p.ask, p.grantNext} {
		moved, err := f(s)
		if err != nil {
			return some, err
		}
		some = some || moved
	}
	if p.running == nil {
		return some, nil
	}
	moved, err := p.running.step(s)
	return some || moved, err
}

// giveBack gives a turn back whose call is abandoned.
func (p *part) giveBack(s Sender) (some bool, err error) {
	if p.vain == 0 {
		return false, nil
	}
	return p.release(s, p.vain)
}

// ask asks for a turn.
func (p *part) ask(s Sender) (some bool, err error) {
	switch {
	case len(p.calls) == 0 || p.asked:
		return false, nil
	case p.team.Place() == 0:
		p.waiting, p.asked = append(p.waiting, 0), true
		return true, nil
	}
	p.asked, err = p.post(s, 0, wire.Commit{Kind: wire.CommitAsk}, nil)
	return p.asked, err
}

// grantNext grants the next turn.
func (p *part) grantNext(s Sender) (some bool, err error) {
	if p.holder != nowhere || len(p.waiting) == 0 {
		return false, nil
	}
	place, number := p.waiting[0], p.granted+1
	if place != 0 {
		if ok, err := p.post(s, place, wire.Commit{Number: number, Kind: wire.CommitGrant}, nil); !ok || err != nil {
			return false, err
		}
	}
	p.holder, p.waiting, p.granted = place, p.waiting[1:], number
	if place == 0 {
		p.take(number)
	}
	return true, nil
}

// fail ends all operations of the group.
func (p *part) fail(err error) {
	for _, c := range p.calls {
		c.over, c.err = true, err
	}
	*p = part{desk: p.desk, team: p.team, holder: nowhere, broken: err}
}

// awaited returns the places that this rank awaits.
func (p *part) awaited() (places []int) {
	switch {
	case p.running != nil:
		places = p.running.awaited()
		if p.running.parent != nowhere && len(p.calls) > 0 {
			places = append(places, p.running.root) // it may have ended
		}
	case p.asked && p.team.Place() != 0:
		places = []int{0}
	}
	if p.holder > 0 && len(p.waiting) > 0 {
		places = append(places, p.holder)
	}
	return places
}
