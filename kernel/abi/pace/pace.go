// Package pace decides how a rank waits before it sleeps: between two polls it spins or yields.
// lib/c/pace.h repeats it.
package pace

import (
	"time"

	"margay/kernel/abi/wire"
)

// How long a call that waits does so before it sleeps.
const (
	First = 50 * time.Microsecond // it spins, or yields where ranks share CPUs
	All   = time.Millisecond      // then it yields, where they do not, until so long after the beginning
	Each  = 64                    // polls between two looks at the clock while it spins
)

// InVain is a number of polls of a program, one after the other, that have handled nothing: a
// program that makes so many probably waits.
const InVain = 8

// Action is what a call that waits does between two polls.
type Action int

// The actions.
const (
	Sleep Action = iota
	Spin
	Yield
)

// Pace is the wait of a call. The zero value is its beginning.
//
// A rank with a CPU to itself spins, because waking it would take longer. Ranks that share a CPU
// yield: each of them gets the CPU before the first one has it again, and has done by then what the
// others wait for, or waits for something that takes longer. Then they sleep. They sleep at once
// under a scheduler, which decides which of them runs, and if they share the CPU with ranks of
// other nodes: Linux schedules those as other groups, to which no rank yields.
type Pace struct {
	polls int
	since time.Duration // of the first look at the clock; 0: there was none
}

// Looks counts a poll in vain and reports whether Next needs the time.
func (p *Pace) Looks(path uint32) bool {
	if path&wire.PathYield == 0 {
		return false
	}
	p.polls++
	return p.polls%Each == 0 || path&wire.PathSpin == 0
}

// Next returns what to do after a poll in vain that Looks has counted. now is 0 if that did not
// need the time.
func (p *Pace) Next(path uint32, now time.Duration) Action {
	if path&wire.PathYield == 0 {
		return Sleep
	}
	if now == 0 {
		return Spin
	}
	if p.since == 0 {
		p.since = now
	}
	spins := path&wire.PathSpin != 0
	switch passed := now - p.since; {
	case passed < First && spins:
		return Spin
	case passed < First:
		return Yield
	case !spins || passed >= All:
		return Sleep
	}
	p.polls = Each - 1 // look each time
	return Yield
}

// Polled takes the number of polls of the program in vain until now, and whether another one has
// handled something. It returns the new number, and whether the program must yield.
func Polled(before uint32, path uint32, some bool) (after uint32, yield bool) {
	if some {
		return 0, false
	}
	after = min(before+1, InVain)
	return after, after == InVain && path&(wire.PathYield|wire.PathSpin) == wire.PathYield
}
