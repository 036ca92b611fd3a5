package launch

import (
	"context"
	"errors"
	"sync"
)

// window lets a sender go only so far ahead of its receiver.
type window struct {
	mu      sync.Mutex
	changed sync.Cond
	limit   uint64 // bytes
	sent    uint64
	got     uint64
	closed  bool
}

func newWindow(limit uint64) *window {
	w := &window{limit: limit}
	w.changed.L = &w.mu
	return w
}

var errNoReceiver = errors.New("nobody takes them any more")

// wait returns when n more bytes may be sent, and counts them as sent.
func (w *window) wait(ctx context.Context, n int) error {
	stop := context.AfterFunc(ctx, w.wake)
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.sent+uint64(n) > w.got+w.limit && !w.closed && ctx.Err() == nil {
		w.changed.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.closed:
		return errNoReceiver
	}
	w.sent += uint64(n)
	return nil
}

// wake has all waits look again.
func (w *window) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed.Broadcast()
}

// taken tells how many bytes the receiver has taken in all.
func (w *window) taken(offset uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = max(w.got, offset)
	w.changed.Broadcast()
}

// close makes every wait fail.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Broadcast()
}
