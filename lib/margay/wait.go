package margay

import (
	"context"
	"runtime"
	"syscall"
	"time"

	"margay/internal/cond"
	"margay/kernel/abi/pace"
)

// linger waits for a moment and reports true, or reports false when it is time to sleep.
func (j *Job) linger(ctx context.Context, p *pace.Pace) bool {
	if ctx.Err() != nil {
		return false
	}
	path := j.area.Path().Load()
	var now time.Duration
	if p.Looks(path) {
		now = j.mirrors.now()
	}
	switch p.Next(path, now) {
	case pace.Sleep:
		return false
	case pace.Yield:
		yield()
	}
	return true
}

// yield yields to other goroutines, and the CPU to other processes.
func yield() {
	runtime.Gosched()
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
}

// wait handles messages until done, which receives their number, returns true, or until ctx ends.
func (j *Job) wait(ctx context.Context, done func(handled int) bool) error {
	if j.finalized.Load() {
		return ErrClosed
	}
	handled := 0
	if j.awake(ctx, done, &handled) {
		return nil
	}
	stop := cond.Wake(ctx, &j.changed)
	defer stop()
	idle := func() bool {
		n, advanced := j.progress(1)
		handled += n
		return !done(handled) && n == 0 && !advanced
	}
	for {
		j.rest()
		if err := j.sleep(ctx, idle); err != nil {
			return err
		}
		if j.awake(ctx, done, &handled) {
			return nil
		}
	}
}

// await is wait, but it does not poll if done is true at once.
func (j *Job) await(ctx context.Context, done func(handled int) bool) error {
	if done(0) {
		return nil
	}
	return j.wait(ctx, done)
}

// awake handles messages, and adds their number to handled, until done, or until it is time to
// sleep. It reports whether done returned true.
func (j *Job) awake(ctx context.Context, done func(handled int) bool, handled *int) bool {
	var p pace.Pace
	for {
		n, advanced := j.progress(1)
		*handled += n
		if done(*handled) {
			return true
		}
		if n > 0 || advanced {
			p = pace.Pace{}
		}
		if !j.linger(ctx, &p) {
			return false
		}
	}
}

// sleep waits for the doorbell, the peer doorbell or a datagram, unless this side is not idle.
func (j *Job) sleep(ctx context.Context, isIdle func() bool) error {
	j.mu.Lock()
	heard := j.rung
	j.waiters.Add(1)
	j.area.ReceiveWaiting().Swap(1)
	j.board.Asleep(j.LocalRank()).Swap(1)
	j.mirrors.armWatch() // after the counter was read, so that a datagram changes it
	j.mu.Unlock()
	idle := isIdle() // later messages ring the doorbell
	j.hasten()       // for what that has sent
	j.mu.Lock()
	defer j.mu.Unlock()
	for idle && j.rung == heard && j.closed == nil && ctx.Err() == nil {
		j.changed.Wait()
	}
	if j.waiters.Add(-1) == 0 {
		j.area.ReceiveWaiting().Store(0)
		j.board.Asleep(j.LocalRank()).Store(0)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case idle:
		return j.closed
	}
	return nil
}

// listen receives from the doorbell.
func (j *Job) listen() {
	var rung [256]byte
	for {
		_, err := j.doorbell.Read(rung[:])
		j.mu.Lock()
		j.rung++
		if err != nil && j.closed == nil {
			j.closed = ErrGone
		}
		j.changed.Broadcast()
		j.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// answer receives from the peer doorbell until the peer doorbell is closed.
func (j *Job) answer() {
	var rung [8]byte
	for {
		if _, err := j.peerDoorbell.Read(rung[:]); err != nil {
			return
		}
		j.mu.Lock()
		j.rung++
		j.changed.Broadcast()
		j.mu.Unlock()
	}
}
