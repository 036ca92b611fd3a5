package launch

import (
	"context"
	"errors"
	"sync"

	"margay/internal/cond"
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

var errNoReceiver = errors.New("the receiver has closed")

// wait returns when n more bytes may be sent, and counts them as sent.
func (w *window) wait(ctx context.Context, n int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := cond.Wait(ctx, &w.changed, func() bool { return w.sent+uint64(n) <= w.got+w.limit || w.closed })
	switch {
	case err != nil:
		return err
	case w.closed:
		return errNoReceiver
	}
	w.sent += uint64(n)
	return nil
}

// taken records the total number of bytes that the receiver has taken.
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
