package task

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"margay/kernel/link"
	"margay/kernel/task/spare"
)

// Pool makes the containers of a node. It keeps a job init ahead of its job, a spare, so that a
// launch does not wait until namespaces and mounts are made, and the inits of short jobs that have
// left nothing behind, for the next jobs of the same owner (package spare decides when). If no
// spare can be used, the job gets a fresh init.
//
// A spare has a control group of its own, which becomes the job's: Linux waits for all CPUs when it
// moves a process between groups.
//
// All inits are started by one thread, the spawner: one that has no job ends with the thread that
// has started it.
//
// It is safe for concurrent use.
type Pool struct {
	host    Host
	answer  time.Duration // within which a spare must answer
	closing time.Duration // within which Close must end the spares

	mu      sync.Mutex
	machine *spare.Machine
	opened  bool
	wanted  spare.Serial                  // of the spare that is being started; 0: none
	spares  map[spare.Serial]*initProcess // those that are there
	timer   *time.Timer                   // of the machine's next step; nil: none

	starts chan spare.Serial // to the spawner, and closed at its end
	fresh  chan func()       // to the spawner: what it is to do now
	ended  chan struct{}     // closed when the spawner takes nothing more from fresh
	all    sync.WaitGroup    // the spawner and the watchers of spares
}

// answerWait bounds how long a launch of a node waits for a spare: one that is stopped, or starved,
// is replaced by a fresh init.
const answerWait = time.Second

// errNoAnswer reports a spare that has not answered. Other errors are of the job, and say nothing
// about the next spare.
var errNoAnswer = errors.New("it does not answer")

// closeWait bounds how long Close waits for killed spares on a node.
const closeWait = time.Second

// poolGroups begins the names of the control groups of a pool's inits, which may have several jobs.
const poolGroups = "init-"

// lastGroup makes the names of one process differ, and the time the names of several node kernels.
var lastGroup atomic.Uint64

// poolGroup returns a new name.
func poolGroup() string {
	return fmt.Sprintf("%s%d-%d", poolGroups, time.Now().UnixNano(), lastGroup.Add(1))
}

// NewPool returns a pool that starts no spare before Open.
func NewPool(host Host) *Pool {
	return &Pool{
		host: host, answer: answerWait, closing: closeWait, machine: spare.New(spare.Default), spares: make(map[spare.Serial]*initProcess),
		starts: make(chan spare.Serial, 1), fresh: make(chan func()), ended: make(chan struct{}),
	}
}

// Open begins to keep a spare. It also removes what the spares of an earlier node kernel have left.
func (p *Pool) Open() {
	if p.host.Cgroups != nil {
		p.host.Cgroups.Sweep(poolGroups)
	}
	p.all.Go(p.spawner)
	p.event(func(time.Time) { p.opened = true })
}

// Close ends the spares. Containers stay, and are no longer made from spares.
func (p *Pool) Close() error {
	p.event(func(time.Time) { p.machine.Close() })
	p.mu.Lock()
	if p.opened {
		p.opened = false
		close(p.starts)
	}
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		p.all.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(p.closing):
		return errors.New("task: a job init that was started ahead does not end")
	}
}

// event passes an event to the machine and does what it asks for.
func (p *Pool) event(f func(now time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(time.Now())
	p.step()
}

// step does what the machine asks for. The caller holds p.mu.
func (p *Pool) step() {
	if !p.opened {
		return
	}
	a := p.machine.Step(time.Now())
	for _, number := range a.Kill {
		p.discard(number)
	}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if !a.Wake.IsZero() {
		p.timer = time.AfterFunc(time.Until(a.Wake), func() { p.event(func(time.Time) {}) })
	}
	if a.Start == 0 {
		return
	}
	p.wanted = a.Start
	select {
	case p.starts <- a.Start:
	default: // the spawner still waits for Linux to start the last one, which is 30 s late
		p.wanted = 0
		p.machine.Died(time.Now(), a.Start)
		p.step()
	}
}

// discard ends a spare, which no launch gets. The caller holds p.mu.
func (p *Pool) discard(number spare.Serial) {
	if p.wanted == number {
		p.wanted = 0
	}
	if i := p.spares[number]; i != nil {
		delete(p.spares, number)
		p.all.Go(func() { i.discard(p.host) })
	}
}

// New makes the container of a job, of a spare if there is one. On an error nothing is left.
// Release must follow the End of the container.
func (p *Pool) New(ctx context.Context, spec Spec, h Handler) (*Container, error) {
	c, err := p.fromSpare(ctx, spec, h)
	if c == nil && err == nil {
		c, err = newJob(ctx, p.host, spec, h, poolGroup(), p.spawn)
	}
	if err != nil {
		p.event(func(now time.Time) { p.machine.Ended(now, true, spec.Rest) })
		return nil, err
	}
	c.pool = p
	return c, nil
}

// spawn starts a fresh init on the spawner's thread, if there is one.
func (p *Pool) spawn(group string, user int) (i *initProcess, err error) {
	if !p.takes() {
		return p.host.spawn(group, user)
	}
	done := make(chan struct{})
	select {
	case p.fresh <- func() {
		i, err = p.host.spawn(group, user)
		close(done)
	}:
		<-done
		return i, err
	case <-p.ended:
		return p.host.spawn(group, user)
	}
}

// fromSpare makes a container of a spare. It returns none if there is no spare, or if the spare
// could not be used, and an error if ctx has ended.
func (p *Pool) fromSpare(ctx context.Context, spec Spec, h Handler) (*Container, error) {
	var i *initProcess
	p.event(func(time.Time) {
		if number := p.machine.Launch(spec.Owner); number != 0 {
			i = p.spares[number]
			delete(p.spares, number)
			close(i.taken)
		}
	})
	if i == nil {
		return nil, nil
	}
	c, err := i.become(ctx, p.host, spec, p.answer)
	p.event(func(now time.Time) { p.machine.Used(now, !errors.Is(err, errNoAnswer)) })
	if err == nil {
		go c.listen(h)
		return c, nil
	}
	go i.discard(p.host)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("task: %s of job %d: %w", Create, spec.Job, context.Cause(ctx))
	}
	p.host.Log("job %d gets a fresh init, since the one that was started ahead cannot be used: %v", spec.Job, err)
	return nil, nil
}

// takes reports whether the pool is open: it has a spawner, and takes inits of jobs that are over.
// There may be no pool.
func (p *Pool) takes() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

// comeBack takes the init of a job that is over and has left nothing, and ends the job for the
// machine.
func (p *Pool) comeBack(i *initProcess, owner string, ended func(now time.Time)) {
	var err error
	if p.host.Cgroups != nil {
		err = p.host.Cgroups.Job(i.group).Clear()
	}
	p.event(func(now time.Time) {
		defer ended(now)
		number := spare.Serial(0)
		if p.opened && err == nil {
			number = p.machine.Return(now, owner)
		}
		if number == 0 {
			go i.discard(p.host)
			return
		}
		taken := make(chan struct{})
		i.taken = taken
		p.spares[number] = i
		p.all.Go(func() { p.follow(number, i, taken) })
	})
}

// become makes a spare the init of a job, if it answers within wait. Nothing else reads its link
// until then.
func (i *initProcess) become(ctx context.Context, host Host, spec Spec, wait time.Duration) (*Container, error) {
	if host.UserNS {
		spec.UID, spec.GID = i.user, i.user
	}
	if host.Cgroups != nil {
		if err := host.Cgroups.Job(i.group).Limit(spec.limits()); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	c := newContainer(host, spec, i)
	m, packed, err := c.spec.pack()
	if err != nil {
		return nil, err
	}
	reply, err := c.introduce(ctx, m, packed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	return c, answered(Create, reply)
}

// introduce sends a job to a spare and returns the answer.
func (c *Container) introduce(ctx context.Context, m link.Message, packed []byte) (reply link.Message, err error) {
	if err := c.describe(ctx, packed); err != nil {
		return reply, err
	}
	if err := c.out.Send(ctx, m); err != nil {
		return reply, err
	}
	defer c.bound(ctx)()
	return c.conn.Recv()
}

// discard kills an init without a job, and removes its control group.
func (i *initProcess) discard(host Host) {
	select {
	case <-i.ended:
	default:
		_ = i.process.Kill() // it may end at this moment
	}
	<-i.ended
	i.conn.Close()
	if err := host.removeGroup(i.group); err != nil {
		host.Log("a job init that was started ahead: %v", err)
	}
}

// spawner starts job inits.
func (p *Pool) spawner() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.ended)
	for {
		select {
		case start := <-p.fresh:
			start()
		case number, open := <-p.starts:
			if !open {
				return
			}
			p.startAhead(number)
		}
	}
}

// startAhead starts a spare.
func (p *Pool) startAhead(number spare.Serial) {
	i, err := p.host.ahead()
	if err != nil {
		p.host.Log("start a job init ahead: %v", err)
		p.event(func(now time.Time) { p.machine.Died(now, number) })
		return
	}
	p.event(func(time.Time) {
		if p.wanted == number {
			p.wanted = 0
			p.spares[number] = i
			taken := i.taken
			p.all.Go(func() { p.watch(number, i, taken) })
		} else { // it was given up
			p.all.Go(func() { i.discard(p.host) })
		}
	})
}

// ahead starts a job init that waits for its job.
func (h Host) ahead() (*initProcess, error) {
	group := poolGroup()
	if h.Cgroups != nil {
		if _, err := h.Cgroups.Create(group, Spec{}.limits()); err != nil {
			return nil, err
		}
	}
	user := 0
	if h.UserNS {
		user = h.User()
	}
	i, err := h.spawn(group, user, Ahead)
	if err != nil {
		return nil, errors.Join(err, h.removeGroup(group))
	}
	return i, nil
}

// watch reports when a spare that was started waits for its job, and follows it.
func (p *Pool) watch(number spare.Serial, i *initProcess, taken <-chan struct{}) {
	m, err := i.conn.Recv() // a spare that takes too long is killed
	m.CloseFiles()
	if err == nil && m.Kind == Staged {
		p.event(func(now time.Time) { p.machine.Ready(now, number) })
	}
	p.follow(number, i, taken)
}

// follow reports when a spare ends before it gets a job, which closes taken.
func (p *Pool) follow(number spare.Serial, i *initProcess, taken <-chan struct{}) {
	select {
	case <-taken:
		return
	case <-i.ended:
	}
	p.event(func(now time.Time) {
		if p.spares[number] == i {
			p.host.Log("a job init that was started ahead has ended")
			p.discard(number)
			p.machine.Died(now, number)
		}
	})
}

// reportLaunch notifies the pool that the ranks of the job have started.
func (c *Container) reportLaunch() {
	if p := c.pool; p != nil && c.first(&c.launched) {
		p.event(func(now time.Time) { p.machine.Launched(now, c.spec.Rest) })
	}
}

// reportEnd notifies the pool that nothing of the job is left. The pool may get its init back.
func (c *Container) reportEnd(back *initProcess) {
	p := c.pool
	if p == nil || !c.first(&c.over) {
		return
	}
	launching := c.first(&c.launched)
	ended := func(now time.Time) { p.machine.Ended(now, launching, c.spec.Rest) }
	if back == nil {
		p.event(ended)
	} else {
		p.comeBack(back, c.spec.Owner, ended)
	}
}

// first sets a flag and reports whether it was unset.
func (c *Container) first(flag *bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := *flag
	*flag = true
	return !was
}
