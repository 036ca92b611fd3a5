package subroutine

import (
	"errors"
	"fmt"
	"slices"

	"margay/nimble/engine"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// subroutine is the engine; if calls is set, subroutine-calls.
type subroutine struct{ calls bool }

func newEngine(calls bool) (engine.Engine, error) { return subroutine{calls}, nil }

// Name implements engine.Engine.
func (e subroutine) Name() string {
	if e.calls {
		return "subroutine-calls"
	}
	return "subroutine"
}

// Thread implements engine.Engine.
func (e subroutine) Thread(p *verify.Program, maps []*state.Map) (engine.Code, error) {
	if p.Len() == 0 || len(p.Maps()) != len(maps) {
		return nil, fmt.Errorf("%s: %w", e.Name(), errors.New("needs a verified program and its maps"))
	}
	t := thread(p, maps, e.calls)
	defer t.recycle()
	memory, err := executable.add(t.code[:t.written])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name(), err)
	}
	c := &code{
		program:  p,
		services: t.services,
		memory:   memory,
		base:     addressOf(memory),
		frame:    p.Function(0).Frame,
		short:    !t.back && !t.local && fits(p),
	}
	if !c.short || t.resumes {
		c.at = slices.Clone(t.at)
	}
	for way, offset := range t.ways {
		c.addresses[way] = c.base + uintptr(offset)
		c.ways[way] = function(&c.addresses[way])
	}
	if err := c.uncheck(t); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", e.Name(), err), c.Close())
	}
	return c, nil
}

// fits reports whether one execution of each instruction takes at most one slice.
func fits(p *verify.Program) bool { return uint64(p.Len()) <= engine.Slice(p) }

// Entries of emitted code.
const (
	start        = iota // begins a run
	resume              // continues at next, with all registers from the cpu
	afterService        // continues at next, with r0, and r1 to r5 from the Call
	ways
)

// code is a threaded program.
type code struct {
	ways      [ways]entry
	tenant    engine.Tenant
	frame     bool // the first function has a stack frame
	short     bool // no run costs more than a slice
	program   *verify.Program
	at        []int32       // offset of each slot; nil if no run continues at a slot
	services  []serviceCall // by the number in their sites
	strays    []forward     // unchecked accesses, in ascending order
	stray     uint64        // address of the exit path after a bad access; 0: no access is unchecked
	memory    []byte        // the emitted code
	base      uintptr       // its address
	addresses [ways]uintptr // of ways
}

// Size implements engine.Sized.
func (c *code) Size() int { return len(c.memory) }

// Close implements engine.Code.
func (c *code) Close() error {
	if c.memory == nil {
		return nil
	}
	memory := c.memory
	c.memory, c.base = nil, 0
	return executable.remove(memory)
}
