package kernel

import (
	"slices"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/sched"
	"margay/kernel/task"
)

// Scheduler shares the application cores among their processes: a sched.Enforcer, as far as the node kernel needs it. A task's
// pidfd stays the node kernel's, and is open until Remove has returned.
type Scheduler interface {
	Name() string
	Add(sched.Task) error
	Remove(sched.ID)
	SetPolicies(core id.Core, policies []*sched.Policy) error
	Arrived(id sched.ID, waiting uint32)
	Woken(sched.ID)
	Cores() []sched.CoreInfo
	Watch(sched.Watcher)
}

// beingStarted is why cores are not shared yet.
const beingStarted = "the scheduler is being started"

// opening reports whether the cores are not shared yet. The caller may hold the lock.
func (n *Node) opening() bool { return n.config.Scheduler != nil && !n.shared.Load() }

// opened returns the scheduler, nil while there is none.
func (n *Node) opened() Scheduler {
	if s := n.scheduler.Load(); s != nil {
		return *s
	}
	return nil
}

// sharedCores describes the cores that ranks share.
func (n *Node) sharedCores() []sched.CoreInfo {
	if s := n.opened(); s != nil {
		return s.Cores()
	}
	return nil
}

// share opens the scheduler and gives it the ranks that run already, each core under its policies from the beginning.
func (n *Node) share() {
	if n.config.Scheduler == nil {
		return
	}
	s, lacks := n.config.Scheduler()
	n.mu.Lock()
	n.scheduler.Store(&s)
	cores := make(map[id.Core]id.Job)
	var ranks []sched.ID
	for number, j := range n.jobs {
		for _, p := range j.tasks { // Started gives it who comes from now on
			cores[p.Core] = number
			ranks = append(ranks, p.ID)
		}
	}
	n.mu.Unlock()
	n.watchCores(s)
	for core, job := range cores {
		n.setPolicies(job, core)
	}
	for _, t := range ranks {
		n.hand(s, t)
	}
	n.mu.Lock()
	n.info.Scheduler = s.Name()
	n.info.Lacks = append(n.info.Lacks, lacks...)
	n.shared.Store(true)
	n.mu.Unlock()
	n.config.Log("cores are shared by %s", s.Name())
}

// hand gives a rank to the scheduler that ran before there was one, if it runs still.
func (n *Node) hand(s Scheduler, t sched.ID) {
	n.handing.Lock()
	defer n.handing.Unlock()
	n.mu.Lock()
	var p process
	j, ok := n.jobs[t.Job]
	if ok {
		p, ok = j.tasks[t.Rank]
	}
	n.mu.Unlock()
	if ok {
		n.add(s, p.Task)
	}
}

// add gives a task to the scheduler, unless it has several cores: it shares none of them, and Linux moves its threads among them.
func (n *Node) add(s Scheduler, t sched.Task) {
	if n.wide(t.ID) {
		return
	}
	if err := s.Add(t); err != nil {
		n.config.Log("job %d: rank %d cannot share core %d: %v", t.Job, t.Rank, t.Core, err)
	}
}

// wide reports whether a rank has several cores.
func (n *Node) wide(t sched.ID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	j := n.jobs[t.Job]
	return j != nil && slices.ContainsFunc(j.spec.Places, func(p Place) bool { return p.Rank == t.Rank && len(p.More) > 0 })
}

// watchCores has the scheduler tell who gets the cores while that is recorded.
func (n *Node) watchCores(s Scheduler) {
	n.recorder.Watch(func(on bool) {
		n.messages.Repath()
		if on {
			s.Watch(n.switched)
		} else {
			s.Watch(nil)
		}
	})
}

// switched records that a core has changed hands.
func (n *Node) switched(core id.Core, at id.Time, to sched.ID, why string) {
	n.recorder.Switch(at, core, to.Job, to.Rank, why)
}

// Started implements task.Handler.
func (j *job) Started(p task.RankProcess) {
	t, ok := j.task(p)
	if !ok {
		p.File.Close()
		return
	}
	started := process{Task: t, since: p.Since}
	s := j.enter(started)
	j.recordStart(&started)
	if s != nil {
		j.node.setPolicies(j.spec.Job, t.Core)
		j.node.add(s, t)
	}
}

// enter notes that a rank runs, and returns the scheduler that it is to be given to. Until there is one it runs as Linux likes, also
// when the node kernel before this one has left it stopped.
func (j *job) enter(p process) Scheduler {
	n := j.node
	n.handing.Lock()
	defer n.handing.Unlock()
	n.mu.Lock()
	j.tasks[p.Rank] = p
	s := n.opened()
	n.mu.Unlock()
	if n.opening() {
		if err := p.Stop(false, p.PID); err != nil {
			n.config.Log("job %d: rank %d may be stopped until cores are shared: %v", p.Job, p.Rank, err)
		}
	}
	return s
}

// task describes the process of a rank to the scheduler. It reports false when no rank of that number is to be here.
func (j *job) task(p task.RankProcess) (sched.Task, bool) {
	for _, place := range j.spec.Places {
		if place.Rank == p.Rank && place.Node == j.node.config.Boot.Node {
			return sched.Task{
				ID: sched.ID{Job: j.spec.Job, Rank: p.Rank}, Core: place.Core, CPU: j.node.cores[place.Core].CPU,
				PID: p.PID, Process: p.File, Group: p.Group, Halted: j.halts.halted,
				Waiting: func() uint32 { return j.messages.Waiting(p.Rank) },
				Refuse:  func(err error) { j.extensions.Refuse(p.Rank, err) },
			}, true
		}
	}
	return sched.Task{}, false
}

// policiesChanged gives the scheduler the extensions in the sched slot of a job, or of the machine.
func (n *Node) policiesChanged(job id.Job) {
	n.policies.Store(true)
	n.messages.Repath()
	n.mu.Lock()
	cores := make(map[id.Core]id.Job)
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
func (n *Node) setPolicies(job id.Job, core id.Core) {
	n.scheduling.Lock() // or old ones might come after new ones
	defer n.scheduling.Unlock()
	s := n.opened()
	if s == nil {
		return
	}
	if err := s.SetPolicies(core, sched.Policies(n.extensions.Chain(job, slot.Sched))); err != nil {
		n.config.Log("policies of core %d: %v", core, err)
	}
}

// arrived tells the scheduler of a message.
func (j *job) arrived(rank id.Rank, waiting uint32) {
	if s := j.scheduler(); s != nil {
		s.Arrived(sched.ID{Job: j.spec.Job, Rank: rank}, waiting)
	}
}

// woken tells the scheduler of a rank that was woken up.
func (j *job) woken(rank id.Rank) {
	if s := j.scheduler(); s != nil {
		s.Woken(sched.ID{Job: j.spec.Job, Rank: rank})
	}
}

// scheduler returns the scheduler, nil while there is none or the job does not need it: its ranks have cores to themselves and there
// are no policies.
func (j *job) scheduler() Scheduler {
	if j.scheduled() {
		return j.node.opened()
	}
	return nil
}

// leave takes a rank that has ended off its core. It reports whether its start had been told: nothing is of a process that has
// ended before anybody looks.
func (j *job) leave(rank id.Rank) bool {
	j.node.handing.Lock()
	defer j.node.handing.Unlock()
	j.node.mu.Lock()
	t, ok := j.tasks[rank]
	delete(j.tasks, rank)
	j.node.mu.Unlock()
	if !ok {
		return false
	}
	if s := j.node.opened(); s != nil {
		s.Remove(t.ID)
	}
	t.Process.Close()
	return true
}

// leaveAll takes all ranks off their cores.
func (j *job) leaveAll() {
	for _, p := range j.spec.Places {
		j.leave(p.Rank)
	}
}

// scheduled reports whether the job needs the scheduler.
func (j *job) scheduled() bool { return j.shares || j.node.policies.Load() }
