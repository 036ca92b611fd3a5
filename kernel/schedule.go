package kernel

import (
	"cmp"
	"maps"
	"slices"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/sched"
	"margay/kernel/task"
)

// Scheduler shares the application cores among their processes: a sched.Enforcer, as far as the
// node kernel needs it. The node kernel owns a task's pidfd, and keeps it open until Remove has
// returned.
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

// share opens the scheduler and gives it the ranks that it must schedule.
func (n *Node) share() {
	if n.config.Scheduler == nil {
		return
	}
	s, lacks := n.config.Scheduler()
	n.scheduler.Store(&s)
	n.watchCores(s)
	n.reschedule(extension.Machine)
	n.mu.Lock()
	n.info.Scheduler = s.Name()
	n.info.Lacks = append(n.info.Lacks, lacks...)
	n.shared.Store(true)
	n.mu.Unlock()
	n.config.Log("cores are shared by %s", s.Name())
}

// reschedule makes the scheduler follow a change of the extensions in a job's slot or in the
// machine's, or of whether turns are recorded, for a job or, with extension.Machine, for all. The
// scheduler gets the policies of their cores, and the ranks that it must schedule, and gives back
// those that no longer need scheduling.
func (n *Node) reschedule(number id.Job) {
	n.mu.Lock()
	var jobs []*job
	for _, j := range n.jobs {
		if number == j.spec.Job || number == extension.Machine {
			jobs = append(jobs, j)
		}
	}
	n.mu.Unlock()
	for _, j := range jobs {
		for core := range n.coresOf(j.spec) {
			n.setPolicies(j.spec.Job, core) // first, so that a core is shared under them from the beginning
		}
		j.schedule()
	}
	n.messages.Repath()
}

// schedule gives the scheduler the job's ranks if it must schedule them now, or takes them back.
// The scheduler gets the ranks in order. Without an extension in slot sched, and while no turns are
// recorded, Linux shares the cores: a waiting rank then yields to the ranks that it waits for.
// A new scheduler gets them all once, since the previous node kernel may have left them stopped.
func (j *job) schedule() {
	n := j.node
	n.handing.Lock()
	defer n.handing.Unlock()
	s := n.opened()
	fresh := s != nil && !j.offered
	j.offered = s != nil
	on := s != nil && (len(n.extensions.Chain(j.spec.Job, slot.Sched)) > 0 || n.recorder.On() && j.shares())
	if was := j.scheduled.Swap(on); s == nil || on == was && !fresh {
		return
	}
	n.mu.Lock()
	tasks := slices.SortedFunc(maps.Values(j.tasks), func(a, b process) int { return cmp.Compare(a.Rank, b.Rank) })
	n.mu.Unlock()
	for _, p := range tasks {
		if on || fresh {
			p.Untouched = !fresh
			j.hand(s, p.Task)
		} else {
			s.Remove(p.ID)
		}
	}
}

// shares reports whether some of the job's ranks share a core of this node.
func (j *job) shares() bool {
	for _, ranks := range j.node.coresOf(j.spec) {
		if ranks > 1 {
			return true
		}
	}
	return false
}

// hand gives a rank to the scheduler, unless it has several cores: it shares none of them, and
// Linux moves its threads among them. If the scheduler need not schedule it, it goes back to Linux
// at once: the previous node kernel may have left it stopped, or with a priority. The caller holds
// Node.handing.
func (j *job) hand(s Scheduler, t sched.Task) {
	if j.node.wide(t.ID) {
		return
	}
	if err := s.Add(t); err != nil {
		j.node.config.Log("job %d: rank %d cannot share core %d: %v", t.Job, t.Rank, t.Core, err)
		return
	}
	if !j.scheduled.Load() {
		s.Remove(t.ID)
	}
}

// wide reports whether a rank has several cores.
func (n *Node) wide(t sched.ID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	j := n.jobs[t.Job]
	if j == nil {
		return false
	}
	p, _ := j.spec.Layout.Rank(t.Rank)
	return len(p.More) > 0
}

// watchCores makes the scheduler report each change of a core's rank while such changes are
// recorded.
func (n *Node) watchCores(s Scheduler) {
	n.recorder.Watch(func(on bool) {
		if on {
			s.Watch(n.switched)
		} else {
			s.Watch(nil)
		}
		n.reschedule(extension.Machine)
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
	j.node.setPolicies(j.spec.Job, t.Core)
	j.enter(process{Task: t, since: p.Since})
}

// enter notes that a rank runs, and gives it to the scheduler if that must schedule it, or may have
// to undo what the previous node kernel has done. Until there is a scheduler Linux schedules the
// rank, even if the previous node kernel left it stopped.
func (j *job) enter(p process) {
	n := j.node
	n.handing.Lock()
	defer n.handing.Unlock()
	n.mu.Lock()
	j.tasks[p.Rank] = p
	n.mu.Unlock()
	j.recordStart(&p)
	if s := n.opened(); s != nil {
		if j.adopted || j.scheduled.Load() {
			j.hand(s, p.Task)
		}
	} else if n.config.Scheduler != nil {
		if err := p.Stop(false, p.PID); err != nil {
			n.config.Log("job %d: rank %d may be stopped until cores are shared: %v", p.Job, p.Rank, err)
		}
	}
}

// task describes the process of a rank to the scheduler. It returns false if the rank does not
// belong on this node.
func (j *job) task(p task.RankProcess) (sched.Task, bool) {
	place, ok := j.spec.Layout.Rank(p.Rank)
	if !ok || place.Node != j.node.config.Boot.Node {
		return sched.Task{}, false
	}
	return sched.Task{
		ID: sched.ID{Job: j.spec.Job, Rank: p.Rank}, Core: place.Core, CPU: j.node.cores[place.Core].CPU,
		PID: p.PID, Process: p.File, Group: p.Group, Halted: j.halts.halted,
		Waiting: func() uint32 { return j.messages.Waiting(p.Rank) },
		Refuse:  func(err error) { j.extensions.Refuse(p.Rank, err) },
	}, true
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

// arrived notifies the scheduler of a message.
func (j *job) arrived(rank id.Rank, waiting uint32) {
	if s := j.scheduler(); s != nil {
		s.Arrived(sched.ID{Job: j.spec.Job, Rank: rank}, waiting)
	}
}

// woken notifies the scheduler of a rank that was woken up.
func (j *job) woken(rank id.Rank) {
	if s := j.scheduler(); s != nil {
		s.Woken(sched.ID{Job: j.spec.Job, Rank: rank})
	}
}

// scheduler returns the scheduler, nil while the job does not need it.
func (j *job) scheduler() Scheduler {
	if j.scheduled.Load() {
		return j.node.opened()
	}
	return nil
}

// leave takes a rank that has ended off its core. It reports whether the rank had been entered: a
// process that ends before the node kernel looks at it has not.
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
	for p := range j.spec.Layout.On(j.node.config.Boot.Node) {
		j.leave(p.Rank)
	}
}
