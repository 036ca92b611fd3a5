package task

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// New makes the container of a job without a pool. Its control group is called job-N.
func New(ctx context.Context, host Host, spec Spec, h Handler) (*Container, error) {
	spawn := func(group string, user int) (*initProcess, error) { return host.spawn(group, user) }
	return newJob(ctx, host, spec, h, fmt.Sprintf("job-%d", spec.Job), spawn)
}

// Detach drops the container's link as the death of the node kernel does.
func (c *Container) Detach() { c.conn.Close() }

// PID returns the process id of the job's init.
func (c *Container) PID() int { return c.pid }

// InitEnv is the environment of a job init.
var InitEnv = initEnv

// Spares returns the process ids of the pool's spares, those that are being started included.
func (p *Pool) Spares() (pids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, number := range slices.Sorted(maps.Keys(p.spares)) {
		pids = append(pids, p.spares[number].process.Pid)
	}
	return pids
}

// Spare returns the process id of the pool's newest spare, when one waits for its job; otherwise 0.
func (p *Pool) Spare() int {
	pids := p.Spares()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(pids) == 0 || !p.machine.Waits() {
		return 0
	}
	return pids[len(pids)-1]
}

// Failures returns how many spares in a row could not be used.
func (p *Pool) Failures() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Failures()
}

// Wait sets how long a launch waits for a spare, and Close for its end.
func (p *Pool) Wait(answer, closing time.Duration) { p.answer, p.closing = answer, closing }
