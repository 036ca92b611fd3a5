package nimble

// Burst runs extensions for events that follow each other at once. It keeps the
// lock of the extension that it has run last, so that the next run of the same
// one need not take it. It holds one lock at a time, and leaves it for a moment
// before each sampled run, because others may wait for it: see Extension.Run and
// Close.
//
// The zero Burst is ready. It must be ended. It belongs to one goroutine, which
// must not wait for anything that may wait for a run. While it holds an
// extension, Stats takes a run of that to be under way.
type Burst struct{ held *Extension }

// Run is Extension.Run.
func (b *Burst) Run(x *Extension, e *Event) (r0 uint64, err error) {
	if b.held != x || x.done.runs+1 == x.due {
		b.hold(x)
	}
	return x.run(e, x.limits.Fuel)
}

// hold takes the lock of an extension in place of the one that it has.
func (b *Burst) hold(x *Extension) {
	b.End()
	x.running.Lock()
	b.held = x
}

// End gives the lock back. The Burst can be used again.
func (b *Burst) End() {
	if b.held != nil {
		b.held.running.Unlock()
		b.held = nil
	}
}
