package margay

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"margay/kernel/abi/wire"
)

// One-sided operations on windows
//
// A window is memory of a rank that the other ranks of its job read and write without it: on the
// same node directly, on another node by that node's node kernel. The rank need not poll. On a
// trusted wire it carries out gets and atomic accesses that wait itself while it polls or waits,
// which is faster; if it computes, or has not called Window or has no such window, the first of
// them take 200 us longer. A window lives until the job ends, also when its rank has ended. Bounds
// are checked at the window. Nothing orders accesses of different ranks except barriers, events and
// atomic accesses. Handlers must not use windows.
//
// Completion: Put and PutEvent return when their source may be reused (local completion). They are
// complete, so that every rank sees them, when Quiet or Barrier has returned nil (remote
// completion). To one rank they take effect in the order of the calls, in which atomic accesses and
// gets take part; so Fence has nothing to wait for. Get, FetchAdd and CompareSwap return when they
// are complete. If ctx ends before, it is not certain whether an access was carried out. Request
// describes the forms that do not wait.
//
// A put to another node that was refused there is an error of the next Quiet, Barrier or Finalize,
// whichever is first. Call one of them before the process exits. The barrier is carried out before
// it returns the error, so other ranks do not wait for it.

// MaxWindows bounds the numbers of windows: 0 to MaxWindows-1.
const MaxWindows = wire.MaxWindows

// window is the window of a rank.
type window struct{ number, rank int }

// Window makes this rank's window of a number, zeroed and page-aligned, and returns its memory: the
// same if it is called again with no larger size. Ranks may have windows of different sizes, or
// none. Call Barrier before other ranks use it. It is the region "window/NUMBER/RANK", so
// extensions can work on it, and counts as one of the 64 regions of a job on a node.
func (j *Job) Window(number, size int) ([]byte, error) {
	p := place{rank: j.Rank(), window: number}
	if err := j.checkPlace(p); err != nil {
		return nil, err
	}
	if size < 1 {
		return nil, fmt.Errorf("margay: window %d of %d bytes: a window has 1 byte at least", number, size)
	}
	memory, err := j.mapWindow(window{number, j.Rank()}, size)
	if err != nil {
		return nil, err
	}
	if size > len(memory) {
		return nil, fmt.Errorf("margay: window %d has %d bytes, not %d", number, len(memory), size)
	}
	return memory[:size:size], nil
}

func (j *Job) checkPlace(p place) error {
	switch {
	case j.finalized.Load():
		return ErrClosed
	case p.rank < 0 || p.rank >= j.Size():
		return fmt.Errorf("margay: there is no rank %d, but ranks 0 to %d", p.rank, j.Size()-1)
	case p.window < 0 || p.window >= MaxWindows:
		return fmt.Errorf("margay: there is no window %d, but windows 0 to %d", p.window, MaxWindows-1)
	}
	return nil
}

// mapWindow maps a window of this node. A size of 0 requires an existing one.
func (j *Job) mapWindow(w window, size int) ([]byte, error) {
	j.mu.Lock()
	memory := j.windows[w]
	j.mu.Unlock()
	if memory != nil {
		return memory, nil
	}
	region, err := j.Region(wire.WindowName(w.number, w.rank), size)
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.windows[w] == nil { // another goroutine may have mapped it
		j.windows[w] = region.Bytes
	}
	return j.windows[w], nil
}

// near returns the memory at a place in a window of this node; nil if the rank is on another one.
func (j *Job) near(p place, length int) ([]byte, error) {
	if err := j.checkPlace(p); err != nil {
		return nil, err
	}
	if !j.isNear(p) {
		return nil, nil
	}
	memory, err := j.mapWindow(window{p.window, p.rank}, 0)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", p.refused(wire.RemoteNoWindow), err)
	}
	if p.offset < 0 || p.offset > len(memory) || length > len(memory)-p.offset {
		return nil, p.refused(wire.RemoteOutside)
	}
	return memory[p.offset:][:length:length], nil
}

// nearWord is near for a word.
func (j *Job) nearWord(p place) (*atomic.Uint64, error) {
	if p.offset%8 != 0 {
		return nil, p.refused(wire.RemoteOutside)
	}
	b, err := j.near(p, 8)
	if b == nil || err != nil {
		return nil, err
	}
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

// Put copies data to a window of a rank, at an offset in bytes.
func (j *Job) Put(ctx context.Context, rank, window, offset int, data []byte) error {
	return j.access(ctx, Request{place: place{rank, window, offset}, kind: wire.RemotePut, rest: data})
}

// PutEvent is Put, and adds 1 to the event at the offset event when the data are there. An event is
// a uint64 in a window that counts.
func (j *Job) PutEvent(ctx context.Context, rank, window, offset int, data []byte, event int) error {
	return j.access(ctx, Request{place: place{rank, window, offset}, kind: wire.RemotePut, rest: data, counts: true, event: event})
}

// Get copies from a window of a rank to data.
func (j *Job) Get(ctx context.Context, rank, window, offset int, data []byte) error {
	return j.access(ctx, Request{place: place{rank, window, offset}, kind: wire.RemoteGet, rest: data})
}

// FetchAdd adds to the uint64 at an offset, a multiple of 8, and returns what was there before.
// FetchAdd and CompareSwap are atomic for all ranks of the job, and with atomic accesses
// (sync/atomic) of the window's own rank.
func (j *Job) FetchAdd(ctx context.Context, rank, window, offset int, value uint64) (old uint64, err error) {
	return j.atomic(ctx, wire.RemoteAdd, place{rank, window, offset}, [2]uint64{value})
}

// CompareSwap replaces the uint64 at an offset, a multiple of 8, by value if it is expected, and
// returns what was there before.
func (j *Job) CompareSwap(ctx context.Context, rank, window, offset int, expected, value uint64) (old uint64, err error) {
	return j.atomic(ctx, wire.RemoteSwap, place{rank, window, offset}, [2]uint64{expected, value})
}

// EventTest handles messages if an event in a window of this rank has not counted up to count, and
// reports whether it has.
func (j *Job) EventTest(window, event int, count uint64) (bool, error) {
	word, err := j.nearWord(place{j.Rank(), window, event})
	if err == nil && word.Load() < count {
		j.Poll()
	}
	return err == nil && word.Load() >= count, err
}

// EventWait handles messages until an event in a window of this rank has counted up to count.
// FetchAdd and CompareSwap wake it, too.
func (j *Job) EventWait(ctx context.Context, window, event int, count uint64) error {
	word, err := j.nearWord(place{j.Rank(), window, event})
	if err != nil {
		return err
	}
	return j.wait(ctx, func(int) bool { return word.Load() >= count })
}

// Fence orders the puts of this rank to each other rank before it before those after it.
func (j *Job) Fence() {}

// Quiet waits until all one-sided operations of this rank are complete, those with a Request
// included, and returns the error of a put without a Request that was refused.
func (j *Job) Quiet(ctx context.Context) error {
	if err := j.wait(ctx, j.locked(j.quiet)); err != nil {
		return err
	}
	return j.refused()
}

// wakeRank wakes a rank of this node if it sleeps: something changed that it may wait for.
func (j *Job) wakeRank(rank int) {
	if rank == j.Rank() {
		j.announce() // to other goroutines
		return
	}
	local := 0
	for other := range rank {
		if j.NodeOf(other) == j.Node() {
			local++
		}
	}
	j.sending.Lock()
	defer j.sending.Unlock()
	if !j.finalized.Load() && j.board.Claim(local) {
		j.wake(local)
	}
}
