package infinite_test

import (
	"slices"
	"testing"
	"time"

	"margay/ext/sched/infinite"
	"margay/ext/sched/simulator"
	"margay/nimble/engine/portable"
)

// core is a simulated core with the scheduler.
func core(t *testing.T, constants map[string]any, tasks ...simulator.Task) *simulator.Core {
	t.Helper()
	c, err := simulator.New(portable.New(), infinite.Object, constants, tasks...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func run(t *testing.T, c *simulator.Core, d time.Duration) {
	t.Helper()
	if err := c.Run(d); err != nil {
		t.Fatal(err)
	}
}

func TestKeepsTheCore(t *testing.T) {
	c := core(t, nil, simulator.Task{}, simulator.Task{}, simulator.Task{})
	run(t, c, time.Hour)
	if c.Ran(0) != time.Hour || len(c.Turns()) != 1 {
		t.Errorf("the first ran for %v, turns %v", c.Ran(0), c.Turns())
	}
}

func TestTheNextAfterTheEnd(t *testing.T) {
	c := core(t, nil, simulator.Task{Total: time.Second}, simulator.Task{Total: time.Second}, simulator.Task{})
	run(t, c, 5*time.Second)
	want := []simulator.Turn{{Task: 0, From: 0, To: time.Second}, {Task: 1, From: time.Second, To: 2 * time.Second}, {Task: 2, From: 2 * time.Second, To: 5 * time.Second}}
	if !slices.Equal(c.Turns(), want) {
		t.Errorf("turns %v, want %v", c.Turns(), want)
	}
}

// Two that wait for each other, as at a barrier, must both get on.
func TestOneThatWaitsLeavesTheCore(t *testing.T) {
	c := core(t, nil, simulator.Task{Burst: time.Second, Pause: time.Millisecond}, simulator.Task{Burst: time.Second, Pause: time.Millisecond})
	run(t, c, 10*time.Second)
	for i := range 2 {
		if c.Ran(i) < 4*time.Second {
			t.Errorf("task %d ran for %v of 10 s", i, c.Ran(i))
		}
	}
	if turns := len(c.Turns()); turns > 11 {
		t.Errorf("%d turns: one was interrupted: %v", turns, c.Turns())
	}
}
