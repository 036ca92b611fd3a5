package boot

import (
	"slices"
	"time"
)

// Turns decides which nodes fetch the kernel and the image at the same time. When all machines of a
// rack are switched on, the first ones are up early instead of all of them late, and what the
// transfers need is bounded. The others wait in the order in which they have asked. It is a state
// machine: requests and times in, decisions out. The number of nodes bounds its state. It is not
// safe for concurrent use.
type Turns struct {
	most    int
	running map[MAC]turn
	waiting []waiter
}

// turn is a node that fetches.
type turn struct {
	begun time.Time
	since time.Time // when the current paceTime began
	moved int       // bytes sent to it since
}

// waiter is a node that waits for its turn.
type waiter struct {
	mac   MAC
	asked time.Time // last
}

// Bounds of a turn.
const (
	// A turn goes on while at least leastPace bytes are sent in each paceTime, for turnTime at
	// most. The transfer of a slow reader goes on after its turn, beside the turns of others.
	paceTime  = 15 * time.Second
	leastPace = 256 << 10
	turnTime  = 3 * time.Minute
	// waiterTime is how long a node waits that does not ask again. It asks every turnWait.
	waiterTime = 30 * time.Second
)

// NewTurns returns turns of so many nodes at the same time.
func NewTurns(most int) *Turns { return &Turns{most: most, running: make(map[MAC]turn)} }

// Ask reports whether a node may fetch now. If not, it waits, and a number of nodes come before it.
// Next are the nodes whose turn begins.
func (t *Turns) Ask(now time.Time, mac MAC) (ok bool, before int, next []MAC) {
	next = t.Expire(now)
	if _, ok := t.running[mac]; ok {
		return true, 0, next
	}
	before = t.place(mac)
	if before < 0 {
		before = len(t.waiting)
		t.waiting = append(t.waiting, waiter{mac: mac})
	}
	t.waiting[before].asked = now
	if len(t.running) < t.most {
		return true, 0, append(next, t.begin(now)...)
	}
	return false, before, next
}

// Moved notes that a number of bytes was sent to a node.
func (t *Turns) Moved(mac MAC, bytes int) {
	if own, ok := t.running[mac]; ok {
		own.moved += bytes
		t.running[mac] = own
	}
}

// Leave ends the turn of a node that has fetched everything, or the wait of one that is gone. Next
// are the nodes whose turn begins.
func (t *Turns) Leave(now time.Time, mac MAC) (next []MAC) {
	delete(t.running, mac)
	t.waiting = slices.DeleteFunc(t.waiting, func(w waiter) bool { return w.mac == mac })
	return t.Expire(now)
}

// Expire ends the turns and waits that have lasted too long. Next are the nodes whose turn begins.
func (t *Turns) Expire(now time.Time) (next []MAC) {
	for mac, own := range t.running {
		over := now.Sub(own.since) > paceTime
		switch {
		case over && own.moved < leastPace || now.Sub(own.begun) > turnTime:
			delete(t.running, mac)
		case over:
			own.since, own.moved = now, 0
			t.running[mac] = own
		}
	}
	t.waiting = slices.DeleteFunc(t.waiting, func(w waiter) bool { return now.Sub(w.asked) > waiterTime })
	return t.begin(now)
}

// begin gives the free turns to the nodes that have waited longest, and returns them.
func (t *Turns) begin(now time.Time) (next []MAC) {
	for len(t.running) < t.most && len(t.waiting) > 0 {
		mac := t.waiting[0].mac
		t.waiting = slices.Delete(t.waiting, 0, 1)
		t.running[mac] = turn{begun: now, since: now}
		next = append(next, mac)
	}
	return next
}

// place returns the number of nodes that wait before one; -1 if it does not wait.
func (t *Turns) place(mac MAC) int {
	return slices.IndexFunc(t.waiting, func(w waiter) bool { return w.mac == mac })
}
