// Package spare decides when a node starts a job init ahead of its job, which inits of jobs that
// are over it keeps for later ones, and which launch gets them. It starts nothing itself: events
// and the time go in, actions come out.
//
// An init that waits for its job is a spare. Its life:
//
//	absent -- Step, when one may be started --> starting -- Ready --> ready -- Launch --> absent
//	absent -- Return, of a job's init --> ready
//	starting, ready -- too late, or too many, or Close --> absent
//
// The launch of a job gets a spare that is ready, and it is that job's alone. An init that comes
// back from a job is for jobs of the same owner. The node starts a spare when it has none, but not
// during a launch, nor for a moment after the ranks have started, unless the job has ended by then:
// a launch should not compete with preparations for the next one. After a spare that could not be
// used, the next one is started after a pause that doubles each time. Of the spares that come back,
// all but the newest end when they have not been needed for a while.
package spare

import (
	"slices"
	"time"
)

// Serial identifies a spare of one machine; they are numbered from 1. 0: none.
type Serial uint64

// Limits are the times of a Machine.
type Limits struct {
	Start      time.Duration // within which a spare must be ready
	Settle     time.Duration // from the start of a job's ranks to the start of the next spare
	FirstPause time.Duration // after a spare that could not be used
	LastPause  time.Duration // the longest such pause; a spare that waited for longer is not such a spare
	Idle       time.Duration // how long a spare waits that is not the only one
	Most       int           // how many inits that come back from jobs may wait
}

// Default are the times of a node.
var Default = Limits{Start: 30 * time.Second, Settle: 50 * time.Millisecond, FirstPause: 100 * time.Millisecond, LastPause: time.Minute, Idle: 5 * time.Second, Most: 16}

// Rest is how much later than otherwise the next spare is started for the sake of other nodes of a
// job, which share the processors.
type Rest struct {
	Launched time.Duration // after the start of the job's ranks, while it runs
	Ended    time.Duration // after its end
}

// Nodes of one host that had the same job prepare for the next one in turns of restTogether nodes
// for each processor. restEach is the time of a processor that this takes each node, and restMeet
// the time that its ranks take to find the other ranks if they use MPI; both with some to spare.
const (
	restTogether = 32
	restEach     = 40 * time.Millisecond
	restMeet     = 80 * time.Millisecond
)

// RestOf returns the rest of the node at a place, from 0, of a job on so many nodes of a host with
// so many processors. After the ranks of this node have started, other nodes may still launch the
// job, or ranks find each other.
func RestOf(place, nodes, processors int) Rest {
	together := restTogether * processors
	return Rest{
		Launched: time.Duration(max(0, nodes-1)) * restMeet / time.Duration(processors),
		Ended:    time.Duration(place/together) * restTogether * restEach,
	}
}

// waiting is a spare that is ready.
type waiting struct {
	serial Serial
	since  time.Time
	owner  string // of the job that it comes from; empty: it has had none
}

// Machine is the life of a node's spares. Every method is an event; call Step after each, and when
// the time that it returned has come.
type Machine struct {
	limits Limits

	last     Serial    // the newest number
	starting Serial    // 0: none
	since    time.Time // when that one was started
	ready    []waiting // the oldest first

	launching int       // launches under way
	settled   time.Time // not to start one before, for the ranks that have started
	paused    time.Time // nor before this, for spares that could not be used
	failures  int       // since the last spare that was used
	closed    bool
}

// New returns the machine of a node without a spare.
func New(l Limits) *Machine { return &Machine{limits: l} }

// Action is a change that the caller must make.
type Action struct {
	Start Serial    // a spare with this number
	Kill  []Serial  // these spares, which no launch will get
	Wake  time.Time // when to call Step again; zero: after the next event
}

// Launch begins the launch of a job of an owner, which gets the returned spare; 0: none. Launched
// or Ended must follow, and Used if there is a spare.
func (m *Machine) Launch(owner string) Serial {
	m.launching++
	for _, from := range []string{owner, ""} { // one that has had no job suits all owners
		for i := len(m.ready) - 1; i >= 0; i-- {
			if w := m.ready[i]; w.owner == from {
				m.ready = slices.Delete(m.ready, i, i+1)
				return w.serial
			}
		}
	}
	return 0
}

// Used reports whether the spare that a launch got became the job's init.
func (m *Machine) Used(now time.Time, well bool) {
	if well {
		m.failures, m.paused = 0, time.Time{}
		return
	}
	m.failed(now)
}

// Launched ends the launch of a job whose ranks have started.
func (m *Machine) Launched(now time.Time, r Rest) {
	m.launching--
	m.settled = now.Add(m.limits.Settle + r.Launched)
}

// Ended reports the end of a job: of one that was launched, or, if launching is true, instead of
// Launched.
func (m *Machine) Ended(now time.Time, launching bool, r Rest) {
	if launching {
		m.launching--
	}
	m.settled = now.Add(r.Ended)
}

// Return offers the init of a job that is over, which is as if it had had no job, and waits. It
// comes before Ended. The init becomes the returned spare; 0: it is not needed.
func (m *Machine) Return(now time.Time, owner string) Serial {
	if m.closed || len(m.ready) >= m.limits.Most {
		return 0
	}
	m.last++
	m.ready = append(m.ready, waiting{m.last, now, owner})
	return m.last
}

// Ready reports that a spare that was started waits for its job.
func (m *Machine) Ready(now time.Time, s Serial) {
	if s != 0 && s == m.starting {
		m.starting = 0
		m.ready = append(m.ready, waiting{serial: s, since: now})
	}
}

// Died reports the end of a spare, or that it could not be started.
func (m *Machine) Died(now time.Time, s Serial) {
	if s != 0 && s == m.starting {
		m.starting = 0
		m.failed(now)
		return
	}
	for i, w := range m.ready {
		if w.serial == s { // else a launch has it, or it was given up
			if now.Sub(w.since) > m.limits.LastPause {
				m.failures = 0
			}
			m.ready = slices.Delete(m.ready, i, i+1)
			m.failed(now)
			return
		}
	}
}

// Waits reports whether a spare is ready.
func (m *Machine) Waits() bool { return len(m.ready) > 0 }

// Failures returns how many spares in a row could not be used.
func (m *Machine) Failures() int { return m.failures }

// Close ends the machine: it keeps and starts no spare.
func (m *Machine) Close() { m.closed = true }

// Step returns the action that is due now.
func (m *Machine) Step(now time.Time) (a Action) {
	if m.starting != 0 {
		if late := m.since.Add(m.limits.Start); m.closed || !now.Before(late) {
			a.Kill = append(a.Kill, m.starting)
			m.starting = 0
			m.failed(now)
		} else {
			a.Wake = late
		}
	}
	a.Kill = append(a.Kill, m.trim(now)...)
	if len(m.ready) > 1 {
		a.Wake = earlier(a.Wake, m.ready[0].since.Add(m.limits.Idle))
	}
	if m.closed || m.starting != 0 || len(m.ready) > 0 || m.launching > 0 {
		return a
	}
	next := m.settled
	if m.paused.After(next) {
		next = m.paused
	}
	if now.Before(next) {
		a.Wake = next
		return a
	}
	m.last++
	m.starting, m.since = m.last, now
	a.Start, a.Wake = m.last, now.Add(m.limits.Start)
	return a
}

// trim removes the spares that have waited for too long beside others; all when the machine ends.
func (m *Machine) trim(now time.Time) (gone []Serial) {
	for len(m.ready) > 0 && (m.closed || len(m.ready) > 1 && !now.Before(m.ready[0].since.Add(m.limits.Idle))) {
		gone = append(gone, m.ready[0].serial)
		m.ready = slices.Delete(m.ready, 0, 1)
	}
	return gone
}

// earlier returns the earlier time; one that is zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// failed notes a spare that could not be used.
func (m *Machine) failed(now time.Time) {
	pause := m.limits.LastPause
	if shift := m.failures; shift < 32 && m.limits.FirstPause<<shift < pause {
		pause = m.limits.FirstPause << shift
	}
	m.failures++
	m.paused = now.Add(pause)
}
