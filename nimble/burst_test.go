package nimble_test

import (
	"sync"
	"testing"
	"time"

	"margay/nimble"
	"margay/nimble/engine/portable"
)

// TestBurst has bursts run two extensions in turn while others run them alone,
// ask for their statistics and close one of them.
func TestBurst(t *testing.T) {
	first := insert(t, assemble(t, "mov r0, 1", "exit"), nimble.Options{Engine: portable.New()})
	second := insert(t, assemble(t, "mov r0, 2", "exit"), nimble.Options{Engine: portable.New()})
	var wait sync.WaitGroup
	const each = 500
	for range 3 {
		wait.Go(func() {
			var burst nimble.Burst
			defer burst.End()
			for n := range each {
				if r0, err := burst.Run(first, &nimble.Event{}); err != nil || r0 != 1 {
					t.Errorf("first: %d, %v", r0, err)
				}
				if n%5 != 0 {
					continue
				}
				if r0, err := burst.Run(second, &nimble.Event{}); err != nil || r0 != 2 {
					t.Errorf("second: %d, %v", r0, err)
				}
			}
		})
		wait.Go(func() {
			before := uint64(0)
			for range each {
				if _, err := first.Run(&nimble.Event{}); err != nil {
					t.Error(err)
				}
				if runs := first.Stats().Runs; runs < before {
					t.Errorf("%d runs after %d", runs, before)
				} else {
					before = runs
				}
			}
		})
	}
	wait.Wait()
	if s := first.Stats(); s.Runs != 6*each || s.Instructions != 2*6*each {
		t.Errorf("first: %+v", s)
	}
	if s := second.Stats(); s.Runs != 3*each/5 || s.Instructions != 2*3*each/5 {
		t.Errorf("second: %+v", s)
	}
}

// TestCloseInBurst closes an extension that a burst runs all the time.
func TestCloseInBurst(t *testing.T) {
	x := insert(t, assemble(t, "mov r0, 1", "exit"), nimble.Options{Engine: portable.New()})
	running, closed := make(chan bool), make(chan bool)
	go func() {
		defer close(closed)
		<-running
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}()
	var burst nimble.Burst
	defer burst.End()
	runs := uint64(0)
	for deadline := time.Now().Add(20 * time.Second); ; runs++ {
		if _, err := burst.Run(x, &nimble.Event{}); err != nil {
			break
		}
		if runs == 100 {
			close(running)
		}
		if time.Now().After(deadline) {
			t.Fatal("the burst does not let Close in")
		}
	}
	<-closed
	if s := x.Stats(); s.Runs != runs {
		t.Errorf("%d runs are counted of %d", s.Runs, runs)
	}
}

// TestStatsAreExact asks after every run, from two goroutines at once.
func TestStatsAreExact(t *testing.T) {
	x := insert(t, assemble(t, "mov r0, 1", "exit"), nimble.Options{Engine: portable.New()})
	for n := uint64(1); n < 1000; n++ {
		if _, err := x.Run(&nimble.Event{}); err != nil {
			t.Fatal(err)
		}
		var wait sync.WaitGroup
		for range 2 {
			wait.Go(func() {
				if s := x.Stats(); s.Runs != n || s.Instructions != 2*n {
					t.Errorf("after %d runs: %+v", n, s)
				}
			})
		}
		wait.Wait()
	}
}
