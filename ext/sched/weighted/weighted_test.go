package weighted_test

import (
	"math"
	"testing"
	"time"

	"margay/ext/sched/simulator"
	"margay/ext/sched/weighted"
	"margay/nimble/engine/portable"
)

// core is a simulated core with the scheduler.
func core(t *testing.T, constants map[string]any, tasks ...simulator.Task) *simulator.Core {
	t.Helper()
	c, err := simulator.New(portable.New(), weighted.Object, constants, tasks...)
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
			c := core(t, constants, make([]simulator.Task, len(test.want))...)
			run(t, c, 80*time.Second)
			for i, share := range shares(c, 80*time.Second, len(test.want)) {
				if math.Abs(share-test.want[i]) > 0.001 {
					t.Errorf("task %d had %.4f of the time, want %.3f", i, share, test.want[i])
				}
			}
		})
	}
}

// A task that has waited for a long time does not get that time back.
func TestWaitingSavesNothing(t *testing.T) {
	one := map[string]any{weighted.Weight(0): uint32(1)}
	c := core(t, one, simulator.Task{}, simulator.Task{Burst: time.Millisecond, Pause: time.Hour})
	run(t, c, 10*time.Second)
	before := c.Ran(0)
	if err := c.Message(1); err != nil { // it wakes up
		t.Fatal(err)
	}
	run(t, c, time.Hour)
	if ran := c.Ran(0) - before; ran < time.Hour-time.Second {
		t.Errorf("the other task ran for %v of an hour", ran)
	}
	c = core(t, one, simulator.Task{}, simulator.Task{Burst: 10 * time.Second, Pause: 100 * time.Second})
	run(t, c, 20*time.Second+100*time.Second) // half of 20 s each, then alone
	before = c.Ran(0)
	run(t, c, 10*time.Second)
	if ran := c.Ran(0) - before; ran < 4900*time.Millisecond || ran > 5100*time.Millisecond {
		t.Errorf("beside the one that has waited, the other ran for %v of 10 s", ran)
	}
}
