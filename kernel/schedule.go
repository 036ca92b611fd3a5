package kernel

import (
	"margay/kernel/fabric"
	"margay/kernel/record"
	"margay/kernel/sched"
	"margay/kernel/task"
)

// Scheduler is told which processes are on the application cores. A sched.Enforcer is one.
type Scheduler interface {
	// Add has a task share its core from now on. Its pidfd stays the node kernel's, and open until Remove has returned.
	Add(sched.Task) error

	// Remove lets go of a task, which may have ended.
	Remove(sched.ID)
}

// Started implements task.Handler.
func (j *job) Started(p task.RankProcess) {
	t, ok := j.task(p)
	if !ok {
		p.File.Close()
		return
	}
	j.node.mu.Lock()
	started := process{Task: t, since: record.Now()}
	j.tasks[p.Rank] = started
	j.node.mu.Unlock()
	j.recordStart(&started)
	if j.node.config.Scheduler == nil {
		return
	}
	if err := j.node.config.Scheduler.Add(t); err != nil {
		j.node.config.Log("job %d: rank %d cannot share core %d: %v", j.spec.Job, p.Rank, t.Core, err)
	}
}

// task describes the process of a rank to the scheduler. It reports false when no rank of that number is to be here.
func (j *job) task(p task.RankProcess) (sched.Task, bool) {
	for _, place := range j.spec.Places {
		if place.Rank == p.Rank && place.Node == fabric.Node(j.node.config.Boot.Node) {
			return sched.Task{
				ID: sched.ID{Job: j.spec.Job, Rank: uint32(p.Rank)}, Core: place.Core, CPU: j.node.cores[place.Core].CPU,
				PID: p.PID, Process: p.File, Group: p.Group,
			}, true
		}
	}
	return sched.Task{}, false
}

// leave takes a rank that has ended off its core.
func (j *job) leave(rank int) {
	j.node.mu.Lock()
	t, ok := j.tasks[rank]
	delete(j.tasks, rank)
	j.node.mu.Unlock()
	if !ok {
		return
	}
	if j.node.config.Scheduler != nil {
		j.node.config.Scheduler.Remove(t.ID)
	}
	t.Process.Close()
}

// leaveAll takes all ranks off their cores.
func (j *job) leaveAll() {
	for _, p := range j.spec.Places {
		j.leave(p.Rank)
	}
}
