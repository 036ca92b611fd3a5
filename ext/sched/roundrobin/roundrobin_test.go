package roundrobin_test

import (
	"testing"
	"time"

	"margay/ext/sched/roundrobin"
	"margay/ext/sched/simulator"
	"margay/nimble/engine/portable"
)

func TestTurns(t *testing.T) {
	c := simulator.New(t, portable.New(), roundrobin.Object, map[string]any{roundrobin.Quantum: uint64(2 * time.Millisecond)}, simulator.Task{}, simulator.Task{}, simulator.Task{})
	c.Run(3 * time.Second)
	for i := range 3 {
		if c.Ran(i) != time.Second {
			t.Errorf("task %d ran for %v", i, c.Ran(i))
		}
	}
	for i, turn := range c.Turns() {
		if turn.Task != i%3 || turn.To-turn.From != 2*time.Millisecond {
			t.Fatalf("turn %d: %+v", i, turn)
		}
	}
}

// Others that come and go neither shorten nor lengthen a turn.
func TestOneThatWaits(t *testing.T) {
	c := simulator.New(t, portable.New(), roundrobin.Object, nil, simulator.Task{}, simulator.Task{}, simulator.Task{Burst: time.Millisecond, Pause: 3 * time.Millisecond})
	c.Run(10 * time.Second)
	for _, turn := range c.Turns()[1 : len(c.Turns())-1] {
		if want := 10 * time.Millisecond; turn.Task != 2 && turn.To-turn.From != want {
			t.Fatalf("turn %+v is not as long as %v", turn, want)
		}
	}
	if a, b := c.Ran(0), c.Ran(1); a-b > 10*time.Millisecond || b-a > 10*time.Millisecond {
		t.Errorf("the tasks that compute ran for %v and %v", a, b)
	}
	// It has a turn after each of theirs.
	if ran := c.Ran(2); ran < 450*time.Millisecond {
		t.Errorf("the task that waits ran for %v", ran)
	}
}

func TestAlone(t *testing.T) {
	c := simulator.New(t, portable.New(), roundrobin.Object, nil, simulator.Task{})
	c.Run(time.Second)
	if c.Ran(0) != time.Second {
		t.Errorf("it ran for %v", c.Ran(0))
	}
}
