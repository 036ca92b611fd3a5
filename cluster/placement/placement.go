// Package placement runs the extensions in slot place, which choose the nodes of jobs for the
// machine's allocator.
//
// An extension is hostile until it is checked. It is verified on insertion and never trusted, so
// its memory accesses are checked unless they are proved, has a bound on its instructions, and has
// services that touch only its own maps. serve gives it the portable engine. What it answers is a
// score for each candidate, and a number of ranks, which is bounded here: it orders candidates and
// can neither add nor refuse one.
//
// Locks: Chooser.mu is held during Choose, for the context, and is taken before the locks of
// package kernel/extension.
package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/memory"
)

// Chooser holds the extensions in slot place. It is safe for concurrent use. It must be closed.
type Chooser struct {
	manager *extension.Manager

	mu      sync.Mutex
	context *memory.Memory // of each run; nil after Close
}

// New makes a chooser without extensions, which will run on e; if that is nil, none can be
// inserted. log is called for every note, also concurrently.
func New(e engine.Engine, log func(format string, args ...any)) (*Chooser, error) {
	manager, err := extension.NewAllocator(e, log)
	if err != nil {
		return nil, err
	}
	context, err := memory.Map(string(slot.PlaceSlot), slot.PlaceSize)
	if err != nil {
		return nil, err
	}
	return &Chooser{manager: manager, context: context}, nil
}

// Close removes all extensions. Nothing is chosen any more.
func (c *Chooser) Close() error {
	c.mu.Lock()
	context := c.context
	c.context = nil
	c.mu.Unlock()
	if context == nil {
		return nil
	}
	return errors.Join(c.manager.Machine().Close(), context.Close())
}

// Insert appends an extension. Its handle is the request's, if that is not 0.
func (c *Chooser) Insert(r extension.Request) error {
	_, err := c.manager.Machine().Insert(r)
	return err
}

// Remove removes an extension. The error wraps extension.ErrNotFound if there is none.
func (c *Chooser) Remove(handle id.Handle, by string) error { return c.manager.Remove(handle, by) }

// List describes the extensions, removed ones last.
func (c *Chooser) List() []extension.Info { return c.manager.List() }

// Notes returns the notes about extensions after sequence number seq.
func (c *Chooser) Notes(seq uint64) []extension.Note { return c.manager.Notes(seq) }

// Empty reports whether there are no extensions.
func (c *Chooser) Empty() bool { return c.manager.Machine().Empty(slot.PlaceSlot) }

// Turn is what a candidate takes at its turn.
type Turn struct {
	Candidate int    // index of the candidate
	Ranks     uint32 // at least 1; it can be more than there is room for
}

// Choose asks the extensions, in the order of their insertion, until one has scored all candidates,
// and returns the candidates in the order of their scores; nil if none has. The candidates must be
// in the order of their numbers. spent are the handles of extensions that made their last fault:
// they are removed.
func (c *Chooser) Choose(candidates []slot.PlaceContext) (turns []Turn, spent []id.Handle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.context == nil {
		return nil, nil
	}
	for _, x := range c.manager.Chain(extension.Machine, slot.PlaceSlot) {
		before := x.Stats().Faults
		turns := c.ask(x, candidates)
		if after := x.Stats().Faults; before < slot.FaultLimit && after >= slot.FaultLimit {
			spent = append(spent, x.Handle())
		}
		if turns != nil {
			return turns, spent
		}
	}
	return nil, spent
}

// ask returns the order of one extension; nil if it leaves the job to others or makes a fault. The
// caller holds Chooser.mu.
func (c *Chooser) ask(x *extension.Extension, candidates []slot.PlaceContext) []Turn {
	turns, scores := make([]Turn, len(candidates)), make([]slot.Verdict, len(candidates))
	event := nimble.Event{Context: c.context.Region(true)}
	for i := range candidates {
		candidates[i].Put(c.context.Bytes())
		score, err := x.Ask(event)
		if err != nil || score == slot.Unscored {
			return nil
		}
		turns[i], scores[i] = Turn{i, slot.PlaceTurn(c.context.Bytes())}, score
		if turns[i].Ranks == 0 {
			x.Fault(fmt.Errorf("node%d takes 0 ranks at its turn, at least 1 is needed", candidates[i].Node))
			return nil
		}
	}
	slices.SortStableFunc(turns, func(a, b Turn) int { return cmp.Compare(scores[a.Candidate], scores[b.Candidate]) })
	return turns
}
