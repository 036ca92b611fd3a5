package infinite_test

import (
	"slices"
	"testing"
	"time"

	"margay/ext/sched/infinite"
	"margay/ext/sched/simulator"
	"margay/nimble/engine/portable"
)

func TestKeepsTheCore(t *testing.T) {
	c := simulator.New(t, portable.New(), infinite.Object, nil, simulator.Task{}, simulator.Task{}, simulator.Task{})
	c.Run(time.Hour)
	if c.Ran(0) != time.Hour || len(c.Turns()) != 1 {
		t.Errorf("the first ran for %v, turns %v", c.Ran(0), c.Turns())
	}
}

func TestTheNextAfterTheEnd(t *testing.T) {
	c := simulator.New(t, portable.New(), infinite.Object, nil, simulator.Task{Total: time.Second}, simulator.Task{Total: time.Second}, simulator.Task{})
	c.Run(5 * time.Second)
	want := []simulator.Turn{{Task: 0, From: 0, To: time.Second}, {Task: 1, From: time.Second, To: 2 * time.Second}, {Task: 2, From: 2 * time.Second, To: 5 * time.Second}}
	if !slices.Equal(c.Turns(), want) {
		t.Errorf("turns %v, want %v", c.Turns(), want)
	}
}

// Two that wait for each other, as at a barrier, must both get on.
func TestOneThatWaitsLeavesTheCore(t *testing.T) {
	c := simulator.New(t, portable.New(), infinite.Object, nil, simulator.Task{Burst: time.Second, Pause: time.Millisecond}, simulator.Task{Burst: time.Second, Pause: time.Millisecond})
	c.Run(10 * time.Second)
	for i := range 2 {
		if c.Ran(i) < 4*time.Second {
			t.Errorf("task %d ran for %v of 10 s", i, c.Ran(i))
		}
	}
	if turns := len(c.Turns()); turns > 11 {
		t.Errorf("%d turns: one was interrupted: %v", turns, c.Turns())
	}
}
