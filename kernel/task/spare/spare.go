// Package spare decides when a node starts a job init ahead of its job, and which launch gets it.
// It starts nothing itself: events and the time go in, actions come out.
//
// A node keeps one spare. Its life:
//
//	absent -- Step, when one may be started --> starting -- Ready --> ready -- Launch --> absent
//	starting, ready -- Ended, or too late, or Close --> absent
//
// The launch of a job gets a spare that is ready, and it is that job's alone. No spare is started
// during a launch, nor for a moment after the ranks have started, unless the job has ended by then:
// a launch should not compete with preparations for the next one. After a spare that could not be
// used, the next one is started after a pause that doubles each time.
package spare

import "time"

// Serial identifies a spare of one machine; they are numbered from 1. 0: none.
type Serial uint64

// Limits are the times of a Machine.
type Limits struct {
	Start      time.Duration // within which a spare must be ready
	Settle     time.Duration // from the start of a job's ranks to the start of the next spare
	FirstPause time.Duration // after a spare that could not be used
	LastPause  time.Duration // the longest such pause; a spare that waited for longer is not such a spare
}

// Default are the times of a node.
var Default = Limits{Start: 30 * time.Second, Settle: 50 * time.Millisecond, FirstPause: 100 * time.Millisecond, LastPause: time.Minute}

// Rest is how much later than otherwise the next spare is started for the sake of other nodes of a
// job, which share the processors.
type Rest struct {
	Launched time.Duration // after the start of the job's ranks, while it runs
	Ended    time.Duration // after its end
}

type state int

const (
	absent state = iota
	starting
	ready
)

// Nodes of one host that had the same job prepare for the next one in turns of restTogether nodes
// for each processor. restEach is the time of a processor that this takes each node, with some to
// spare.
const (
	restTogether = 32
	restEach     = 40 * time.Millisecond
)

// RestOf returns the rest of the node at a place, from 0, of a job on so many nodes of a host with
// so many processors. While the job runs, its nodes that are more than one turn may still be
// launching it.
func RestOf(place, nodes, processors int) Rest {
	together := restTogether * processors
	return Rest{
		Launched: time.Duration(max(0, nodes-together)) * restEach / time.Duration(processors),
		Ended:    time.Duration(place/together) * restTogether * restEach,
	}
}

// Machine is the life of a node's spares. Every method is an event; call Step after each, and when
// the time that it returned has come.
type Machine struct {
	limits Limits

	state  state
	serial Serial    // of the last spare
	since  time.Time // when state became starting or ready

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
	Kill  Serial    // this spare, which no launch will get
	Wake  time.Time // when to call Step again; zero: after the next event
}

// Launch begins the launch of a job, which gets the returned spare; 0: none. Launched or Ended must
// follow, and Used if there is a spare.
func (m *Machine) Launch() Serial {
	m.launching++
	if m.state != ready {
		return 0
	}
	m.state = absent
	return m.serial
}

// Used reports whether the spare that a launch got became the job's init.
func (m *Machine) Used(now time.Time, well bool) {
	if well {
		m.failures = 0
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

// Ready reports that a spare waits for its job.
func (m *Machine) Ready(now time.Time, s Serial) {
	if s == m.serial && m.state == starting {
		m.state, m.since = ready, now
	}
}

// Died reports the end of a spare, or that it could not be started.
func (m *Machine) Died(now time.Time, s Serial) {
	if s != m.serial || m.state == absent {
		return // a launch has it, or it was given up
	}
	if m.state == ready && now.Sub(m.since) > m.limits.LastPause {
		m.failures = 0
	}
	m.state = absent
	m.failed(now)
}

// Waits reports whether a spare is ready.
func (m *Machine) Waits() bool { return m.state == ready }

// Failures returns how many spares in a row could not be used.
func (m *Machine) Failures() int { return m.failures }

// Close ends the machine: it starts no spare again.
func (m *Machine) Close() { m.closed = true }

// Step returns the action that is due now.
func (m *Machine) Step(now time.Time) (a Action) {
	if m.state == starting && !m.closed {
		a.Wake = m.since.Add(m.limits.Start)
		if now.Before(a.Wake) {
			return a
		}
	}
	if m.state == starting || m.state == ready && m.closed {
		m.state = absent
		m.failed(now)
		a = Action{Kill: m.serial}
	}
	if m.closed || m.state != absent || m.launching > 0 {
		return a
	}
	a.Wake = m.settled
	if m.paused.After(a.Wake) {
		a.Wake = m.paused
	}
	if now.Before(a.Wake) {
		return a
	}
	m.serial++
	m.state, m.since = starting, now
	a.Start, a.Wake = m.serial, now.Add(m.limits.Start)
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
