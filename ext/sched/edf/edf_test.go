package edf_test

import (
	"testing"
	"time"

	"margay/ext/sched/edf"
	"margay/ext/sched/simulator"
	"margay/nimble/engine/portable"
)

const ms = time.Millisecond

// reserved are the constants for tasks with these slices and periods.
func reserved(slicesAndPeriods ...time.Duration) map[string]any {
	constants := make(map[string]any)
	for i := range len(slicesAndPeriods) / 2 {
		constants[edf.Slice(i)] = uint64(slicesAndPeriods[2*i])
		constants[edf.Period(i)] = uint64(slicesAndPeriods[2*i+1])
	}
	return constants
}

// inPeriods checks that a task had its slice in each of its periods, and returns how much more it
// had at most.
func inPeriods(t *testing.T, c *simulator.Core, task int, slice, period, end time.Duration) (more time.Duration) {
	t.Helper()
	for from := time.Duration(0); from+period <= end; from += period {
		var had time.Duration
		for _, turn := range c.Turns() {
			if turn.Task == task && turn.From < from+period && turn.To > from {
				had += min(turn.To, from+period) - max(turn.From, from)
			}
		}
		if had < slice {
			t.Fatalf("from %v to %v task %d had %v, its slice is %v", from, from+period, task, had, slice)
		}
		more = max(more, had-slice)
	}
	return more
}

func TestEverySliceInItsPeriod(t *testing.T) {
	c := simulator.New(t, portable.New(), edf.Object, reserved(2*ms, 10*ms, 5*ms, 20*ms, 15*ms, 40*ms), make([]simulator.Task, 4)...)
	c.Run(4 * time.Second)
	for i, r := range [][2]time.Duration{{2 * ms, 10 * ms}, {5 * ms, 20 * ms}, {15 * ms, 40 * ms}} {
		if more := inPeriods(t, c, i, r[0], r[1], 4*time.Second); more != 0 {
			t.Errorf("task %d had %v more than its slice in a period, while another had no reservation", i, more)
		}
	}
	if rest := c.Ran(3); rest != 700*ms {
		t.Errorf("the task without a reservation had %v of 4 s", rest)
	}
}

// All of the core can be reserved, down to the last nanosecond.
func TestFull(t *testing.T) {
	c := simulator.New(t, portable.New(), edf.Object, reserved(5*ms, 10*ms, 7*ms, 14*ms), make([]simulator.Task, 3)...)
	c.Run(7 * time.Second)
	inPeriods(t, c, 0, 5*ms, 10*ms, 7*time.Second)
	inPeriods(t, c, 1, 7*ms, 14*ms, 7*time.Second)
	if c.Ran(2) != 0 {
		t.Errorf("the third task had %v", c.Ran(2))
	}
}

// Unreserved time goes to tasks with a reservation if there are no others.
func TestSpareTime(t *testing.T) {
	constants := reserved(1*ms, 10*ms, 1*ms, 10*ms)
	constants[edf.Quantum] = uint64(ms)
	c := simulator.New(t, portable.New(), edf.Object, constants, make([]simulator.Task, 2)...)
	c.Run(10 * time.Second)
	for i := range 2 {
		if ran := c.Ran(i); ran < 4*time.Second || ran > 6*time.Second {
			t.Errorf("task %d ran for %v of 10 s", i, ran)
		}
		inPeriods(t, c, i, 1*ms, 10*ms, 10*time.Second)
	}
}

// A task that waits leaves its time to others and has its slice again in the next period.
func TestOneThatWaits(t *testing.T) {
	c := simulator.New(t, portable.New(), edf.Object, reserved(2*ms, 10*ms), simulator.Task{Burst: 1 * ms, Pause: 9 * ms}, simulator.Task{})
	c.Run(10 * time.Second)
	if c.Ran(0) < 990*ms || c.Ran(0)+c.Ran(1) != 10*time.Second {
		t.Errorf("they ran for %v and %v of 10 s", c.Ran(0), c.Ran(1))
	}
}
