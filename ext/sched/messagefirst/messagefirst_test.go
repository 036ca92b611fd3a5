package messagefirst_test

import (
	"slices"
	"testing"
	"time"

	"margay/ext/sched/messagefirst"
	"margay/ext/sched/simulator"
	"margay/nimble/engine/portable"
)

// waiting is a task that sleeps until a message comes and needs 50 us for it.
var waiting = simulator.Task{Burst: 50 * time.Microsecond, Pause: 1000 * time.Hour}

// last returns the newest turns.
func last(c *simulator.Core, n int) []simulator.Turn { return c.Turns()[len(c.Turns())-n:] }

func TestAtOnce(t *testing.T) {
	c := simulator.New(t, portable.New(), messagefirst.Object, nil, simulator.Task{}, waiting)
	c.Run(123 * time.Millisecond)
	for range 10 {
		came := c.Ran(0) + c.Ran(1)
		c.Message(1)
		c.Run(50 * time.Microsecond)
		c.Handled(1)
		if turn := last(c, 1)[0]; turn.Task != 1 || turn.From != came {
			t.Fatalf("a message came at %v, the last turns are %v", came, last(c, 2))
		}
		c.Run(time.Millisecond)
		if turn := last(c, 1)[0]; turn.Task != 0 || turn.From != came+50*time.Microsecond {
			t.Fatalf("the message was handled at %v, the last turns are %v", came+50*time.Microsecond, last(c, 2))
		}
	}
}

// A task that never waits loses the core again when no message is left.
func TestPolling(t *testing.T) {
	c := simulator.New(t, portable.New(), messagefirst.Object, nil, simulator.Task{}, simulator.Task{})
	c.Run(5 * time.Millisecond)
	c.Message(1)
	c.Run(20 * time.Microsecond)
	if turn := last(c, 1)[0]; turn.Task != 1 || turn.From != 5*time.Millisecond {
		t.Fatalf("turns %v", c.Turns())
	}
	c.Run(30 * time.Millisecond)
	if turn := last(c, 1)[0]; turn.Task != 1 {
		t.Fatalf("messages still wait, turns %v", last(c, 2))
	}
	c.Handled(1)
	c.Run(2 * time.Millisecond)
	if turn := last(c, 1)[0]; turn.Task != 0 {
		t.Fatalf("no messages wait, turns %v", last(c, 2))
	}
}

func TestTurnsWithoutMessages(t *testing.T) {
	c := simulator.New(t, portable.New(), messagefirst.Object, map[string]any{messagefirst.Quantum: uint64(time.Millisecond)}, simulator.Task{}, simulator.Task{}, simulator.Task{})
	c.Run(3 * time.Second)
	for i := range 3 {
		if c.Ran(i) != time.Second {
			t.Errorf("task %d ran for %v", i, c.Ran(i))
		}
	}
}

// Of several with messages the one that has waited for the longest time is first, and they are
// handled one after the other.
func TestSeveral(t *testing.T) {
	c := simulator.New(t, portable.New(), messagefirst.Object, nil, simulator.Task{}, waiting, waiting)
	c.Run(time.Millisecond)
	c.Message(2)
	c.Run(10 * time.Microsecond)
	c.Message(1)
	c.Run(40 * time.Microsecond)
	c.Handled(2)
	c.Run(50 * time.Microsecond)
	c.Handled(1)
	c.Run(time.Millisecond)
	var order []int
	for _, turn := range last(c, 4) {
		order = append(order, turn.Task)
	}
	if !slices.Equal(order, []int{0, 2, 1, 0}) {
		t.Errorf("turns %v", last(c, 4))
	}
}
