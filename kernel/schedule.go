package kernel

import (
	"margay/kernel/extension"
	"margay/kernel/fabric"
	"margay/kernel/record"
	"margay/kernel/sched"
	"margay/kernel/slot"
	"margay/kernel/task"
)

// Scheduler shares the application cores among their processes: a sched.Enforcer, as far as the node kernel needs it. A task's
// pidfd stays the node kernel's, and is open until Remove has returned.
type Scheduler interface {
	Name() string
	Lacks() map[slot.Why]string
	Add(sched.Task) error
	Remove(sched.ID)
	SetPolicies(core int, policies []*sched.Policy) error
	Arrived(id sched.ID, waiting uint32)
	Cores() []sched.CoreInfo
}

// watchable is a scheduler that tells who has the cores.
type watchable interface{ Watch(sched.Watcher) }

// switched records that a core has changed hands.
func (n *Node) switched(core int, to sched.ID, why string) {
	n.recorder.Switch(core, to.Job, to.Rank, why)
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
	j.node.setPolicies(j.spec.Job, t.Core)
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
				Waiting: func() uint32 { return j.messages.Waiting(p.Rank) },
			}, true
		}
	}
	return sched.Task{}, false
}

// policiesChanged gives the scheduler the extensions in the sched slot of a job, or of the machine.
func (n *Node) policiesChanged(job uint32) {
	n.policies.Store(true)
	n.mu.Lock()
	cores := make(map[int]uint32)
	for number, j := range n.jobs {
		if number == job || job == extension.Machine {
			for core := range n.coresOf(j.spec) {
				cores[core] = number
			}
		}
	}
	n.mu.Unlock()
	for core, number := range cores {
		n.setPolicies(number, core)
	}
}

// setPolicies gives the scheduler the policies of a core that a job has.
func (n *Node) setPolicies(job uint32, core int) {
	n.scheduling.Lock() // or old ones might come after new ones
	defer n.scheduling.Unlock()
	if err := n.config.Scheduler.SetPolicies(core, sched.Policies(n.extensions.Chain(job, slot.Sched))); err != nil {
		n.config.Log("policies of core %d: %v", core, err)
	}
}

// arrived tells the scheduler of a message, unless the rank has its core to itself and there are no policies.
func (j *job) arrived(rank int, waiting uint32) {
	if j.shares || j.node.policies.Load() {
		j.node.config.Scheduler.Arrived(sched.ID{Job: j.spec.Job, Rank: uint32(rank)}, waiting)
	}
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
