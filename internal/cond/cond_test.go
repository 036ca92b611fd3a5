package cond

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestWait(t *testing.T) {
	cause := errors.New("cause")
	var mu sync.Mutex
	c := sync.NewCond(&mu)
	state := 0
	waiting := make(chan struct{}, 1)
	// wait runs Wait until state is 2. It returns after the first call of done.
	wait := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() {
			mu.Lock()
			defer mu.Unlock()
			ended <- Wait(ctx, c, func() bool {
				select {
				case waiting <- struct{}{}:
				default:
				}
				return state == 2
			})
		}()
		<-waiting
		return ended
	}
	set := func(to int) {
		mu.Lock()
		defer mu.Unlock()
		state = to
		c.Broadcast()
	}
	ended := wait(context.Background())
	set(1)
	<-waiting // it has checked again, and still waits
	select {
	case err := <-ended:
		t.Fatalf("Wait returned too early: %v", err)
	default:
	}
	set(2)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	set(1)
	for len(waiting) > 0 {
		<-waiting
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	ended = wait(ctx)
	cancel(cause)
	if err := <-ended; !errors.Is(err, cause) {
		t.Errorf("after the end of the context: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if err := Wait(ctx, c, func() bool { return true }); !errors.Is(err, cause) {
		t.Errorf("with an ended context: %v", err)
	}
}
