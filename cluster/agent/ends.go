package agent

import (
	"time"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// endsPause is how long an end waits for others at most. The starts of many ranks on a node, or on
// a busy host, are as far apart.
const endsPause = 100 * time.Millisecond

// ends are the ends of a job's ranks that wait for others. Agent.mu guards them.
type ends struct {
	records.Gather
	due bool // they are sent soon
}

// Record implements kernel.Sink.
func (a *Agent) Record(job id.Job, r task.Record) {
	m := a.recordMessage(job, r)
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.ends[job]
	if e == nil {
		e = new(ends)
		a.ends[job] = e
	}
	a.sendRecords(e.Add(m))
	if e.Waits() && !e.due {
		e.due = true
		time.AfterFunc(a.pause, func() { a.sendEnds(e) })
	}
}

// sendEnds sends the ends that have waited.
func (a *Agent) sendEnds(e *ends) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e.due = false
	a.sendRecords(e.Flush())
}

// sendRecords sends records if there is a connection; serve requests the others after the next
// registration. The caller holds Agent.mu.
func (a *Agent) sendRecords(list []*control.Record) {
	for _, m := range list {
		if a.conn != nil {
			_ = a.conn.Send(m)
		}
	}
}

// recordMessage is a record as a message.
func (a *Agent) recordMessage(job id.Job, r task.Record) *control.Record {
	m := &control.Record{
		Job: uint32(job), Node: a.self(), Seq: r.Seq, Rank: uint32(r.Rank), Stream: control.Stream(r.Stream), Data: r.Data,
		Open: r.Open, Last: r.Last, Acked: r.Acked,
	}
	if r.Last {
		m.Unkept = a.unkept(r.Unkept)
	}
	if r.Stream == task.Exit {
		used := r.Status.Usage
		m.Exit = &control.ExitStatus{
			Code: int32(r.Status.Code), Signal: int32(r.Status.Signal), Reason: r.Status.Reason, TimeNs: int64(r.Status.Time),
			Usage: &control.Usage{
				UserNs: int64(used.User), SystemNs: int64(used.System), MajorFaults: used.MajorFaults, MinorFaults: used.MinorFaults,
				Yields: used.Yields, Preemptions: used.Preemptions,
			},
			Fault: faultMessage(r.Status.Fault),
		}
	}
	return m
}
