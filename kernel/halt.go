package kernel

import "sync/atomic"

// halts counts how often a job was stopped (SIGSTOP to all its ranks) and continued: the count is
// odd while it is stopped. It is safe for concurrent use.
type halts struct{ n atomic.Uint64 }

// set notes that the job is stopped, or not. Repetitions change nothing.
func (h *halts) set(halted bool) {
	n := h.n.Load()
	if halted != h.halted() {
		h.n.CompareAndSwap(n, n+1)
	}
}

func (h *halts) count() uint64 { return h.n.Load() }

func (h *halts) halted() bool { return h.n.Load()%2 == 1 }
