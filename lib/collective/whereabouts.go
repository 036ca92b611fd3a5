package collective

import (
	"fmt"
	"slices"

	"margay/kernel/abi/wire"
)

// Calls that do not match. A chunk of another call than the awaited one shows it at once. Where two
// ranks await each other, or the awaited one has nothing to send, no such chunk comes: then the
// answers to probes show it (wire.Where), after firstPatience or the double of the time that has
// passed. A rank in a barrier of the job says so, which is an error only when a time-out ends one
// of the two: another goroutine of the rank may make the call.

// header returns this rank's call of a number, unless it has not started it or has forgotten it.
func (g *Group) header(number uint16) (wire.Call, bool) {
	for _, c := range g.queue {
		if c.header.Number == number {
			return c.header, true
		}
	}
	return g.last, g.last.Number == number
}

// isAhead reports whether this rank has not started the call of a number.
func (g *Group) isAhead(number uint16) bool {
	ahead := (int(number) - int(g.number) + wire.MaxCallNumber) % wire.MaxCallNumber
	return ahead > 0 && ahead <= wire.MaxCallNumber/2
}

// ask notes that the rank at a place wants to know where this one is.
func (g *Group) ask(place int, number uint16) {
	if number != 0 {
		g.streams.peer(place).asks, g.asked = number, true
	}
}

// learn takes the payload of a message about where ranks are, from the one at a place. The sender
// may have written anything; the error wraps wire.ErrChunk.
func (g *Group) learn(place int, payload []byte) error {
	wheres, err := wire.ParseWheres(payload)
	if err != nil {
		return err
	}
	for _, w := range wheres {
		if _, ok := g.PlaceOf(int(w.Rank)); !ok || w.Call.Group != g.id || int(w.Call.Root) >= g.Size() {
			return fmt.Errorf("%w: %s, which is not of this group", wire.ErrChunk, w)
		}
		g.compare(place, w)
	}
	if len(wheres) > 1 && g.awaitsMore(place) { // its group is broken
		g.Break(&mismatch{wheres[0], g.queue[0].header})
	}
	return nil
}

// awaits reports whether the first call awaits a rank.
func (g *Group) awaits(rank int) bool { return g.Busy() && g.Awaited() == rank }

// awaitsMore reports whether the first call awaits the rank at a place, and has used all that came
// from there.
func (g *Group) awaitsMore(place int) bool {
	return g.awaits(g.Rank(place)) && !g.streams.peer(place).hasData()
}

// compare compares where another rank is with where this one is. The rank at a place has said it,
// and gets this rank's call if the two differ.
func (g *Group) compare(place int, w wire.Where) {
	if w.Call.Number == 0 {
		if g.awaits(int(w.Rank)) && g.apart == nil {
			g.apart = &w
			g.ask(place, g.queue[0].header.Number)
		}
		return
	}
	own, ok := g.header(w.Call.Number)
	switch {
	case !ok && g.isAhead(w.Call.Number):
		g.early = &w
		// What it sent in earlier calls came before this message, and is used.
		if g.Rank(place) == int(w.Rank) && g.awaitsMore(place) {
			g.Break(&mismatch{w, g.queue[0].header})
		}
	case ok && own != w.Call && g.clash == nil:
		g.Break(&mismatch{w, own})
		g.ask(place, own.Number)
	}
}

// Answer sends the answers to ranks that have asked where this one is, while there is room. meets
// says that it is in a barrier of the job. It reports whether some are left.
func (g *Group) Answer(s Sender, meets bool) (left bool) {
	if !g.asked {
		return false
	}
	g.asked = false
	for place, p := range g.streams.peers {
		if p == nil || p.asks == 0 {
			continue
		}
		if wheres := g.whereabouts(p.asks, meets); len(wheres) > 0 {
			// A rank that has ended needs no answer.
			sent, err := s.Post(g.Rank(place), wire.Call{Group: g.id, Kind: wire.CallWhere}.Args(), wire.WherePayload(wheres...))
			if !sent && err == nil {
				g.asked = true
				continue
			}
		}
		p.asks = 0
	}
	return g.asked
}

// whereabouts returns what a rank wants to know that awaits this one in the call of a number.
func (g *Group) whereabouts(number uint16, meets bool) []wire.Where {
	if g.clash != nil { // the calls that differ, which the rank may have left behind
		return []wire.Where{g.here(g.clash.own), g.clash.where}
	}
	own, ok := g.header(number)
	switch {
	case ok:
		return []wire.Where{g.here(own)}
	case !g.isAhead(number): // the call is over here, and another one, too
		return []wire.Where{g.here(g.current())}
	case meets:
		return []wire.Where{g.here(wire.Call{Group: g.id, Kind: wire.CallBarrier})}
	}
	return nil
}

// current returns the first call that is not over, or the last one.
func (g *Group) current() wire.Call {
	if g.Busy() {
		return g.queue[0].header
	}
	return g.last
}

func (g *Group) here(c wire.Call) wire.Where { return wire.Where{Rank: uint32(g.Rank(g.own)), Call: c} }

// Apart continues "waiting for rank 1" if that rank, which the first call awaits, is known to be
// elsewhere; else it is "".
func (g *Group) Apart() string {
	if g.apart == nil {
		return ""
	}
	own := g.queue[0].header
	return fmt.Sprintf(" in call %d, %s: %s", own.Number, own, g.apart)
}

// Early returns a rank in a call that this one has not started, and false if none is known.
func (g *Group) Early() (w wire.Where, ok bool) {
	if g.early != nil && g.isAhead(g.early.Call.Number) {
		return *g.early, true
	}
	place := slices.IndexFunc(g.streams.peers, func(p *peer) bool { return p != nil && p.hasData() && g.isAhead(p.chunks[0].call.Number) })
	if place < 0 {
		return w, false
	}
	return wire.Where{Rank: uint32(g.Rank(place)), Call: g.streams.peers[place].chunks[0].call}, true
}
