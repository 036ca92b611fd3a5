package priority

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/clock"
	"margay/internal/throwaway"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/sched"
)

// core is one core. Its own thread receives context switches and timer expiries.
type core struct {
	enforcer *Enforcer
	number   id.Core
	cpu      id.CPU     // Linux's number of it, while it is shared
	timer    int        // a timerfd
	doorbell int        // an eventfd: the thread has to look again what to wait for
	ringing  sync.Mutex // held to use the doorbell other than on the thread; taken last
	stopped  chan struct{}

	mu        sync.Mutex
	decision  *sched.Core
	tasks     []*task      // in the order of decision
	rings     []*ring      // of tracepoints; nil: tasks have rings of their own
	strangers map[int]bool // by the numbers of threads: of no task
	policies  int
	active    bool // the core is shared, or there is a policy
	stops     bool // while it is: by stopping all but the chosen task
	apart     bool // while it is: nothing else is on its CPU, and the node kernel never was
	started   bool // the thread
	closed    bool
	armed     id.Time // when the timer rings; slot.Infinite: not at all
	failed    bool    // something has gone wrong and was logged
}

func newCore(e *Enforcer, number id.Core) (*core, error) {
	c := &core{enforcer: e, number: number, stopped: make(chan struct{}), strangers: make(map[int]bool), armed: slot.Infinite}
	var err error
	if c.decision, err = sched.NewCore(number, c.account); err != nil {
		return nil, err
	}
	c.decision.Switched = func(at id.Time, to sched.ID, why string) {
		if watch := e.watch.Load(); watch != nil {
			(*watch)(number, at, to, why)
		}
	}
	if c.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("core %d: make timer: %w", number, err), c.decision.Close())
	}
	if c.doorbell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("core %d: make doorbell: %w", number, err), unix.Close(c.timer), c.decision.Close())
	}
	return c, nil
}

// now reads the node's clock.
func now() id.Time { return id.Time(clock.Monotonic()) }

// account implements sched.Account. The caller holds the lock.
func (c *core) account(id sched.ID) (ran time.Duration, messages uint32) {
	t := c.find(id)
	if t == nil {
		return 0, 0
	}
	return t.ran(), t.Messages(t.told)
}

func (c *core) find(id sched.ID) *task {
	for _, t := range c.tasks {
		if t.ID == id {
			return t
		}
	}
	return nil
}

func (c *core) add(t *task) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.find()
	t.held = !t.Untouched // perhaps: a node kernel before this one may have left it so, and with a priority
	if err := c.release(t); err != nil {
		return err
	}
	c.tasks = append(c.tasks, t)
	if err := c.decision.Add(now(), t.ID); err != nil {
		c.tasks = c.tasks[:len(c.tasks)-1]
		return err
	}
	if c.active {
		c.attach(t)
	}
	c.update()
	return nil
}

func (c *core) remove(id sched.ID) {
	if r := c.drop(id); r != nil {
		r.close() // without the lock: Linux waits for threads that are ending, which wait for the core
	}
}

// drop removes a task and returns its ring, nil if there is none.
func (c *core) drop(id sched.ID) *ring {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.find(id)
	if t == nil {
		return nil
	}
	r := t.ring
	t.ring = nil
	c.check(c.release(t))
	c.tasks = slices.DeleteFunc(c.tasks, func(other *task) bool { return other == t })
	c.decision.Remove(now(), id)
	c.update()
	return r
}

func (c *core) setPolicies(policies []*sched.Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policies = len(policies)
	c.decision.SetPolicies(now(), policies)
	c.update()
}

func (c *core) arrived(id sched.ID, waiting uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.find(id); t != nil && c.active && !c.closed {
		t.told = waiting
		if t.blocked {
			c.hear() // the message has woken it, which nothing else reports
		}
		c.settle(t)
		c.decision.Arrived(now(), id)
		c.update()
	}
}

func (c *core) describe() sched.CoreInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active && !c.closed {
		for _, t := range c.tasks {
			c.settle(t)
		}
		c.update()
	}
	return c.decision.Info()
}

// release gives a task back to Linux.
func (c *core) release(t *task) error {
	var err error
	if t.held {
		err = t.hold(false)
	}
	if c.enforcer.stops == nil {
		err = errors.Join(err, t.become(ordinary))
	}
	t.unwatch()
	c.ring()
	return err
}

// check logs an error of what should not fail, the first of its kind.
func (c *core) check(err error) {
	if err != nil && !c.failed {
		c.failed = true
		c.enforcer.log("core %d: %v", c.number, err)
	}
}

// update applies the plan to Linux. The caller holds the lock.
func (c *core) update() {
	if active := len(c.tasks) > 1 || c.policies > 0 && len(c.tasks) > 0; active != c.active {
		c.active = active
		if active {
			c.activate()
		} else {
			c.leave()
			for _, t := range c.tasks {
				c.check(c.release(t))
			}
		}
	}
	if !c.active {
		c.arm(slot.Infinite)
		return
	}
	plan := c.decision.Plan()
	// Raise the incoming task first, so that no other task runs in between. Lower a task that no
	// longer needs priority after the others have stopped.
	if plan.Run >= 0 && !c.stops && !c.alone(plan) {
		if t := c.tasks[plan.Run]; !t.at(chosen) {
			c.check(t.become(waking))
		}
	}
	for _, comes := range []bool{false, true} {
		for i, t := range c.tasks {
			if (i == plan.Run) == comes {
				c.enforce(t, plan, i)
			}
		}
	}
	c.arm(plan.Next)
}

// alone reports whether nothing competes with the chosen task: it has the core without limit, no
// other task is ready, and nothing else uses the CPU.
func (c *core) alone(plan sched.Plan) bool { return c.apart && plan.Next == slot.Infinite }

// enforce gives a task what the plan has for it.
func (c *core) enforce(t *task, plan sched.Plan, i int) {
	held := plan.Hold>>i&1 != 0
	if c.stops {
		held = held || plan.Run >= 0 && plan.Run != i && !t.blocked // a waiting task must be able to wake up
	}
	if held != t.held {
		c.check(t.hold(held))
	}
	if c.stops {
		return
	}
	switch {
	case i == plan.Run && c.alone(plan):
		// With a priority the clock of Linux might interrupt it: Linux 7.3 forgets that it had
		// stopped that once its deadline server has let something else run.
		c.check(t.become(ordinary))
	case i == plan.Run:
		c.check(t.become(chosen))
	case t.blocked || held:
		c.check(t.become(waking))
	default:
		c.check(t.become(ready))
	}
}

// leave gives the core's CPU back to the node kernel.
func (c *core) leave() {
	closeRings(c.rings)
	c.rings = nil
	if !c.stops {
		c.enforcer.leave(c.cpu)
	}
}

// activate begins to share the core.
func (c *core) activate() {
	c.cpu = c.tasks[0].CPU
	c.stops = c.enforcer.stops != nil
	if !c.stops && !c.enforcer.take(c.cpu) {
		c.stops = true
		c.enforcer.log("core %d: tasks that must not run are stopped, because CPU %d must stay free of real-time tasks", c.number, c.cpu)
	}
	c.apart = !c.enforcer.had(c.cpu)
	if points := c.enforcer.points; points != nil && !c.stops {
		var err error
		c.rings, err = points.listen(c.cpu, c.apart)
		c.check(err)
	}
	for _, t := range c.tasks {
		c.attach(t)
	}
	if !c.started {
		c.started = true
		throwaway.Go(c.run)
	}
	c.ring()
}

// attach starts receiving a task's events.
func (c *core) attach(t *task) {
	clear(c.strangers)
	t.find()
	if !c.hears() {
		return
	}
	if c.rings == nil {
		if err := t.watch(); err != nil && !errors.Is(err, unix.ESRCH) {
			c.check(err)
		}
	}
	c.ring()
	c.settle(t)
}

// It reports whether blocking and waking are known.
func (c *core) hears() bool { return c.enforcer.deaf == nil && !c.stops }

// doze is how much a task may compute that is said to wait, in wake-ups too short to be seen,
// before it is looked whether it does.
const doze = 500 * time.Microsecond

// settle reports to the decision when a task has started or stopped waiting, and returns whether it
// has. A task that woke on an idle CPU, which is not reported, is recognised by the processor time
// that it uses.
func (c *core) settle(t *task) bool {
	if !c.hears() && !c.stops || t.held {
		return false
	}
	if t.blocked && t.ran()-t.rested > doze {
		t.find()
		t.rested = t.ran()
	}
	waiting := t.waiting()
	if waiting == t.blocked {
		return false
	}
	t.blocked = waiting
	if waiting {
		t.rested = t.ran()
		c.decision.Block(now(), t.ID)
	} else {
		c.decision.Wake(now(), t.ID)
	}
	return true
}

// ring has the thread look again what to wait for.
func (c *core) ring() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	c.ringing.Lock()
	defer c.ringing.Unlock()
	_, _ = unix.Write(c.doorbell, one[:]) // it fails only when it has been rung often enough, or the core is closed
}

// rung reports whether a doorbell or a timer has rung since it was asked last.
func rung(fd int) bool {
	var times [8]byte
	_, err := unix.Read(fd, times[:])
	return err == nil
}

// arm sets the timer.
func (c *core) arm(next id.Time) {
	if next == c.armed {
		return
	}
	c.armed = next
	var spec unix.ItimerSpec
	if next != slot.Infinite {
		spec.Value = unix.NsecToTimespec(int64(next))
	}
	c.check(unix.TimerfdSettime(c.timer, unix.TFD_TIMER_ABSTIME, &spec, nil))
}

// run processes events until the core is closed.
func (c *core) run() {
	defer close(c.stopped)
	if err := soon(); err != nil {
		c.enforcer.log("core %d: %v", c.number, err)
	}
	var fds []unix.PollFd
	for news := true; ; {
		var timeout int
		if fds, timeout = c.waitable(fds[:0]); fds == nil {
			return
		}
		if !news && timeout < 0 {
			fds, timeout = fds[:always], calm
		}
		if _, err := unix.Poll(fds, timeout); err != nil && err != unix.EINTR {
			c.enforcer.log("core %d is no longer shared: %v", c.number, err)
			return
		}
		news = c.happened(fds) || !news
	}
}

// calm is the pause in milliseconds after an irrelevant event. If the thread runs on a CPU of tasks
// and receives all context switches, it causes some by receiving them.
const calm = 1

// always is how many descriptors the thread always waits for: the timer and the doorbell, which
// come first.
const always = 2

// glance is the interval in milliseconds for polling unreported state: which tasks wait, if the
// others are stopped, and whether a waiting task woke on an idle CPU.
const glance = 10

// waitable appends what the thread waits for, and returns nil when the core is closed, and for how
// many milliseconds.
func (c *core) waitable(fds []unix.PollFd) (all []unix.PollFd, timeout int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, 0
	}
	timeout = -1
	if c.active && c.stops || c.rings != nil && slices.ContainsFunc(c.tasks, func(t *task) bool { return t.blocked && !t.held }) {
		timeout = glance
	}
	fds = append(fds, unix.PollFd{Fd: int32(c.timer), Events: unix.POLLIN}, unix.PollFd{Fd: int32(c.doorbell), Events: unix.POLLIN})
	for _, r := range c.rings {
		fds = append(fds, unix.PollFd{Fd: r.fd(), Events: unix.POLLIN})
	}
	for _, t := range c.tasks {
		if t.ring != nil && !t.ring.over {
			fds = append(fds, unix.PollFd{Fd: t.ring.fd(), Events: unix.POLLIN})
		}
	}
	return fds, timeout
}

// happened reads the pending events, and reports whether there was anything new. fds show which
// sources have ended.
func (c *core) happened(fds []unix.PollFd) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return true
	}
	if rung(c.timer) {
		news, c.armed = true, slot.Infinite // by the clock that policies see it may be a moment early: then it is set again
	}
	news = rung(c.doorbell) || news
	c.hear()
	for _, t := range c.tasks {
		if t.ring != nil {
			t.ring.over = slices.ContainsFunc(fds, func(p unix.PollFd) bool { return p.Fd == t.ring.fd() && p.Revents&unix.POLLHUP != 0 })
			t.ring.read(func(r record) { c.follow(t, r) })
		}
		if t.stale || c.stops && !t.held {
			t.stale = false
			t.find()
		}
		news = c.settle(t) || news
	}
	c.decision.Tick(now())
	c.update()
	return news
}

// It reads the events of tracepoints.
func (c *core) hear() {
	for _, r := range c.rings {
		r.read(c.note)
	}
}

// follow processes a record of a task. After the record of its end a thread needs the core once
// more, and no task would be given a turn for it.
func (c *core) follow(t *task, r record) {
	t.stale = t.note(r) || t.stale
	if r.what == ended && t.ended[r.tid] {
		c.check(set(r.tid, waking))
	}
}

// note processes an event of a tracepoint, for any thread.
func (c *core) note(r record) {
	if r.what == woken {
		c.wake(r.number, r.time)
		return
	}
	for _, t := range c.tasks {
		if r.what != begun || t.processes[r.ppid] {
			c.follow(t, r)
		}
	}
	// A thread that gets the CPU from another one may have woken while it was idle, which is not
	// reported.
	if r.next != 0 && (c.apart || r.priority >= highest && r.priority <= lowest) {
		c.wake(r.next, r.time)
	}
}

// wake records that the thread of a number no longer waits. The number of a thread that began to
// wait before the events were opened is unknown: search for it.
func (c *core) wake(number int, time id.Time) {
	for _, t := range c.tasks {
		for _, x := range t.threads {
			if x.number == number {
				x.is(false, time)
				return
			}
		}
	}
	// It cannot have been woken up twice without having waited here in between, if it is a task's.
	if c.strangers[number] {
		return
	}
	if len(c.strangers) == maxStrangers {
		clear(c.strangers)
	}
	c.strangers[number] = true
	for _, t := range c.tasks {
		t.stale = true
	}
}

// maxStrangers is how many threads of no task are remembered.
const maxStrangers = 1024

// close gives the tasks back to Linux.
func (c *core) close() error {
	c.mu.Lock()
	c.closed = true
	var errs []error
	for _, t := range c.tasks {
		errs = append(errs, c.release(t))
	}
	if c.active {
		c.leave()
	}
	started := c.started
	c.ring()
	c.mu.Unlock()
	if started {
		<-c.stopped
	}
	c.ringing.Lock()
	errs = append(errs, unix.Close(c.timer), unix.Close(c.doorbell), c.decision.Close())
	c.doorbell = -1
	c.ringing.Unlock()
	return errors.Join(errs...)
}
