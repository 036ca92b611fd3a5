package serve

import (
	"cmp"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/cluster/ledger"
)

// phases measures how long a job is in each of its phases, by the clock of this serve. The zero
// value, for a job that an earlier serve launched, measures nothing. Server.mu guards it.
type phases struct {
	begun time.Time
	phase control.Phase // the current phase
	since time.Time
	times []*control.PhaseTime
}

// measure starts with the allocation.
func measure(now time.Time) phases {
	return phases{phase: control.Phase_PHASE_ALLOCATE, begun: now, since: now}
}

// asked sets when the job was asked for. The job was queued from then until its allocation
// succeeded.
func (p *phases) asked(at time.Time) { p.of(control.Phase_PHASE_QUEUE).TimeNs = int64(p.begun.Sub(at)) }

// submitted returns when the job was asked for, which is before its creation if it was queued.
func (p *phases) submitted(created time.Time) time.Time {
	for _, t := range p.times {
		if t.Phase == control.Phase_PHASE_QUEUE {
			return created.Add(-time.Duration(t.TimeNs))
		}
	}
	return created
}

// kept returns the completed phases in the history's format.
func (p *phases) kept() (list []ledger.Phase) {
	list = []ledger.Phase{} // JSON encodes nil as null
	for _, t := range p.list() {
		phase := ledger.Phase{Phase: t.Phase.Word(), TimeNs: t.TimeNs, NodeNs: t.NodeNs}
		if t.NodeNs != 0 {
			phase.Node = &t.Node
		}
		list = append(list, phase)
	}
	return list
}

// enter ends a phase and begins the next one; PHASE_UNKNOWN means none. A job may enter a phase
// again.
func (p *phases) enter(phase control.Phase) {
	if p.phase == control.Phase_PHASE_UNKNOWN {
		return
	}
	now := time.Now()
	p.of(p.phase).TimeNs += int64(now.Sub(p.since))
	p.phase, p.since = phase, now
}

// of returns the time of a phase.
func (p *phases) of(phase control.Phase) *control.PhaseTime {
	i, found := slices.BinarySearchFunc(p.times, phase, func(t *control.PhaseTime, phase control.Phase) int { return cmp.Compare(t.Phase, phase) })
	if !found {
		p.times = slices.Insert(p.times, i, &control.PhaseTime{Phase: phase})
	}
	return p.times[i]
}

// worked notes how long a node reports to have worked on its part of a phase. The time of the
// slowest node is kept.
func (p *phases) worked(phase control.Phase, node uint32, took int64) {
	if p.phase != control.Phase_PHASE_UNKNOWN && took > 0 {
		if t := p.of(phase); took > t.NodeNs {
			t.NodeNs, t.Node = took, node
		}
	}
}

// list returns the completed phases in order.
func (p *phases) list() (times []*control.PhaseTime) {
	for _, t := range p.times {
		if t.Phase != p.phase {
			times = append(times, &control.PhaseTime{Phase: t.Phase, TimeNs: t.TimeNs, NodeNs: t.NodeNs, Node: t.Node})
		}
	}
	return times
}
