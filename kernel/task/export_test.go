package task

import "time"

// Detach drops the container's link as the death of the node kernel does.
func (c *Container) Detach() { c.conn.Close() }

// PID returns the process id of the job's init.
func (c *Container) PID() int { return c.pid }

// InitEnv is the environment of a job init.
var InitEnv = initEnv

// Spare returns the process id of the pool's spare, when it waits for its job; otherwise 0.
func (p *Pool) Spare() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spare == nil || !p.machine.Waits() {
		return 0
	}
	return p.spare.process.Pid
}

// Failures returns how many spares in a row could not be used.
func (p *Pool) Failures() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Failures()
}

// Wait sets how long a launch waits for a spare, and Close for its end.
func (p *Pool) Wait(answer, closing time.Duration) { p.answer, p.closing = answer, closing }
