package sched

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/nimble/memory"
)

// Parameters that no policy can change.
const (
	// Turn is the quantum when no policy has an opinion, and the quantum of a rescued task.
	Turn = 10 * time.Millisecond
	// MinQuantum is the shortest quantum. A quantum above MaxQuantum is infinite.
	MinQuantum = 100 * time.Microsecond
	MaxQuantum = time.Hour
	// StarvationLimit is the default of Core.StarvationLimit.
	StarvationLimit = 2 * time.Second
	// RescueLimit is the number of rescues at which a policy is removed.
	RescueLimit = 4
)

// Plan is the schedule of a core until the next event. Tasks are named by their index in
// Core.Tasks.
type Plan struct {
	Run  int     // the task that gets the core; -1: none
	Hold uint64  // bit i: task i must be kept off the core
	Next id.Time // when to call Tick; slot.Infinite: never
}

// Account returns a task's CPU time and its number of pending messages.
type Account func(ID) (ran time.Duration, messages uint32)

// Core decides which task has one core. It is independent of Linux: an enforcer reports events to
// it and carries out its plans. All times are nanoseconds of one monotonic clock. It is not safe
// for concurrent use.
type Core struct {
	// Switched is called when the core goes to another task, or becomes idle: the zero ID. It may
	// be nil.
	Switched func(at id.Time, to ID, why string)
	// StarvationLimit is the longest time that a task that is ready and not held can be kept
	// waiting. Delays in following a plan do not count.
	StarvationLimit time.Duration

	number  id.Core
	account Account
	event   *memory.Memory // a slot.SchedContext

	policies []*policyState
	tasks    []*entry // in the order of Add
	running  *entry   // nil: none
	told     ID       // the last argument of Switched
	toldAt   id.Time
	decider  *policyState // the policy that chose running; nil: this package
	plan     Plan
	until    id.Time       // the end of the quantum; slot.Infinite: none
	rescue   id.Time       // the end of a rescued task's turn; 0: none
	late     time.Duration // total delay in following plans
	info     CoreInfo
}

// policyState is a policy with the state of its tasks.
type policyState struct {
	*Policy
	rescues int
	data    map[ID]uint64 // last values of SchedTask.Data
}

// entry is a task of a core.
type entry struct {
	ID
	state  slot.TaskState
	since  id.Time       // start of its state
	late   time.Duration // Core.late at since
	origin time.Duration // its processor time at Add
	spent  time.Duration // processor time of all tasks at since

	ran      time.Duration // last CPU time from account
	messages uint32

	end     time.Duration // its processor time at the end of its last finite quantum, if that was on time
	over    bool          // that quantum has ended, and the core went to another task
	overrun time.Duration // of its turns, deducted from later quanta
}

// NewCore makes a core without tasks. Policies see its number. The caller must Close it.
func NewCore(number id.Core, account Account) (*Core, error) {
	event, err := memory.Map("sched", slot.SchedSize)
	if err != nil {
		return nil, err
	}
	return &Core{number: number, account: account, StarvationLimit: StarvationLimit, event: event, plan: Plan{Run: -1, Next: slot.Infinite}, until: slot.Infinite}, nil
}

// Close releases the memory of the core.
func (c *Core) Close() error { return c.event.Close() }

// Tasks returns the tasks of the core in the order of Add.
func (c *Core) Tasks() []ID {
	ids := make([]ID, len(c.tasks))
	for i, t := range c.tasks {
		ids[i] = t.ID
	}
	return ids
}

// Plan returns the current plan.
func (c *Core) Plan() Plan { return c.plan }

// Add makes a task share the core. It returns an error if there are slot.MaxTasks already, or if
// the task is one of them.
func (c *Core) Add(now id.Time, task ID) error {
	if len(c.tasks) == slot.MaxTasks {
		return fmt.Errorf("core %d: job %d rank %d: at most %d processes can share a core", c.number, task.Job, task.Rank, slot.MaxTasks)
	}
	if c.find(task) != nil {
		return fmt.Errorf("core %d: job %d rank %d is there already", c.number, task.Job, task.Rank)
	}
	c.measure()
	c.lag(now)
	t := &entry{ID: task, since: now, late: c.late, spent: c.spent()}
	t.ran, t.messages = c.account(task)
	t.origin = t.ran
	c.tasks = append(c.tasks, t)
	c.decide(now, slot.Wake, task)
	return nil
}

// Remove removes a task that has ended or no longer shares the core.
func (c *Core) Remove(now id.Time, task ID) {
	t := c.find(task)
	if t == nil {
		return
	}
	c.measure()
	c.tasks = slices.DeleteFunc(c.tasks, func(other *entry) bool { return other == t })
	for _, p := range c.policies {
		delete(p.data, task)
	}
	c.leave(t)
	c.decide(now, slot.Ending, ID{})
}

// SetPolicies sets the policies. The first one with an opinion decides. A policy that was in force
// before keeps its data and its count of rescues.
func (c *Core) SetPolicies(now id.Time, policies []*Policy) {
	var list []*policyState
	for _, p := range policies {
		at := slices.IndexFunc(c.policies, func(j *policyState) bool { return j.Handle == p.Handle })
		if at < 0 {
			list = append(list, &policyState{Policy: p, data: make(map[ID]uint64)})
		} else {
			list = append(list, c.policies[at])
		}
	}
	c.policies = list
	c.measure()
	c.decide(now, slot.Change, ID{})
}

// Block reports that a task waits. A held task does nothing, so its state is unknown.
func (c *Core) Block(now id.Time, task ID) {
	if t := c.find(task); t != nil && (t.state == slot.Ready || t.state == slot.Running) {
		c.measure()
		c.become(t, now, slot.Blocked)
		c.leave(t)
		c.decide(now, slot.Block, task)
	}
}

// Wake reports that a task no longer waits.
func (c *Core) Wake(now id.Time, task ID) {
	if t := c.find(task); t != nil && t.state == slot.Blocked {
		c.measure()
		c.become(t, now, slot.Ready)
		c.decide(now, slot.Wake, task)
	}
}

// Arrived reports a message for a task.
func (c *Core) Arrived(now id.Time, task ID) {
	if c.find(task) != nil {
		c.measure()
		c.decide(now, slot.Arrival, task)
	}
}

// Tick reports that the time of the plan has come.
func (c *Core) Tick(now id.Time) {
	if now >= c.plan.Next {
		c.measure()
		c.decide(now, slot.Tick, ID{})
	}
}

// Info describes the core.
func (c *Core) Info() CoreInfo {
	c.measure()
	info := c.info
	info.Core, info.Running = c.number, -1
	for i, t := range c.tasks {
		info.Tasks = append(info.Tasks, c.describe(t))
		if t == c.running {
			info.Running = i
		}
	}
	return info
}

func (c *Core) find(task ID) *entry {
	for _, t := range c.tasks {
		if t.ID == task {
			return t
		}
	}
	return nil
}

// leave records that a task no longer has the core.
func (c *Core) leave(t *entry) {
	if t == c.running {
		c.running, c.rescue = nil, 0
	}
}

func (c *Core) become(t *entry, now id.Time, state slot.TaskState) {
	if t.state != state {
		c.lag(now)
		t.state, t.since, t.late, t.spent = state, now, c.late, c.spent()
	}
}

// spent returns the processor time of all tasks.
func (c *Core) spent() time.Duration {
	var sum time.Duration
	for _, t := range c.tasks {
		sum += t.ran - t.origin
	}
	return sum
}

// measure reads the accounts of all tasks, which takes time, once per event.
func (c *Core) measure() {
	for _, t := range c.tasks {
		t.ran, t.messages = c.account(t.ID)
	}
}

func (c *Core) describe(t *entry) slot.SchedTask {
	return slot.SchedTask{
		Job: uint32(t.Job), Rank: uint32(t.Rank), State: t.state, Messages: t.messages,
		Ran: uint64(max(0, t.ran-t.origin)), Since: uint64(t.since),
	}
}

// lag records the delay in following the plan. A plan is followed late when the caller does not get
// its own CPU. No decision was possible in that time, so it does not count as waiting because of a
// decision.
func (c *Core) lag(now id.Time) {
	if now > c.plan.Next {
		c.late += now.Sub(c.plan.Next)
		c.plan.Next = now
	}
}

// decide makes a new plan.
func (c *Core) decide(now id.Time, why slot.Why, target ID) {
	c.lag(now)
	if now < c.rescue {
		c.arm(now, c.rescue)
		return
	}
	c.rescue = 0
	if t := c.starved(now); t != nil {
		c.save(now, t)
		return
	}
	for _, p := range c.policies {
		c.info.Asked++
		if o, ok := c.ask(now, p, why, target); ok {
			c.decider, c.info.Why = p, p.Name
			c.obey(now, o)
			return
		}
	}
	c.decider, c.info.Why = nil, "turns"
	c.obey(now, c.turns(now, why))
}

// starved returns the task that has waited for longer than the starvation limit, the longest if
// there are several, nil if there is none.
func (c *Core) starved(now id.Time) *entry {
	if t := c.longest(); t != nil && now >= c.limit(t) {
		return t
	}
	return nil
}

// limit returns the time until which a ready task may be kept waiting.
func (c *Core) limit(t *entry) id.Time { return t.since.Add(c.StarvationLimit + c.late - t.late) }

// longest returns the task that has been ready for the longest time, nil if none is.
func (c *Core) longest() *entry {
	var found *entry
	for _, t := range c.tasks {
		if t.state == slot.Ready && (found == nil || t.since < found.since) {
			found = t
		}
	}
	return found
}

// save gives a starved task a turn, and blames the policy, unless tasks used little of the core
// during the wait: then other work had the CPU.
func (c *Core) save(now id.Time, t *entry) {
	c.info.Rescues++
	c.info.Why = "starvation limit"
	if p := c.decider; p != nil && c.spent()-t.spent >= c.StarvationLimit/2 {
		p.rescues++
		err := fmt.Errorf("job %d rank %d was ready and not held, and had to wait for %v", t.Job, t.Rank, c.StarvationLimit)
		if p.rescues < RescueLimit {
			p.Fault(err)
		} else if p.rescues == RescueLimit {
			p.Remove(Starved(err))
		}
	}
	c.give(now, t)
	c.rescue = c.grant(now, uint64(Turn))
	c.arm(now, c.rescue)
}

// Starved returns the reason for the removal of a policy after RescueLimit rescues. err describes
// the last one.
func Starved(err error) string {
	return fmt.Sprintf("it let tasks starve %d times, the last: %v", RescueLimit, err)
}

// opinion is a valid answer.
type opinion struct {
	task    *entry // nil: none
	quantum uint64
	hold    uint64
}

// ask runs a policy and reports whether it has an opinion.
func (c *Core) ask(now id.Time, p *policyState, why slot.Why, target ID) (opinion, bool) {
	s := slot.SchedContext{
		Core: uint32(c.number), Why: why, Count: uint32(len(c.tasks)), Target: slot.NoTask, Now: uint64(now), Quantum: slot.Infinite,
	}
	for i, t := range c.tasks {
		s.Tasks[i] = c.describe(t)
		s.Tasks[i].Data = p.data[t.ID]
		if t.state == slot.Held {
			s.Hold |= 1 << i
		}
		if t.ID == target && (why == slot.Block || why == slot.Wake || why == slot.Arrival) {
			s.Target = uint32(i)
		}
	}
	// The context has a fixed size, so neither can fail.
	_, _ = binary.Encode(c.event.Bytes(), binary.LittleEndian, &s)
	verdict, err := p.Decide(c.event.Region(true), c.number)
	if err != nil {
		return opinion{}, false
	}
	_, _ = binary.Decode(c.event.Bytes(), binary.LittleEndian, &s)
	for i, t := range c.tasks {
		p.data[t.ID] = s.Tasks[i].Data
	}
	if verdict == slot.Default {
		return opinion{}, false
	}
	o := opinion{quantum: s.Quantum, hold: s.Hold & (1<<len(c.tasks) - 1)}
	if err := Check(verdict, len(c.tasks), o.hold); err != nil {
		p.Fault(err)
		return opinion{}, false
	}
	if t := c.tasks[verdict]; t.state != slot.Blocked {
		o.task = t
	}
	return o, true
}

// Check returns an error if an answer about this many tasks is invalid.
func Check(answer slot.Verdict, tasks int, hold uint64) error {
	switch {
	case answer >= slot.Verdict(tasks):
		return fmt.Errorf("it chose task %d of %d", answer, tasks)
	case hold>>answer&1 != 0:
		return fmt.Errorf("it chose task %d, which it holds", answer)
	}
	return nil
}

// turns is the default policy: ready tasks take turns, the longest-waiting first.
func (c *Core) turns(now id.Time, why slot.Why) opinion {
	for _, t := range c.tasks {
		if t.state == slot.Held {
			c.become(t, now, slot.Ready)
		}
	}
	next := c.longest()
	if next == nil {
		return opinion{task: c.running, quantum: slot.Infinite}
	}
	if t := c.running; t != nil && why != slot.Tick {
		if end := min(t.since.Add(Turn), c.until); now < end { // its turn has not ended
			return opinion{task: t, quantum: uint64(end.Sub(now))}
		}
	}
	o := opinion{task: next, quantum: slot.Infinite}
	if c.running != nil || c.others(next) {
		o.quantum = uint64(Turn)
	}
	return o
}

// others reports whether another task is ready.
func (c *Core) others(except *entry) bool {
	return slices.ContainsFunc(c.tasks, func(t *entry) bool { return t != except && t.state == slot.Ready })
}

// obey gives the core to the chosen task.
func (c *Core) obey(now id.Time, o opinion) {
	for i, t := range c.tasks {
		if o.hold>>i&1 != 0 {
			c.become(t, now, slot.Held)
			c.leave(t)
		} else if t.state == slot.Held {
			c.become(t, now, slot.Ready)
		}
	}
	c.give(now, o.task)
	c.arm(now, c.grant(now, o.quantum))
}

// give makes t the running task; nil makes the core idle.
func (c *Core) give(now id.Time, t *entry) {
	if c.running == t {
		return
	}
	if c.running != nil {
		c.become(c.running, now, slot.Ready)
		c.running.over = now >= c.until
	}
	c.running = t
	if t != nil {
		c.become(t, now, slot.Running)
		c.info.Switches++
	}
}

// grant gives the running task the core for a quantum, and returns its end. It deducts the overrun
// of the task's turns, up to half of the quantum: turns sometimes end late, perhaps always the same
// task's.
func (c *Core) grant(now id.Time, quantum uint64) (until id.Time) {
	t := c.running
	if t == nil {
		t = &entry{}
	}
	if t.over {
		t.overrun = min(max(0, t.overrun+t.ran-t.end), Turn)
	}
	t.over = false
	if quantum > uint64(MaxQuantum) {
		return slot.Infinite
	}
	cut := min(t.overrun, time.Duration(quantum/2))
	t.overrun -= cut
	granted := max(time.Duration(quantum)-cut, MinQuantum)
	t.end = t.ran + granted
	return now.Add(granted)
}

// It calls Switched if the running task is a new one.
func (c *Core) tell(at id.Time) {
	var now ID
	if c.running != nil {
		now = c.running.ID
	}
	if now == c.told {
		return
	}
	c.told, c.toldAt = now, at
	if c.Switched != nil {
		c.Switched(at, now, c.info.Why)
	}
}

// TellAgain calls Switched with the running task and the start of its turn, if several tasks share
// the core, for a new watcher.
func (c *Core) TellAgain() {
	if len(c.tasks) > 1 && c.told != (ID{}) && c.Switched != nil {
		c.Switched(c.toldAt, c.told, c.info.Why)
	}
}

// arm makes the plan: the running task has the core until the given time, unless another task
// starves before.
func (c *Core) arm(now, until id.Time) {
	c.tell(now)
	c.until = until
	c.plan = Plan{Run: -1, Next: c.until}
	if t := c.longest(); t != nil && c.rescue == 0 {
		c.plan.Next = min(c.plan.Next, c.limit(t))
	}
	for i, t := range c.tasks {
		if t == c.running {
			c.plan.Run = i
		}
		if t.state == slot.Held {
			c.plan.Hold |= 1 << i
		}
	}
}
