package kernel

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"margay/kernel/abi/id"
	"margay/kernel/hardware"
	"margay/kernel/record"
	"margay/kernel/sched"
	"margay/kernel/task"
	"margay/kernel/tick"
	"margay/kernel/usage"
)

// Why a process runs that the scheduler does not schedule.
const (
	alone    = "it has the core to itself"
	byLinux  = "Linux shares the core"
	starting = "Linux shares the core: " + beingStarted
)

// process is a rank's process.
type process struct {
	sched.Task
	since id.Time // when it was started
}

// alone reports whether a core has but one rank of the job.
func (j *job) alone(core id.Core) bool { return j.node.coresOf(j.spec)[core] == 1 }

// recordStart records that a rank runs.
func (j *job) recordStart(p *process) {
	r := j.node.recorder
	r.Add(record.Event{Kind: record.Start, Time: p.since, Core: uint16(p.Core), Job: p.Job, Rank: p.Rank})
	if !j.alone(p.Core) {
		return // the scheduler records the core's turns
	}
	if place, ok := j.spec.Layout.Rank(p.Rank); ok {
		for _, core := range place.Cores() {
			r.Switch(p.since, core, p.Job, p.Rank, alone)
		}
	}
}

// recordEnd records how a rank has ended. If the rank was never entered, it records its start
// first.
func (j *job) recordEnd(rank id.Rank, s task.Status, told bool) {
	r := j.node.recorder
	if !r.On() {
		return
	}
	p, ok := j.spec.Layout.Rank(rank)
	if !ok {
		return
	}
	if !told {
		t := sched.Task{ID: sched.ID{Job: j.spec.Job, Rank: rank}, Core: p.Core}
		j.recordStart(&process{Task: t, since: record.Now().Add(-s.Time)})
	}
	r.Add(record.Event{Kind: record.End, Took: s.Time, Core: uint16(p.Core), Job: j.spec.Job, Rank: rank, Text: s.String()})
	if j.alone(p.Core) {
		for _, core := range p.Cores() {
			r.Switch(0, core, 0, 0, "the rank has ended")
		}
	}
}

// EventQuery asks for recorded events.
type EventQuery struct {
	Reader uint64 // identifies the reader: a number of its own choosing
	Leave  bool   // the reader wants no further events
	Cursor record.Cursor
	Job    id.Job // only events of this job, or of no job; 0: all
	Size   int    // bytes of encoded events to return, about
}

// Events returns recorded events. A request for them starts the recording (record.Recorder.Follow);
// the first one of a reader also returns the ranks that run.
func (n *Node) Events(q EventQuery) (record.Batch, error) {
	if q.Leave {
		n.recorder.Leave(q.Reader)
		return record.Batch{}, nil
	}
	begins, err := n.recorder.Follow(q.Reader)
	if err != nil {
		return record.Batch{}, err
	}
	if begins {
		n.recordRunning()
	}
	return n.recorder.Read(q.Cursor, q.Size, func(e *record.Event) bool { return q.Job == 0 || e.Job == 0 || e.Job == q.Job }), nil
}

// recordRunning records the ranks that run already. The scheduler reports which of them have the
// cores that they share.
func (n *Node) recordRunning() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, j := range n.jobs {
		for _, p := range j.tasks {
			j.recordStart(&p)
		}
	}
}

// Sample holds the counts of a node so far. Two samples make a rate.
type Sample struct {
	Time      id.Time
	Recording bool // a reader follows the node's events
	Cores     []CoreSample
	Ranks     []RankSample
}

// CoreSample holds the counts of an application core.
type CoreSample struct {
	Core       id.Core
	Shared     bool   // also by others; the interrupts are the host CPU's
	Interrupts uint64 // of all kinds

	// Of a core that the scheduler gives to one rank after the other; zero for others.
	Switches uint64 // times that it has changed hands
	Asked    uint64 // calls of an extension
	Rescues  uint64 // times that a rank got its turn only because it had waited for too long
}

// RankSample holds the resources that a rank has used.
type RankSample struct {
	Job           id.Job
	Rank          id.Rank
	Core          id.Core
	PID           int // in the node kernel's PID namespace
	Why           string
	Usage         usage.Usage
	Sent, Arrived uint64 // messages, since this node kernel has the job
}

// Sample reads the counts of the application cores and of the ranks on them.
func (n *Node) Sample() (Sample, error) {
	interrupts, err := hardware.ReadInterrupts()
	if err != nil {
		return Sample{}, err
	}
	s := Sample{Time: record.Now(), Recording: n.recorder.On()}
	for _, c := range n.Info().Cores {
		count, _ := interrupts.Since(hardware.Interrupts{}, c.CPU)
		s.Cores = append(s.Cores, CoreSample{Core: c.ID, Shared: c.Shared, Interrupts: count})
	}
	ranks := n.runningRanks()
	n.sampleShared(s.Cores, ranks)
	for _, r := range ranks {
		r.Why = cmp.Or(r.Why, byLinux)
		if r.Usage, err = usage.Of(r.PID); errors.Is(err, usage.ErrEnded) {
			continue
		} else if err != nil {
			return Sample{}, err
		}
		s.Ranks = append(s.Ranks, r)
	}
	return s, nil
}

// sampleShared adds the scheduler's counts of the cores that ranks share.
func (n *Node) sampleShared(cores []CoreSample, ranks []RankSample) {
	for _, info := range n.sharedCores() {
		if i := slices.IndexFunc(cores, func(c CoreSample) bool { return c.Core == info.Core }); i >= 0 {
			cores[i].Switches, cores[i].Asked, cores[i].Rescues = info.Switches, info.Asked, info.Rescues
		}
		for i, t := range info.Tasks {
			at := slices.IndexFunc(ranks, func(r RankSample) bool { return r.Job == id.Job(t.Job) && r.Rank == id.Rank(t.Rank) })
			switch {
			case at < 0 || ranks[at].Why != "":
			case i == info.Running:
				ranks[at].Why = "has the core: " + info.Why
			default:
				ranks[at].Why = t.State.String()
			}
		}
	}
}

// WatchTicks keeps timer ticks off cores on which one rank computes, until ctx ends.
func (n *Node) WatchTicks(ctx context.Context) error {
	return tick.Watch(ctx, func() map[id.CPU][]int {
		n.mu.Lock()
		defer n.mu.Unlock()
		ranks := make(map[id.CPU][]int)
		for _, j := range n.jobs {
			for _, p := range j.tasks {
				ranks[p.CPU] = append(ranks[p.CPU], p.PID)
			}
		}
		return ranks
	})
}

// runningRanks lists the ranks that run, without what they have used.
func (n *Node) runningRanks() []RankSample {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ranks []RankSample
	for _, j := range n.jobs {
		for number, p := range j.tasks {
			r := RankSample{Job: p.Job, Rank: p.Rank, Core: p.Core, PID: p.PID}
			switch {
			case j.alone(p.Core):
				r.Why = alone
			case n.opening():
				r.Why = starting
			}
			if j.messages != nil {
				r.Sent, r.Arrived = j.messages.Counts(number)
			}
			ranks = append(ranks, r)
		}
	}
	return ranks
}
