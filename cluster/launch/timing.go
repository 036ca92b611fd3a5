package launch

import (
	"sync"
	"time"

	"margay/cluster/control"
)

// The phases of a job that margay run measures itself. The others are serve's (control.Phase).
const (
	phaseCollect  = "collect"  // from the beginning of the command: the files are found, and their digests computed
	phaseConnect  = "connect"  // to serve, while the digests are computed
	phaseMessages = "messages" // from the request for the job to its end, or to the start of a detached job, without serve's phases
)

// Timing measures where the time of a job goes. Each duration is one of a single clock: margay run
// and serve measure different phases, and a node measures its part of a phase of serve's. A nil
// Timing measures nothing. It is safe for concurrent use.
type Timing struct {
	began time.Time

	mu    sync.Mutex
	job   uint32 // 0 until there is one
	phase string
	since time.Time
	own   map[string]time.Duration // phases of margay run
	serve []*control.PhaseTime
}

// NewTiming begins with the phase collect at the beginning of the command.
func NewTiming(began time.Time) *Timing {
	return &Timing{began: began, phase: phaseCollect, since: began, own: make(map[string]time.Duration)}
}

// enter ends a phase of margay run and begins the next one. A phase may be entered again.
func (t *Timing) enter(phase string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.own[t.phase] += now.Sub(t.since)
	t.phase, t.since = phase, now
}

// measured takes serve's durations of a job. There are none from a serve that has not launched it.
func (t *Timing) measured(job uint32, times []*control.PhaseTime) {
	if t == nil || len(times) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.job, t.serve = job, times
}

// PhaseTime is the duration of one phase of a job.
type PhaseTime struct {
	Phase  string  `json:"phase"`
	TimeNs int64   `json:"time_ns"`
	NodeNs int64   `json:"node_ns"` // how long the slowest node has worked on it, by its own clock; 0: no node has reported that
	Node   *uint32 `json:"node"`    // that node; nil for none
}

// Times are the durations of all phases of a job, in order.
type Times struct {
	Job    uint32      `json:"job"`
	Phases []PhaseTime `json:"phases"`
	SumNs  int64       `json:"sum_ns"`  // of the phases
	WallNs int64       `json:"wall_ns"` // from the beginning of the command until now, at least the sum
}

// Times returns the durations until now. It returns false when serve has measured nothing: no job
// was launched, or serve was restarted before it reported.
func (t *Timing) Times() (Times, bool) {
	t.enter("")
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.job == 0 {
		return Times{}, false
	}
	times := Times{Job: t.job, WallNs: int64(time.Since(t.began))}
	add := func(p PhaseTime) {
		times.Phases = append(times.Phases, p)
		times.SumNs += p.TimeNs
	}
	add(PhaseTime{Phase: phaseCollect, TimeNs: int64(t.own[phaseCollect])})
	add(PhaseTime{Phase: phaseConnect, TimeNs: int64(t.own[phaseConnect])})
	messages := int64(t.own[phaseMessages])
	for _, m := range t.serve {
		messages -= m.TimeNs
		p := PhaseTime{Phase: m.Phase.Word(), TimeNs: m.TimeNs, NodeNs: m.NodeNs}
		if m.NodeNs != 0 {
			p.Node = &m.Node
		}
		add(p)
	}
	add(PhaseTime{Phase: phaseMessages, TimeNs: max(0, messages)})
	return times, true
}
