// Package revival bounds how often a process that keeps ending is started again.
package revival

import "time"

// Pauses are the pauses before further starts of a process. Each one is twice as long as the one
// before, from First up to Last. A process that ran for longer than Last did not keep ending, so
// the pauses start over with First.
type Pauses struct {
	First, Last time.Duration

	next time.Duration
}

// After returns the pause before the next start of a process that ran for so long.
func (p *Pauses) After(ran time.Duration) time.Duration {
	if p.next == 0 || ran > p.Last {
		p.next = p.First
	}
	pause := p.next
	p.next = min(2*pause, p.Last)
	return pause
}
