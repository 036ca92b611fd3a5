package weighted_test

import (
	"math"
	"testing"
	"time"

	"margay/ext/sched/infinite"
	"margay/ext/sched/simulator"
	"margay/ext/sched/weighted"
	"margay/nimble/engine/portable"
)

// shares returns which part of d each task had.
func shares(c *simulator.Core, d time.Duration, tasks int) []float64 {
	var s []float64
	for i := range tasks {
		s = append(s, float64(c.Ran(i))/float64(d))
	}
	return s
}

func TestWeights(t *testing.T) {
	for name, test := range map[string]struct {
		weights []uint32
		want    []float64
	}{
		"as it comes":    {nil, []float64{.75, .25}},
		"three tasks":    {[]uint32{5, 2, 1}, []float64{.625, .25, .125}},
		"all the same":   {[]uint32{7, 7, 7, 7}, []float64{.25, .25, .25, .25}},
		"no weight is 1": {[]uint32{0, 1}, []float64{.5, .5}},
	} {
		t.Run(name, func(t *testing.T) {
			constants := make(map[string]any)
			for i, w := range test.weights {
				constants[weighted.Weight(i)] = w
			}
			c := simulator.New(t, portable.New(), weighted.Object, constants, make([]simulator.Task, len(test.want))...)
			c.Run(80 * time.Second)
			for i, share := range shares(c, 80*time.Second, len(test.want)) {
				if math.Abs(share-test.want[i]) > 0.001 {
					t.Errorf("task %d had %.4f of the time, want %.3f", i, share, test.want[i])
				}
			}
		})
	}
}

// Processor time before the insertion of the scheduler does not count.
func TestChange(t *testing.T) {
	c := simulator.New(t, portable.New(), infinite.Object, nil, simulator.Task{}, simulator.Task{})
	c.Run(time.Hour) // the first task takes all of it
	for range 2 {
		c.Replace(portable.New(), weighted.Object, nil)
		before := [2]time.Duration{c.Ran(0), c.Ran(1)}
		c.Run(80 * time.Second)
		if a, b := c.Ran(0)-before[0], c.Ran(1)-before[1]; a != 60*time.Second || b != 20*time.Second {
			t.Errorf("of 80 s the tasks had %v and %v", a, b)
		}
	}
}

// A task that has waited for a long time does not get that time back.
func TestWaitingSavesNothing(t *testing.T) {
	one := map[string]any{weighted.Weight(0): uint32(1)}
	c := simulator.New(t, portable.New(), weighted.Object, one, simulator.Task{}, simulator.Task{Burst: time.Millisecond, Pause: time.Hour})
	c.Run(10 * time.Second)
	before := c.Ran(0)
	c.Message(1) // it wakes up
	c.Run(time.Hour)
	if ran := c.Ran(0) - before; ran < time.Hour-time.Second {
		t.Errorf("the other task ran for %v of an hour", ran)
	}
	c = simulator.New(t, portable.New(), weighted.Object, one, simulator.Task{}, simulator.Task{Burst: 10 * time.Second, Pause: 100 * time.Second})
	c.Run(20*time.Second + 100*time.Second) // half of 20 s each, then alone
	before = c.Ran(0)
	c.Run(10 * time.Second)
	if ran := c.Ran(0) - before; ran < 4900*time.Millisecond || ran > 5100*time.Millisecond {
		t.Errorf("beside the one that has waited, the other ran for %v of 10 s", ran)
	}
}
