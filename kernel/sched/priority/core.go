package priority

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/sched"
	"margay/kernel/slot"
)

// core is one core. A thread of its own hears of context switches and of the time.
type core struct {
	enforcer *Enforcer
	number   int
	cpu      int // Linux's number of it, while it is shared
	timer    int // a timerfd
	bell     int // an eventfd: the thread has to look again what to wait for
	stopped  chan struct{}

	mu       sync.Mutex
	decision *sched.Core
	tasks    []*task // in the order of decision
	policies int
	active   bool // the core is shared, or there is a policy
	stops    bool // while it is: by stopping everybody but the chosen task
	started  bool // the thread
	closed   bool
	armed    uint64 // when the timer rings; slot.Infinite: not at all
	failed   bool   // something has gone wrong and was logged
}

func newCore(e *Enforcer, number int) (*core, error) {
	c := &core{enforcer: e, number: number, stopped: make(chan struct{}), armed: slot.Infinite}
	var err error
	if c.decision, err = sched.NewCore(number, c.meter); err != nil {
		return nil, err
	}
	c.decision.Switched = func(to sched.ID, why string) {
		if watch := e.watch.Load(); watch != nil {
			(*watch)(number, to, why)
		}
	}
	if c.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("core %d: make timer: %w", number, err), c.decision.Close())
	}
	if c.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("core %d: make bell: %w", number, err), unix.Close(c.timer), c.decision.Close())
	}
	return c, nil
}

// now is the time as policies see it, in nanoseconds.
func now() uint64 {
	var ts unix.Timespec
	// It cannot fail with this clock.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}

// meter implements sched.Meter. The caller holds the lock.
func (c *core) meter(id sched.ID) (ran time.Duration, messages uint32) {
	t := c.find(id)
	if t == nil {
		return 0, 0
	}
	return t.ran(), t.messages()
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
	t.held = true // perhaps: a node kernel before this one may have left it so, and with a priority
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
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.find(id)
	if t == nil {
		return
	}
	c.check(c.release(t))
	c.tasks = slices.DeleteFunc(c.tasks, func(other *task) bool { return other == t })
	c.decision.Remove(now(), id)
	c.update()
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
	if t := c.find(id); t != nil && c.active {
		t.told = waiting
		c.decision.Arrived(now(), id)
		c.update()
	}
}

func (c *core) describe() sched.CoreInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
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

// update makes Linux do what has been decided. The caller holds the lock.
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
	// Who comes is set before who goes, so that nobody else gets the core in between.
	for i, t := range c.tasks {
		if i == plan.Run || plan.Hold>>i&1 != 0 {
			c.enforce(t, plan, i)
		}
	}
	for i, t := range c.tasks {
		if i != plan.Run && plan.Hold>>i&1 == 0 {
			c.enforce(t, plan, i)
		}
	}
	c.arm(plan.Next)
}

// enforce gives a task what the plan has for it.
func (c *core) enforce(t *task, plan sched.Plan, i int) {
	held := plan.Hold>>i&1 != 0
	if c.stops {
		held = held || plan.Run >= 0 && plan.Run != i
	}
	if held != t.held {
		c.check(t.hold(held))
	}
	if c.stops {
		return
	}
	switch {
	case i == plan.Run:
		c.check(t.become(chosen))
	case t.blocked:
		c.check(t.become(waking))
	default:
		c.check(t.become(ready))
	}
}

// leave gives the core's CPU back to the node kernel.
func (c *core) leave() {
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
		c.enforcer.log("core %d: whoever is not to run is stopped: with priorities the node kernel would have no CPU left", c.number)
	}
	for _, t := range c.tasks {
		c.attach(t)
	}
	if !c.started {
		c.started = true
		go c.run()
	}
}

// attach begins to hear of a task.
func (c *core) attach(t *task) {
	t.find()
	if c.enforcer.deaf != nil || c.stops {
		return
	}
	if err := t.watch(); err != nil && !errors.Is(err, unix.ESRCH) {
		c.check(err)
	}
	c.ring()
	c.settle(t)
}

// settle tells the decision when a task has begun or ceased to wait. It reports whether it has.
func (c *core) settle(t *task) bool {
	waiting := t.waiting()
	if t.held || waiting == t.blocked {
		return false
	}
	t.blocked = waiting
	if waiting {
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
	_, _ = unix.Write(c.bell, one[:]) // it fails only when it has been rung often enough
}

// arm sets the timer.
func (c *core) arm(next uint64) {
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

// run hears of what happens until the core is closed.
func (c *core) run() {
	runtime.LockOSThread() // and never unlocked: the thread ends
	defer close(c.stopped)
	if c.enforcer.stops == nil {
		if err := set(0, above); err != nil {
			c.enforcer.log("core %d: %v", c.number, err)
		}
	}
	for news := true; ; {
		fds, timeout := c.waitable(), -1
		if fds == nil {
			return
		}
		if !news {
			fds, timeout = fds[:always], calm
		}
		if _, err := unix.Poll(fds, timeout); err != nil && err != unix.EINTR {
			c.enforcer.log("core %d is shared no more: %v", c.number, err)
			return
		}
		news = c.happened(fds) || !news
	}
}

// calm is for how many milliseconds the thread does not hear of context switches after some that meant nothing. Where it runs on
// a CPU of tasks, the thread itself makes such switches by hearing of them.
const calm = 1

// always is how many descriptors the thread always waits for: the timer and the bell, which come first.
const always = 2

// waitable is what the thread waits for, nil when the core is closed.
func (c *core) waitable() []unix.PollFd {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	fds := []unix.PollFd{{Fd: int32(c.timer), Events: unix.POLLIN}, {Fd: int32(c.bell), Events: unix.POLLIN}}
	for _, t := range c.tasks {
		if t.ring != nil && !t.ring.over {
			fds = append(fds, unix.PollFd{Fd: t.ring.fd(), Events: unix.POLLIN})
		}
	}
	return fds
}

// happened takes in what there is to know, and reports whether that was anything new. fds say who has nothing to tell any more.
func (c *core) happened(fds []unix.PollFd) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return true
	}
	var counter [8]byte
	for _, fd := range []int{c.bell, c.timer} {
		if _, err := unix.Read(fd, counter[:]); err == nil { // that there is something is all that they say
			news = true
		}
	}
	for _, t := range c.tasks {
		if t.ring == nil {
			continue
		}
		t.ring.over = slices.ContainsFunc(fds, func(p unix.PollFd) bool { return p.Fd == t.ring.fd() && p.Revents&unix.POLLHUP != 0 })
		lost := false
		t.ring.read(func(r record) { lost = t.note(r) || lost })
		if lost {
			t.find()
		}
		news = c.settle(t) || news
	}
	c.decision.Tick(now())
	c.update()
	return news
}

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
	return errors.Join(append(errs, unix.Close(c.timer), unix.Close(c.bell), c.decision.Close())...)
}
