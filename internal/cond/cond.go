// Package cond waits on a sync.Cond for as long as a context lasts.
package cond

import (
	"context"
	"sync"
)

// Wait waits until done reports true, and returns nil then. When ctx ends it returns the cause, also when done would report true.
// The caller holds c.L, which done is called with, and holds it again when Wait returns.
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

// Wake wakes all that wait on c when ctx ends, unless the returned function has been called before. It takes c.L to do so: a
// goroutine that has looked at ctx and has not begun to wait would miss it otherwise.
func Wake(ctx context.Context, c *sync.Cond) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		c.L.Lock()
		defer c.L.Unlock()
		c.Broadcast()
	})
}
