// Package schedext is the sched.Enforcer that decides inside Linux, by sched_ext.
//
// A fixed skeleton (skeleton.c) is the machine's sched_ext scheduler for the threads of the tasks
// only (SCX_OPS_SWITCH_PARTIAL). To select the next task of a core, it calls the core's policies by
// a tail call through one slot per core. The slot holds a copy of the skeleton's program `policy`
// with the extensions' instructions, as package verify accepted them. So a policy is replaced
// without detaching anything, and with an empty slot tasks take turns. Linux has verified all of
// this, so no answer can do harm; an invalid one is counted as a fault.
//
// # Shared memory
//
// The node kernel and the skeleton share the memory of some maps (table_unsafe.go): the node
// kernel's data about tasks, and the skeleton's state. The skeleton reports the rest through a ring
// of events: tasks to stop or resume (by the freezer or signals, so that Linux's watchdog does not
// take held tasks for starved ones), faults, tasks that only the starvation limit has given a turn,
// and its own end.
//
// # State of extensions
//
// While an extension decides here, its maps are Linux's own; they begin as copies of its memory.
// Neither the ranks nor the node kernel see its writes, because Linux lets it write kernel
// addresses; only the maps of a trusted extension are copied back at the end. It may run on two
// cores at the same time. The only services in Linux are maps, clock, random numbers and the core;
// an extension that needs others is refused, and so is one that Linux's verifier refuses.
//
// # When Linux ends it
//
// Linux ejects a sched_ext scheduler that makes an error or lets a thread wait for 30 seconds.
// Tasks then run on Linux's default scheduler. The reason is logged and the skeleton attached
// again, until Linux has ejected it maxEvictions times.
//
// Linux also ends it when the node kernel is killed. The next node kernel adds the tasks again,
// including stopped ones.
//
// Locks, in this order: Enforcer.loading is held while chains of policies are loaded and closed,
// which takes long; Enforcer.mu guards all tables. Faults are reported to policies without either.
package schedext

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/sched"
)

// maxEvictions is the number of evictions after which the skeleton is not attached again.
const maxEvictions = 3

// Enforcer is a sched.Enforcer.
type Enforcer struct {
	log func(format string, args ...any)

	loading sync.Mutex
	loaded  map[id.Handle]*loaded // by handle
	epoch   uint32                // of the newest chain

	mu       sync.Mutex
	skeleton *skeleton
	cores    map[id.Core]*core // by number
	tasks    map[sched.ID]*task
	serial   uint32 // of the newest task
	watcher  sched.Watcher
	evicted  int   // times
	broken   error // why the skeleton is no longer attached
	closed   bool

	came    chan struct{} // holds a value if a message has arrived since recount last counted
	done    chan struct{} // closed by Close
	running sync.WaitGroup
}

// core is a core with tasks or policies.
type core struct {
	number id.Core
	cpu    id.CPU // Linux's number; -1: unknown until the first Add
	places [slot.MaxTasks]*task
	order  []*task
	chain  *chain // written with both locks held
	lost   uint64 // events, when its threads were last looked for

	watched id.Time // time from which on the watcher gets decisions
}

// task is a task with its place.
type task struct {
	sched.Task
	core  *core
	place int
	owner identity // in the table of its threads
	held  bool     // it is stopped
	told  uint32   // pending messages at the last Arrived
}

var _ sched.Enforcer = (*Enforcer)(nil)

// New makes the enforcer, for a node with its own Linux, because sched_ext is system-wide. The
// error names the missing feature. Linux takes a second to verify the skeleton, an emulated one
// several. New attaches the skeleton at once, while a booting node has little to do: attaching
// patches Linux's code, which emulated machines do not always survive while all cores are busy.
// Without tasks it does nothing.
func New(log func(format string, args ...any)) (*Enforcer, error) {
	if err := available(); err != nil {
		return nil, fmt.Errorf("sched_ext: %w", err)
	}
	s, err := load()
	if err != nil {
		return nil, fmt.Errorf("sched_ext: %w", err)
	}
	if err := s.attach(); err != nil {
		return nil, errors.Join(fmt.Errorf("sched_ext: %w", err), s.Close())
	}
	e := &Enforcer{
		log: log, skeleton: s, cores: make(map[id.Core]*core), tasks: make(map[sched.ID]*task), loaded: make(map[id.Handle]*loaded),
		came: make(chan struct{}, 1), done: make(chan struct{}),
	}
	e.running.Go(e.listen)
	e.running.Go(e.watch)
	e.running.Go(e.recount)
	return e, nil
}

// watchdog is how long a thread may wait before Linux ejects the skeleton: the longest time that
// Linux accepts.
const watchdog = 30 * time.Second

// Name implements sched.Enforcer.
func (e *Enforcer) Name() string { return "sched_ext" }

// Lacks implements sched.Enforcer: there is nothing that it cannot notice.
func (e *Enforcer) Lacks() map[slot.Why]string { return nil }

// errClosed is returned after Close.
var errClosed = errors.New("sched_ext: the enforcer is closed")

// usable returns an error if the enforcer is closed or broken. The caller holds Enforcer.mu.
func (e *Enforcer) usable() error {
	if e.closed {
		return errClosed
	}
	return e.broken
}

// Add implements sched.Enforcer.
func (e *Enforcer) Add(t sched.Task) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.add(t); err != nil {
		return fmt.Errorf("job %d rank %d on core %d: %w", t.Job, t.Rank, t.Core, err)
	}
	return nil
}

func (e *Enforcer) add(t sched.Task) error {
	if err := e.usable(); err != nil {
		return err
	}
	if e.tasks[t.ID] != nil {
		return errors.New("it already shares a core")
	}
	if t.CPU < 0 || int(t.CPU) >= e.skeleton.cpus {
		return fmt.Errorf("there is no CPU %d", t.CPU)
	}
	c := e.core(t.Core)
	if c.cpu >= 0 && c.cpu != t.CPU {
		return fmt.Errorf("the core is Linux's CPU %d, not %d", c.cpu, t.CPU)
	}
	place := slices.Index(c.places[:], nil)
	if place < 0 {
		return fmt.Errorf("at most %d processes can share a core", slot.MaxTasks)
	}
	if c.cpu < 0 {
		if err := e.open(c, t.CPU); err != nil {
			return err
		}
	}
	e.serial++
	added := &task{Task: t, core: c, place: place, owner: identity{Serial: e.serial, CPU: uint16(t.CPU), Place: uint16(place)}}
	if !t.Untouched { // a previous node kernel may have left it stopped
		if err := added.stop(false); err != nil {
			return err
		}
	}
	c.places[place], c.order, e.tasks[t.ID] = added, append(c.order, added), added
	e.skeleton.given(c.cpu).enter(added)
	e.count(c)
	e.reorder(c, 0)
	if err := e.skeleton.adopt(added); err != nil {
		e.remove(added)
		return err
	}
	return nil
}

// core returns the core with this number, and makes it if there is none.
func (e *Enforcer) core(number id.Core) *core {
	c := e.cores[number]
	if c == nil {
		c = &core{number: number, cpu: -1}
		e.cores[number] = c
	}
	return c
}

// open binds a core to Linux's CPU.
func (e *Enforcer) open(c *core, cpu id.CPU) error {
	c.cpu = cpu
	g := e.skeleton.given(cpu)
	g.Core = uint32(c.number)
	e.watched(c)
	if c.chain == nil {
		return nil
	}
	return e.skeleton.setPolicy(cpu, c.chain.program)
}

// reorder writes the tasks of a core to the skeleton's table and signals the change. If the signal
// is lost, the skeleton notices the change at the core's next decision.
func (e *Enforcer) reorder(c *core, signals uint64) {
	order := ^uint64(0)
	for i := len(c.order) - 1; i >= 0; i-- {
		order = order<<8 | uint64(c.order[i].place)
	}
	g := e.skeleton.given(c.cpu)
	g.order().Store(order)
	e.signal(c, signals)
}

// signal makes a core check for changes.
func (e *Enforcer) signal(c *core, signals uint64) {
	e.skeleton.given(c.cpu).signals().Or(signals)
	e.kick(c)
}

func (e *Enforcer) kick(c *core) {
	if err := e.skeleton.kick(c.cpu); err != nil {
		e.log("sched_ext: core %d: %v", c.number, err)
	}
}

// Remove implements sched.Enforcer.
func (e *Enforcer) Remove(id sched.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.tasks[id]; t != nil && !e.closed {
		e.remove(t)
	}
}

func (e *Enforcer) remove(t *task) {
	c := t.core
	delete(e.tasks, t.ID)
	c.places[t.place] = nil
	c.order = slices.DeleteFunc(c.order, func(other *task) bool { return other == t })
	g := e.skeleton.given(c.cpu)
	g.Places[t.place].Serial = 0
	g.frozen().And(^(1 << t.place))
	e.reorder(c, ended)
	e.letGo(t)
}

// letGo resumes a task and returns its threads to Linux's default scheduler.
func (e *Enforcer) letGo(t *task) {
	if t.held {
		e.report(t, t.stop(false))
	}
	e.report(t, e.skeleton.release(t))
}

func (e *Enforcer) report(t *task, err error) {
	if err != nil {
		e.log("sched_ext: job %d rank %d on core %d: %v", t.Job, t.Rank, t.Core, err)
	}
}

// Cores implements sched.Enforcer.
func (e *Enforcer) Cores() []sched.CoreInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []sched.CoreInfo
	for _, c := range e.cores {
		if c.cpu >= 0 && len(c.order) > 0 && !e.closed {
			all = append(all, e.describe(c))
		}
	}
	slices.SortFunc(all, func(a, b sched.CoreInfo) int { return cmp.Compare(a.Core, b.Core) })
	return all
}

// describe describes a core. The skeleton may switch tasks during that, so which of them has the
// core is read once, and their states follow from that.
func (e *Enforcer) describe(c *core) sched.CoreInfo {
	state := e.skeleton.core(c.cpu)
	current := state.current().Load()
	info := sched.CoreInfo{
		Core: c.number, Running: -1, Switches: state.Switches, Asked: state.Asked, Rescues: state.Rescues,
		Why: c.why(state.Epoch, state.Decider),
	}
	for i, t := range c.order {
		p := &state.Places[t.place]
		described := slot.SchedTask{Job: uint32(t.Job), Rank: uint32(t.Rank), State: slot.Blocked, Messages: t.Messages(t.told)}
		if p.Serial == t.owner.Serial {
			described.State, described.Ran, described.Since = slot.TaskState(p.State), p.Ran, p.Since
		}
		switch running := described.State == slot.Running; {
		case current == uint32(t.place):
			info.Running, described.State = i, slot.Running
		case running:
			described.State = slot.Ready
		}
		info.Tasks = append(info.Tasks, described)
	}
	return info
}

// Close implements sched.Enforcer.
func (e *Enforcer) Close() error {
	e.loading.Lock()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		e.loading.Unlock()
		return nil
	}
	e.closed = true
	close(e.done)
	err := e.skeleton.detach()
	for _, t := range e.tasks {
		e.letGo(t)
	}
	for _, c := range e.cores {
		err = errors.Join(err, e.drop(c.chain))
	}
	e.skeleton.wake()
	e.mu.Unlock()
	e.loading.Unlock()
	e.running.Wait()
	return errors.Join(err, e.skeleton.Close())
}
