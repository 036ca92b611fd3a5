// Package cond waits on a sync.Cond for as long as a context lasts.
package cond

import (
	"context"
	"sync"
)

// Wait waits until done returns true, and then returns nil. When ctx ends, it returns the cause,
// even if done would return true. The caller holds c.L; done is called with it held, and the caller
// holds it again when Wait returns.
func Wait(ctx context.Context, c *sync.Cond, done func() bool) error {
	if ctx.Err() == nil && !done() {
		stop := Wake(ctx, c)
		defer stop()
		for ctx.Err() == nil && !done() {
			c.Wait()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Wake wakes all waiters on c when ctx ends, unless stop is called first. It takes c.L before it
// wakes them, so that a goroutine between its check of ctx and its wait does not miss the wake-up.
func Wake(ctx context.Context, c *sync.Cond) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		c.L.Lock()
		defer c.L.Unlock()
		c.Broadcast()
	})
}
