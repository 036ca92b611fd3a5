package serve

import (
	"cmp"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/cluster/ledger"
)

// phases measures how long a job is in each of its phases, by the clock of this serve. The zero value, of a job that an earlier serve
// has launched, measures nothing. Server.mu guards it.
type phases struct {
	begun time.Time
	phase control.Phase // that of now
	since time.Time
	times []*control.PhaseTime
}

// measure begins with the allocation.
func measure(now time.Time) phases {
	return phases{phase: control.Phase_PHASE_ALLOCATE, begun: now, since: now}
}

// asked says when the job was asked for. It was in the queue until the allocation that has succeeded.
func (p *phases) asked(at time.Time) { p.of(control.Phase_PHASE_QUEUE).TimeNs = int64(p.begun.Sub(at)) }

// submitted returns when the job was asked for: before it was created, if it was in the queue.
func (p *phases) submitted(created time.Time) time.Time {
	for _, t := range p.times {
		if t.Phase == control.Phase_PHASE_QUEUE {
			return created.Add(-time.Duration(t.TimeNs))
		}
	}
	return created
}

// kept returns the phases that are over as the history has them.
func (p *phases) kept() (list []ledger.Phase) {
	list = []ledger.Phase{} // JSON has null for nil
	for _, t := range p.list() {
		phase := ledger.Phase{Phase: t.Phase.Word(), TimeNs: t.TimeNs, NodeNs: t.NodeNs}
		if t.NodeNs != 0 {
			phase.Node = &t.Node
		}
		list = append(list, phase)
	}
	return list
}

// enter ends a phase and begins the next one; PHASE_UNKNOWN is none. A phase may be entered again.
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

// worked notes how long a node says that it has worked on its part of a phase. That of the slowest node stays.
func (p *phases) worked(phase control.Phase, node uint32, took int64) {
	if p.phase != control.Phase_PHASE_UNKNOWN && took > 0 {
		if t := p.of(phase); took > t.NodeNs {
			t.NodeNs, t.Node = took, node
		}
	}
}

// list returns the phases that are over, in order.
func (p *phases) list() (times []*control.PhaseTime) {
	for _, t := range p.times {
		if t.Phase != p.phase {
			times = append(times, &control.PhaseTime{Phase: t.Phase, TimeNs: t.TimeNs, NodeNs: t.NodeNs, Node: t.Node})
		}
	}
	return times
}
